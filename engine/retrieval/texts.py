"""Texts to the token ids that a retrieval model reads. No mlx; usable from any thread."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import BadRequestError, ModelBrokenError, UnsupportedModelError
from engine.retrieval.card import Card
from engine.vocabulary import Vocabulary

log = logging.getLogger(__name__)

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What Qwen3-Reranker is told to judge by where nobody says anything else; its own default."""
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class Tokens:
    """One input as the model gets it.

    Attributes:
        ids: all token ids. first: how many of them belong to the first of two texts.
    """

    ids: Sequence[int]
    first: int


class Reader:
    """A checkpoint's tokenizer.

    Names of special tokens in a text are encoded as the letters they are, so a document can not end itself.

    Attributes:
        answers: ids of `yes` and `no` where the model answers with them; empty for others.
    """

    def __init__(self, card: Card) -> None:
        """Raises ModelBrokenError where the tokenizer can not be built."""
        self._card = card
        self._backend = _backend(card)
        self._vocabulary = Vocabulary(self._backend)
        self.answers: tuple[int, ...] = ()
        if card.family == "qwen3" and card.role == "rerank":
            self.answers = self._answers()
            self._before, self._after = map(self._vocabulary.encode, (_BEFORE, _AFTER))
        self._backend.encode_special_tokens = True  # which means: as text

    def text(self, text: str) -> Tokens:
        """One text to be embedded, with the special tokens that the tokenizer puts around it."""
        ids = self._backend.encode(self._prepared(text)).ids
        return Tokens(ids, len(ids))

    def pair(self, query: str, document: str, instruction: str | None = None) -> Tokens:
        """A query with a document, as a reranker reads them.

        Raises BadRequestError for an instruction to a model that takes none.
        """
        if self.answers:
            return self._question(query, document, instruction or INSTRUCTION)
        if instruction is not None:
            raise BadRequestError(f"{self._card.name} takes no instruction; leave it out.", "instruction")
        encoded = self._backend.encode(self._prepared(query), self._prepared(document))
        return Tokens(encoded.ids, encoded.type_ids.count(0))

    def _question(self, query: str, document: str, instruction: str) -> Tokens:
        text = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        ids = [*self._before, *self._vocabulary.encode_as_text(text), *self._after]
        return Tokens(ids, len(ids))

    def _prepared(self, text: str) -> str:
        return text.lower() if self._card.lower else text

    def _answers(self) -> tuple[int, ...]:
        ids = [self._backend.token_to_id(word) for word in ("yes", "no")]
        if None in ids:
            raise UnsupportedModelError(f"{self._card.name} has no single tokens for yes and no, so it can not rerank.")
        return tuple(ids)


def _backend(card: Card) -> Any:
    """The Rust tokenizer of a checkpoint, from its tokenizer.json or, for a BERT without one, its vocab.txt."""
    from tokenizers import Tokenizer

    try:
        if (card.path / "tokenizer.json").exists():
            return Tokenizer.from_file(str(card.path / "tokenizer.json"))
        from transformers import BertTokenizer

        return BertTokenizer.from_pretrained(card.path, local_files_only=True).backend_tokenizer
    except Exception as error:  # the Rust library raises plain Exception
        log.error("the tokenizer in %s can not be loaded", card.path, exc_info=error)  # clients are told no paths
        raise ModelBrokenError(
            f"The tokenizer of {card.name} can not be loaded; the log has more. Copy or download its tokenizer files "
            "again."
        ) from error

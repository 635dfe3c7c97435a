"""A tokenizer's vocabulary: text to token ids, and each id to the very bytes it stands for."""

import json
import re
from typing import Any


class Vocabulary:
    """The Rust tokenizer under a transformers tokenizer, asked directly. Any thread may use it.

    transformers' own encode sets truncation and padding on the Rust object at each call, which fails ("Already
    borrowed") while another thread reads it.

    Attributes:
        added: the added tokens (special ones and others) by id, as `tokenizers.AddedToken`.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        backend.no_truncation()
        backend.no_padding()
        self.added: dict[int, Any] = backend.get_added_tokens_decoder()
        self._byte_level = "ByteLevel" in _types(json.loads(backend.decoder.__getstate__()) if backend.decoder else {})
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; names of added tokens in it mean those tokens."""
        return list(self._backend.encode(_sound(text), add_special_tokens=False).ids)

    def encode_as_text(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is an added token: `<|im_end|>` is the letters that one reads."""
        backend = self._backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        words = [w for w, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
        return [token.id for word in words for token in backend.model.tokenize(word)]

    def pair(self, opening: str, closing: str) -> tuple[int, int] | None:
        """Ids of two tags, or None where one of them is not a single token."""
        first, last = self._backend.token_to_id(opening), self._backend.token_to_id(closing)
        return None if first is None or last is None else (first, last)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to the text; an id beyond the vocabulary (padding of the weights) adds none."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._find_bytes(token)
        return known

    def _find_bytes(self, token: int) -> bytes:
        if token in self.added:
            return str(self.added[token].content).encode()
        piece: str | None = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            return b"".join(_BYTE_OF[c] if c in _BYTE_OF else c.encode() for c in piece)
        if re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("\u2581", " ").encode()


def _sound(text: str) -> str:
    """Lone surrogates, which JSON can carry and UTF-8 can not, as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _types(decoder: Any) -> set[str]:
    """Names of all decoders in a tokenizer's (possibly nested) decoder description."""
    if isinstance(decoder, list):
        return set().union(*map(_types, decoder))
    if isinstance(decoder, dict):
        return {str(decoder.get("type"))} | _types(list(decoder.values()))
    return set()


def _gpt2_bytes() -> dict[str, bytes]:
    """GPT-2's map of characters to bytes: printable Latin-1 stands for itself, the rest is moved up from U+0100."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [b for b in range(256) if b not in plain]
    return {chr(b): bytes([b]) for b in plain} | {chr(256 + i): bytes([b]) for i, b in enumerate(moved)}


_BYTE_OF = _gpt2_bytes()

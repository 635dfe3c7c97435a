"""Grammars on the host: what passes where, against languages that are written out; what is refused, and in what words.

The oracle knows nothing of parsing: a token may follow `done` where some word of the language goes on with it.
"""

import json
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from engine.chat import ChatFormat, load_chat_format
from engine.errors import BadRequestError
from engine.grammar import MOST_KEPT, Constraint, GrammarCompiler
from engine.models.locate import ASSETS
from engine.request import MAX_GRAMMAR_BYTES, Grammar, GrammarKind, Request

VOCAB = 6144 + 40  # with rows of padding behind the tokenizer's own
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
chat = load_chat_format(ASSETS / "demo-13m")
compiler = GrammarCompiler(chat, VOCAB)
TEXT = tuple(chat.render([{"role": "user", "content": "Hi."}], thinking=False))
THINKING = tuple(chat.render([{"role": "user", "content": "Hi."}]))


def start(kind: GrammarKind, text: str = "", prompt: tuple[int, ...] = TEXT) -> Constraint:
    return compiler.compile(Grammar(kind, text), prompt)


def tokens_of(mask: bytes) -> set[int]:
    return {8 * place + bit for place, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1}


def following(words: list[bytes], done: bytes) -> set[int]:
    """By brute force: tokens that may follow, those that end the answer included."""
    texts = set(range(6144)) - set(chat.special_ids)
    left = {word[len(done) :] for word in words if word.startswith(done)}
    found = {token for token in texts if any(rest.startswith(chat.token_bytes(token)) for rest in left)}
    return found | (set(chat.eos_ids) if b"" in left else set())


def accepts(kind: GrammarKind, grammar: str, text: str) -> bool:
    """Whether an answer may be this text, and end there."""
    constraint = start(kind, grammar)
    for token in chat.encode_as_text(text):
        if token not in tokens_of(constraint.masks(())[0]) and not constraint.forced():
            return False
        constraint.take(token)
        if constraint.error is not None:
            return False
    return constraint.complete or bool(tokens_of(constraint.masks(())[0]) & chat.eos_ids)


words = st.lists(st.text('ab{" é:1', min_size=1, max_size=5), min_size=1, max_size=5, unique=True)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(words, st.randoms(use_true_random=False))
def test_masks_are_those_of_the_language_written_out(language: list[str], draw: random.Random) -> None:
    constraint = start("regex", "|".join(map(re.escape, language)))
    spelled, done = [word.encode() for word in language], b""
    while not constraint.complete:
        passing, expected = tokens_of(constraint.masks(())[0]), following(spelled, done)
        forced = constraint.forced()
        if forced:  # one way on, so its own tokens alone
            assert passing == {forced[0]} <= expected
        else:
            assert passing == expected
        token = draw.choice(sorted(passing))
        if token in chat.eos_ids:
            break
        constraint.take(token)
        done += chat.token_bytes(token)
    assert constraint.error is None
    assert done in spelled


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.booleans(), st.integers(0, 20))
def test_masks_along_drafts_are_those_of_taking_them_and_leave_the_place(
    draw: random.Random, reasoning: bool, steps: int
) -> None:
    """Whatever is drafted: tokens that pass, tokens that do not, the answer's end, the end of reasoning."""
    assert chat.think_ids is not None
    prompt = THINKING if reasoning else TEXT
    constraint = start("json_schema", json.dumps(PERSON), prompt)
    taken: list[int] = []
    for _ in range(steps):
        drafts: list[int] = []
        for _ in range(4):
            ahead = start("json_schema", json.dumps(PERSON), prompt)
            for token in taken + drafts:
                ahead.take(token)
            fitting = sorted(tokens_of(ahead.masks(())[0])) if ahead.error is None and not ahead.complete else [5]
            drafts.append(draw.choice([draw.choice(fitting), draw.choice(fitting), chat.think_ids[1], 7]))
        masks = constraint.masks(drafts)
        assert len(masks) == 5
        assert masks == constraint.masks(drafts)
        for count in range(5):
            ahead = start("json_schema", json.dumps(PERSON), prompt)
            for token in taken + drafts[:count]:
                ahead.take(token)
            if ahead.complete or ahead.error is not None:
                break
            if count and (drafts[count - 1] not in tokens_of(masks[count - 1]) or drafts[count - 1] in chat.eos_ids):
                break
            assert masks[count] == ahead.masks(())[0]
        token = draw.choice(sorted(tokens_of(masks[0]) - set(chat.eos_ids)) or [0])
        constraint.take(token)
        taken.append(token)
        assert constraint.error is None
        if constraint.complete:
            break


def test_forced_tokens_are_the_tokenizers_own() -> None:
    constraint = start("json_schema", json.dumps(PERSON))
    forced = constraint.forced()
    assert chat.decode(forced) == '{"name":'
    assert forced == list(chat.encode('{"name":'))
    for place, token in enumerate(forced):
        assert constraint.forced() == forced[place:]
        assert tokens_of(constraint.masks(())[0]) == {token}
        constraint.take(token)
    assert constraint.forced() == []


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"A","age":1,"pets":[]}',
        '{"name": "A", "age": 1, "pets": ["cat", "dog"]}',
        '{"name": "A","age":1,"pets": []}',
    ],
)
def test_json_may_have_a_blank_behind_colons_and_commas(text: str) -> None:
    assert json.loads(text)
    assert accepts("json_schema", json.dumps(PERSON), text)


@pytest.mark.parametrize(
    "text",
    ['{"name":  "A"', '{ "name":"A"', '{\n"name":"A"', '{"name" :"A"', '{"name":"A",  "age"', '{"name":"A","age":1\n'],
)  # fmt: skip
def test_json_has_no_other_blanks(text: str) -> None:
    constraint = start("json_schema", json.dumps(PERSON))
    for token in chat.encode_as_text(text):
        if token not in tokens_of(constraint.masks(())[0]):
            return
        constraint.take(token)
    pytest.fail("every token passed")


def test_any_json_object_and_nothing_else() -> None:
    assert accepts("json", "", '{"a": [1, {"b": null}], "c": "é\\n"}')
    assert not accepts("json", "", "[1]")
    assert not accepts("json", "", "12")


def test_the_end_passes_exactly_where_the_answer_may_end() -> None:
    constraint = start("regex", "ab*")
    assert not tokens_of(constraint.masks(())[0]) & chat.eos_ids
    constraint.take(chat.encode("a")[0])
    assert chat.eos_ids <= tokens_of(constraint.masks(())[0])
    assert not constraint.complete, "more may follow"


def test_special_tokens_and_padding_never_pass_as_text() -> None:
    for passing in (
        tokens_of(start("regex", r"(?s:.*)").masks(())[0]),
        tokens_of(start("regex", "<think>x").masks(())[0]),
    ):
        assert not passing & (set(chat.special_ids) - chat.eos_ids)
        assert max(passing) < 6144
    assert accepts("regex", "<think>x", "<think>x"), "as letters"


def test_a_lark_grammar_may_name_a_special_token() -> None:
    assert chat.tool_ids is not None
    assert tokens_of(start("lark", 'start: <tool_call> "x" </tool_call>').masks(())[0]) == {chat.tool_ids[0]}


def test_reasoning_is_free_but_for_its_end_without_an_answer() -> None:
    assert chat.think_ids is not None
    assert chat.tool_ids is not None
    constraint = start("regex", "yes|no", THINKING)
    kept_out = {*chat.eos_ids, chat.tool_ids[0]}
    everything = set(range(VOCAB))
    assert tokens_of(constraint.masks(())[0]) & everything == everything - kept_out
    assert constraint.forced() == []
    constraint.take(chat.encode("no")[0])
    masks = constraint.masks([*chat.encode("hm"), chat.think_ids[1]])
    assert tokens_of(masks[-2]) & everything == everything - kept_out
    answers, line_breaks = following([b"yes", b"no"], b""), {chat.encode("\n")[0], chat.encode("\n\n")[0]}
    assert tokens_of(masks[-1]) == answers | line_breaks
    assert not constraint.complete
    constraint.take(chat.think_ids[1])
    assert tokens_of(constraint.masks(())[0]) == answers | line_breaks


@pytest.mark.parametrize("breaks", ["", "\n", "\n\n"])
def test_line_breaks_of_the_closed_reasoning_are_no_part_of_the_answer(breaks: str) -> None:
    """As many as a text stream leaves out there, in whatever tokens; with speculation or without."""
    assert chat.think_ids is not None
    constraint = start("regex", "\n?yes", THINKING)
    spelled = [chat.encode("\n")[0]] * len(breaks)
    masks = constraint.masks([chat.think_ids[1], *spelled, *chat.encode("yes")])
    for token in (chat.think_ids[1], *spelled):
        assert token in tokens_of(constraint.masks(())[0])
        constraint.take(token)
    assert constraint.masks(())[0] == masks[1 + len(breaks)]
    assert constraint.forced() == []
    for token in chat.encode("yes"):
        assert token in tokens_of(constraint.masks(())[0])
        constraint.take(token)
    assert constraint.complete
    assert constraint.error is None


def test_a_compiled_grammar_is_kept_and_its_answers_do_not_know_of_each_other() -> None:
    compiler = GrammarCompiler(chat, VOCAB)
    first = compiler.compile(Grammar("regex", "abc|xyz"), TEXT)
    first.take(chat.encode("abc")[0])
    second = compiler.compile(Grammar("regex", "abc|xyz"), TEXT)
    assert tokens_of(second.masks(())[0]) == following([b"abc", b"xyz"], b"")
    for number in range(MOST_KEPT + 2):
        compiler.compile(Grammar("regex", f"{number}"), TEXT)
    assert len(compiler._kept) == MOST_KEPT


BOMB = {
    f"d{i}": {"allOf": [{"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}] * 3}
    for i in range(9)
}
REFUSED: dict[str, tuple[GrammarKind, str, str]] = {
    "a regex that is none": ("regex", "[a-", "unclosed character class"),
    "look-around": ("regex", "(?=a)b", "look-around"),
    "a back reference": ("regex", r"(a)\1", "backreferences"),
    "half a character": ("regex", "\ud800", "surrogates"),
    "a rule that is not there": ("lark", "start: foo", '"foo"'),
    "no rule at all": ("lark", "hello", "can not be used"),
    "two texts at once": ("lark", "start: A\nA: /a/ & /b/", "lets no answer pass"),
    "rules in a circle": ("lark", "start: a\na: b\nb: a", "lets no answer pass"),
    "a token that the model has not": ("lark", "start: <[99999]>", "99999"),
    "half a schema": ("json_schema", '{"type":', "can not be read"),
    "a schema that is a list": ("json_schema", "[1]", "object"),
    "an unknown type": ("json_schema", '{"type":"thing"}', "thing"),
    "a keyword that is not enforced": ("json_schema", '{"type":"object","if":{}}', '"if"'),
    "nothing to choose from": ("json_schema", '{"enum":[]}', "nsatisfiable"),
    "itself and nothing else": ("json_schema", '{"$ref":"#"}', "lets no answer pass"),
    "a schema of another host": ("json_schema", '{"$ref":"http://x.example/y"}', "http://x.example/y"),
    "a schema of 5,000 levels": ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000, "recursion limit"),
    "a schema of 6 to the 9": (
        "json_schema", json.dumps({"$defs": {**BOMB, "d9": {"type": "object"}}, "$ref": "#/$defs/d0"}), "too large",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_kept_to_is_refused_and_the_cause_named(name: str) -> None:
    kind, text, cause = REFUSED[name]
    with pytest.raises(BadRequestError, match=re.escape(cause)) as refusal:
        start(kind, text)
    assert refusal.value.param == "grammar"
    assert len(str(refusal.value)) < 600
    assert "<state>" not in str(refusal.value)


@pytest.mark.parametrize(
    ("request_", "cause"),
    [
        (Request((1,), grammar=Grammar("regex", "a" * (MAX_GRAMMAR_BYTES + 1))), "at most 65536"),
        (Request((1,), grammar=Grammar("json_schema")), "needs its text"),
        (Request((1,), grammar=Grammar("json"), ignore_eos=True), "ignore_eos"),
    ],
)
def test_requests_are_checked_before_anything_is_compiled(request_: Request, cause: str) -> None:
    with pytest.raises(BadRequestError, match=cause):
        request_.check(VOCAB)


def test_a_grammar_that_grows_too_complex_says_so() -> None:
    many = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(600)}}
    constraint = start("json_schema", json.dumps(many))
    drafts = chat.encode_as_text('{"p1": 1, "p2": 2}')
    masks = constraint.masks(drafts)
    assert constraint.error is not None
    assert "max is 2000" in constraint.error
    assert masks[-1] == b"\xff" * len(masks[-1]), "whatever is drawn there is never delivered"
    assert constraint.masks(()) == masks[:1]
    constraint.take(drafts[0])
    assert len(constraint.masks(())) == 1
    assert constraint.forced() == []
    assert not constraint.complete


def test_a_tokenizer_that_changes_a_texts_bytes_still_spells_what_is_forced() -> None:
    """Sentencepiece's way: a blank is put in front of every text, so that `abc` encodes to other bytes than its own."""
    vocab = {token: i for i, token in enumerate(["<unk>", "</s>", "▁", "a", "b", "c", "▁a", "ab", "▁ab", "d"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("▁", "a"), ("▁", "ab")], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Replace("▁", " ")
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    other = ChatFormat(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>"))
    constraint = GrammarCompiler(other, 16).compile(Grammar("regex", "abc[cd]"), (3,))
    made = b""
    while not constraint.complete:
        passing = tokens_of(constraint.masks(())[0])
        assert constraint.error is None
        token = min(passing)
        constraint.take(token)
        made += other.token_bytes(token)
    assert made == b"abcc"


def test_many_threads_may_compile_at_once() -> None:
    fresh = GrammarCompiler(chat, VOCAB)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: fresh.compile(Grammar("regex", f"{n}[ab]"), TEXT), range(40)))
    for number, constraint in enumerate(made):
        assert tokens_of(constraint.masks(())[0]) <= following([f"{number}a".encode(), f"{number}b".encode()], b"")


def test_the_host_side_never_imports_mlx() -> None:
    code = (
        "import sys, engine.grammar; sys.exit(any(m.split('.')[0] in ('mlx', 'mlx_lm', 'torch') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

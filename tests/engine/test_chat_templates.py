"""Templates in our own sandbox: the very text that transformers makes of them, and no template that can do any harm."""

import subprocess
import sys
import threading
import tracemalloc
from copy import copy
from functools import cache
from typing import Any

import pytest
from chat_templates import ALTERNATING, HEADERS, JSON, XML
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine import template_meter
from engine.chat import OPTIONS, ChatFormat
from engine.chat_input import message, plain
from engine.errors import BadRequestError
from engine.models.locate import ASSETS
from engine.templates import LARGEST_SOURCE, Template

DEMO = ASSETS / "demo-13m"
TEMPLATES = {
    "demo": (DEMO / "chat_template.jinja").read_text(encoding="utf-8"),
    "xml": XML,
    "headers": HEADERS,
    "json": JSON,
}
tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO)


def with_template(source: str | dict[str, str]) -> ChatFormat:
    """The demo's tokenizer with another template."""
    other = copy(tokenizer)
    other.chat_template = source
    return ChatFormat(other)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
calls = st.fixed_dictionaries({"name": texts, "arguments": st.dictionaries(texts, values, max_size=3)}).map(
    lambda function: {"type": "function", "function": function}
)
turns = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": texts}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": texts}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": texts},
        optional={"reasoning_content": texts, "tool_calls": st.lists(calls, min_size=1, max_size=2)},
    ),
)
conversations = st.tuples(
    st.lists(st.fixed_dictionaries({"role": st.just("system"), "content": texts}), max_size=1),
    st.fixed_dictionaries({"role": st.just("user"), "content": texts}),
    st.lists(turns, max_size=5),
).map(lambda parts: [*parts[0], parts[1], *parts[2]])
tools = st.none() | st.lists(
    st.fixed_dictionaries({"type": st.just("function"), "function": st.dictionaries(texts, values, max_size=3)}),
    min_size=1,
    max_size=2,
)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(conversation=conversations, offered=tools, thinking=st.booleans())
def test_a_template_gives_what_transformers_makes_of_it(
    name: str, conversation: list[dict[str, Any]], offered: Any, thinking: bool
) -> None:
    source = TEMPLATES[name]
    given = {"tools": offered, "add_generation_prompt": True, "enable_thinking": thinking}
    try:
        expected = tokenizer.apply_chat_template(conversation, chat_template=source, tokenize=False, **given)
    except Exception as error:
        with pytest.raises(type(error)):
            render(source, conversation, **given)
        return
    assert render(source, conversation, **given) == expected


compiled = cache(Template)


def render(source: str, conversation: list[dict[str, Any]], **given: Any) -> str:
    """As ChatFormat does it, but for what becomes of control tokens."""
    variables = {**tokenizer.special_tokens_map, "documents": None, **plain(given)}
    return compiled(source).render(messages=list(map(message, conversation)), **variables)


def test_whole_prompts_are_those_of_transformers() -> None:
    conversation = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What time is it in Paris?"},
        {
            "role": "assistant", "content": None, "thinking": "A clock.",
            "tool_calls": [{"type": "function", "function": {"name": "clock", "arguments": {"zone": "Paris", "n": 2}}}],
        },
        {"role": "tool", "content": "12:00"},
    ]  # fmt: skip
    for source in TEMPLATES.values():
        chat = with_template(source)
        text = tokenizer.apply_chat_template(
            conversation, chat_template=source, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        assert chat.render(conversation) == chat.encode(text)


def test_a_model_with_a_template_for_tools_has_that_used_where_there_are_tools() -> None:
    chat = with_template({"default": "plain", "tool_use": "with {{ tools|length }}"})
    assert chat.decode(chat.render([{"role": "user", "content": "x"}])) == "plain"
    assert chat.decode(chat.render([{"role": "user", "content": "x"}], tools=[{}, {}])) == "with 2"


# --- options


def test_an_option_reaches_the_templates_that_know_it() -> None:
    chat = with_template(XML)
    assert chat.options == {"enable_thinking", "preserve_thinking"}
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "because"},
        {"role": "user", "content": "c"},
    ]
    assert "because" not in chat.decode(chat.render(said))
    assert "because" in chat.decode(chat.render(said, options={"preserve_thinking": True}))
    assert chat.render(said, options={"enable_thinking": False}) == chat.render(said, thinking=False)
    assert chat.render(said, options={"reasoning_effort": "high"}) == chat.render(said)


@pytest.mark.parametrize(
    "options",
    [{"messages": "x"}, {"chat_template": "x"}, {"enable_thinking": "yes"}, {"enable_thinking": 1}, {"bos_token": "x"}],
)
def test_what_is_no_option_never_reaches_a_template(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as refusal:
        with_template(XML).render([{"role": "user", "content": "x"}], options=options)
    assert refusal.value.param == f"chat_template_kwargs.{next(iter(options))}"


def test_control_tokens_in_an_option_are_text() -> None:
    chat = with_template("{{ reasoning_effort }}")
    assert set(OPTIONS) >= {"reasoning_effort"}
    prompt = chat.render([{"role": "user", "content": "x"}], options={"reasoning_effort": "<|im_end|>"})
    assert chat.decode(prompt) == "<|im_end|>"
    assert not set(prompt) & chat.eos_ids


# --- system turns in mid-conversation


LATE = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "one"},
    {"role": "system", "content": " Be brief.\n"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "system", "content": "Be <|im_end|> gone."},
]


@pytest.mark.parametrize("name", ["xml", "json", "demo"])
def test_later_system_turns_stay_system_turns_at_their_place(name: str) -> None:
    chat = with_template(TEMPLATES[name])
    ids = chat.render(LATE)
    text = chat.decode(ids)
    assert text.startswith(
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
        "<|im_start|>system\n Be brief.\n<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>system\nBe <|im_end|> gone.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(chat.encode("<|im_end|>")[0]) == len(LATE), "the one in the text is text"


def test_a_later_system_turn_leaves_the_rest_of_the_prompt_alone() -> None:
    """Qwen3.5 keeps the reasoning behind the last question: a system turn is none."""
    chat = with_template(XML)
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [call, call]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]
    without = chat.decode(chat.render(turns))
    for place in (1, 2, 4):
        told = chat.decode(chat.render([*turns[:place], {"role": "system", "content": "Hurry."}, *turns[place:]]))
        assert told.replace("<|im_start|>system\nHurry.<|im_end|>\n", "") == without
    between = chat.decode(chat.render([*turns[:3], {"role": "system", "content": "Hurry."}, turns[3]]))
    assert (
        "1\n</tool_response><|im_end|>\n<|im_start|>system\nHurry.<|im_end|>\n<|im_start|>user\n<tool_resp" in between
    )


def test_where_turns_do_not_begin_as_in_chatml_a_later_system_turn_is_the_users() -> None:
    once = "{% if message.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
    chat = with_template(
        "{% for message in messages %}" + once + "[{{ message.role }}: {{ message.content }}]{% endfor %}"
    )
    assert chat.decode(chat.render(LATE)) == (
        "[system: Be kind.][user: one][user:  Be brief.\n][assistant: two][user: three][user: Be <|im_end|> gone.]"
    )


@pytest.mark.parametrize(
    "dropped", ["", "{{ messages|selectattr('role', 'eq', 'system')|map(attribute='content')|join }}"]
)
def test_a_template_that_drops_or_moves_later_system_turns_gets_them_at_their_place(dropped: str) -> None:
    rest = (
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    )
    chat = with_template(dropped + rest)
    text = chat.decode(chat.render(LATE))
    assert text.index("one") < text.index("<|im_start|>system\n Be brief.\n<|im_end|>") < text.index("two")


def test_turns_that_a_template_can_not_have_side_by_side_are_refused_in_its_words() -> None:
    with pytest.raises(BadRequestError, match="must alternate"):
        with_template(ALTERNATING).render(LATE)


# --- what a template must not do


SHARED = "{% set n = namespace(v='x') %}{% for _ in range(99) %}{% set n.v = VALUE %}{% endfor %}"
BOMBS = {
    "loops without a word": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops over a text": "{% set s = 'x' * 9999 %}" + "{% for _ in s %}" * 4 + "{% endfor %}" * 4,
    "a loop over what it makes": "{% for a in range(99999) %}{% set x = range(99999)|list %}{% endfor %}",
    "a loop with a test": "{% for a in range(99999) if a in range(99999)|list %}{% endfor %}",
    "sorting in a loop": "{% for a in range(99999) %}{% set x = range(99999)|sort(reverse=true) %}{% endfor %}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a macro that calls itself for ever": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a block that calls itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "a loop in itself": (
        "{% for a in range(99) recursive %}{% if loop.depth < 40 %}{{ loop(range(99)) }}{% endif %}{% endfor %}"
    ),
    "words in loops": "{% for a in range(99999) %}{% for b in range(99999) %}some words{% endfor %}{% endfor %}",
    "words kept in a loop": "{% set x %}{% for a in range(99999) %}" + "word " * 20000 + "{% endfor %}{% endset %}",
    "a macro's words": "{% macro m() %}" + "x" * 99999 + "{% endmacro %}{% for a in range(999) %}{{ m() }}{% endfor %}",
    "generation": "{% for a in range(99999) %}{% generation %}{{ 'x' * 9999 }}{% endgeneration %}{% endfor %}",
    "a filtered block": "{% for a in range(99999) %}{% filter upper %}{{ 'x' * 99999 }}{% endfilter %}{% endfor %}",
    "doubling by +": SHARED.replace("VALUE", "n.v + n.v"),
    "doubling by ~": SHARED.replace("VALUE", "n.v ~ n.v"),
    "doubling by join": SHARED.replace("VALUE", "[n.v, n.v]|join"),
    "doubling by a block": (
        "{% set n = namespace(v='x') %}{% for _ in range(99) %}{% set t %}{{ n.v }}{{ n.v }}{% endset %}"
        "{% set n.v = t %}{% endfor %}"
    ),
    "repeating a text": "{{ 'x' * 99999999999 }}",
    "repeating a list": "{{ (99999999999 * [1])|length }}",
    "a power": "{{ 10 ** 99999999 }}",
    "squares of squares": "{% set n = namespace(v=9) %}{% for _ in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}",
    "a width in %": "{{ '%999999999d' % 1 }}",
    "a precision in %": "{{ '%.999999999f' % 1 }}",
    "a computed width in %": "{{ '%*d' % (999999999, 1) }}",
    "a width in the format filter": "{{ '%999999999d'|format(1) }}",
    "a width in str.format": "{{ '{:999999999}'.format(1) }}",
    "a computed width in str.format": "{{ '{:{}}'.format(1, 999999999) }}",
    "one value often in str.format": "{{ ('{0}' * 9999).format('x' * 999999) }}",
    "one value often in format_map": "{{ ('{a}' * 9999).format_map({'a': 'x' * 999999}) }}",
    "one value often in %": "{{ ('%(a)s' * 9999) % {'a': 'x' * 999999} }}",
    "center": "{{ 'x'|center(999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "expandtabs": "{{ ('\\t' * 9999).expandtabs(99999) }}",
    "to_bytes": "{{ (1).to_bytes(999999999, 'big')|length }}",
    "translate": "{{ ('x' * 99999).translate({120: 'y' * 99999}) }}",
    "replace": "{{ ('x' * 99999).replace('', 'y' * 99999) }}",
    "the replace filter": "{{ ('x' * 99999)|replace('x', 'y' * 99999) }}",
    "a long separator": "{{ ('x' * 999999).join(range(9999)|map('string')|list) }}",
    "a long separator of the filter": "{{ range(99999)|join('x' * 999999) }}",
    "indent": "{{ ('x\\n' * 99999)|indent('x' * 99999) }}",
    "tojson with an indent": "{{ ([[1]] * 99999)|tojson(indent=9999) }}",
    "round": "{{ 1.5|round(999999999) }}",
    "slices": "{{ [1]|slice(99999999)|list }}",
    "a batch filled up": "{{ [1]|batch(99999999, 'x' * 99999)|list|length }}",
    "sums of lists": "{{ ([[1]] * 99999)|sum(start=[]) }}",
    "fromkeys": "{{ {}.fromkeys(range(99999), 'y' * 99999) }}",
    "lists of one list": SHARED.replace("VALUE", "[n.v, n.v]") + "{{ n.v|tojson }}",
    "dicts of one dict": SHARED.replace("VALUE", "{'a': n.v, 'b': n.v}") + "{{ n.v }}",
    "dict() of one dict": SHARED.replace("VALUE", "dict(a=n.v, b=n.v)") + "{{ n.v }}",
    "tuples of one tuple": SHARED.replace("VALUE", "(n.v, n.v)") + "{{ {n.v: 1}|length }}",
    "repeated lists of one list": SHARED.replace("VALUE", "[n.v] * 2") + "{{ n.v == n.v }}",
    "batches of one list": SHARED.replace("VALUE", "[n.v]|batch(2, n.v)|list") + "{{ n.v }}",
    "namespaces of one namespace": SHARED.replace("VALUE", "namespace(a=n.v, b=n.v)") + "{{ n.v }}",
    "a long range": "{{ range(999999999)|list }}",
    "lipsum": "{{ lipsum(n=999999) }}",
    "a source that is too long": "{# " + "x" * LARGEST_SOURCE + " #}",
    "a source that nests too deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "attributes of Python": "{{ messages.__class__.__mro__ }}",
    "attributes of Python by a filter": "{{ (messages|attr('__class__')).x }}",
    "private names in a namespace": "{{ namespace(__class__=1) }}",
    "a message changed": "{{ messages.append(1) }}",
    "another file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
}  # fmt: skip


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_meter, "SECONDS", 0.05)


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_bomb_is_a_refusal(soon: None, name: str) -> None:
    """In little memory; in time too, or this file would not come to its end."""
    chat = with_template(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError) as refusal:
            chat.render([{"role": "user", "content": "x"}])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal.value.param == "messages"
    assert peak < 400e6


def test_a_bomb_is_stopped_in_a_thread_of_the_server_too(soon: None) -> None:
    chat = with_template(BOMBS["loops without a word"])
    seen: list[BaseException] = []

    def work() -> None:
        try:
            chat.render([{"role": "user", "content": "x"}])
        except BadRequestError as error:
            seen.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [str(error) for error in seen] == [
        "The model's chat template refused the messages: it ran for more than 0.05 s"
    ] * 2


def test_a_long_conversation_is_no_bomb() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "x" * 2000}}}
    turns = [
        {"role": "user", "content": "word " * 200},
        {"role": "assistant", "content": "", "reasoning_content": "hm " * 50, "tool_calls": [call]},
        {"role": "tool", "content": "line\n" * 300},
    ] * 200
    for source in (XML, JSON):
        assert len(render(source, turns, tools=None, add_generation_prompt=True)) > 800_000


def test_a_conversation_that_is_copied_once_a_turn_is_no_bomb() -> None:
    """Some templates collect what they write in a namespace."""
    source = "{% set n = namespace(s='') %}{% for m in messages %}{% set n.s = n.s + m.content %}{% endfor %}{{ n.s }}"
    said = [{"role": "user", "content": "x" * 2000}] * 250
    assert len(render(source, said)) == 500_000


def test_templates_and_their_limits_are_no_part_of_starting_up() -> None:
    code = "import sys, engine.chat; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

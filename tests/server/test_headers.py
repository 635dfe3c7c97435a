import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.headers import IGNORED_FIELDS, ignored_header, source


@pytest.mark.parametrize(
    ("user_agent", "who"),
    [
        ("OpenAI/Python 2.54.0", "api:openai-python"),
        ("OpenAI/JS 6.49.0", "api:openai-js"),
        ("opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14", "api:opencode"),
        ("pydantic-ai/2.68.0", "api:pydantic-ai"),
        ("claude-cli/2.1.197 (external, cli)", "api:claude-cli"),
        ("curl/8.5.0", "api:curl"),
        ("Mozilla/5.0 (X11; Linux x86_64)", "api:mozilla"),
        ("", "api"),
        ("\x1b[31mred", "api"),
    ],
)
def test_source_is_the_clients_short_name(user_agent: str, who: str) -> None:
    assert source(user_agent) == who


@given(st.text())
def test_source_is_always_safe_for_a_screen(user_agent: str) -> None:
    who = source(user_agent)
    assert who.isascii()
    assert who.isprintable()
    assert len(who) <= 34
    assert not set(who) & set("[]<>\\\x1b")


@given(st.lists(st.text(), min_size=1, max_size=100))
def test_ignored_header_is_always_one_short_line(names: list[str]) -> None:
    line = ignored_header(names)[IGNORED_FIELDS]
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= 20 * 42


def test_nothing_ignored_is_no_header() -> None:
    assert ignored_header([]) == {}

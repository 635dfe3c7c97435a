"""Text that others wrote, made fit for a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx_tui.glyphs import ASCII, UNICODE, clean, mask, one_line


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x9b31mred", "\ufffd31mred"),
        ("a\r\nb", "a\nb"),
        ("a\rb", "a␍b"),
        ("\tx", "    x"),
        ("abc\u202etxt.exe", "abc\ufffdtxt.exe"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("[/x] [bold]", "[/x] [bold]"),
        ("日本語 e\u0301 👩‍💻", "日本語 e\u0301 👩‍💻"),
    ],
)
def test_unsafe_characters_are_shown_and_others_kept(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_drives_a_terminal_is_left(text: str) -> None:
    for glyphs in (UNICODE, ASCII):
        shown = clean(text, glyphs)
        assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in shown)
        shown.encode("utf-8")


@given(st.text(st.characters(exclude_categories=())))
def test_masking_keeps_every_place(text: str) -> None:
    assert len(mask(text)) == len(text)


def test_one_line_marks_newlines() -> None:
    assert one_line("a\nb") == "a⏎b"
    assert one_line("a\nb", ASCII) == "a\\b"


def test_every_ascii_shape_is_ascii_and_every_shape_is_one_cell() -> None:
    from rich.cells import cell_len

    for name in ASCII.__slots__:
        value = getattr(ASCII, name)
        assert all(part.isascii() for part in value), name
        if name not in ("name", "ellipsis", "arrow", "eighths", "levels", "box", "hidden"):
            assert cell_len(value) == cell_len(getattr(UNICODE, name)) == 1, name

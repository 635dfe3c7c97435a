"""Wrapping, Markdown, code and tables, as lines of spans."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtplx_tui.glyphs import ASCII, UNICODE, clean
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.growing import FENCE_CHUNK, GrowingMarkdown
from mtplx_tui.layout.growing_text import GrowingText
from mtplx_tui.layout.markdown import lines_of, parse
from mtplx_tui.layout.spans import Line, fit, plain, spread, width_of, wrap


def texts(lines: list[Line]) -> list[str]:
    return [plain(line) for line in lines]


def whole(source: str, width: int = 60) -> list[str]:
    return texts(lines_of(parse(source, {}), width, UNICODE))


def grown(source: str, pieces: list[int], width: int = 60) -> list[str]:
    """The source appended piece by piece, laid out each time, as a stream is."""
    text, start = GrowingMarkdown(), 0
    for length in pieces:
        text.append(source[start : start + length])
        text.lay_out(width, UNICODE)
        start += length
    text.append(source[start:])
    text.finish()
    return texts([*text.lay_out(width, UNICODE)[0], *text.lay_out(width, UNICODE)[1]])


class TestWrap:
    def test_breaks_at_spaces_and_keeps_roles(self) -> None:
        assert wrap([("one two ", ""), ("three", "strong"), (" four", "")], 9) == [
            (("one two", ""),),
            (("three", "strong"),),
            (("four", ""),),
        ]

    def test_words_of_several_roles_stay_together(self) -> None:
        assert texts(wrap([("aa b", ""), ("ol", "strong"), ("d", "")], 5)) == ["aa", "bold"]

    def test_wide_characters_count_two(self) -> None:
        assert texts(wrap([("日本語テキスト", "")], 5)) == ["日本", "語テ", "キス", "ト"]

    def test_indent_is_kept_where_asked(self) -> None:
        assert texts(wrap([("  x\n    y", "")], 20, keep_indent=True)) == ["  x", "    y"]
        assert texts(wrap([("  x", "")], 20)) == ["x"]

    @given(st.text("ab 日\n", max_size=60), st.integers(2, 12))
    def test_no_line_is_too_wide_and_no_character_is_lost(self, text: str, width: int) -> None:
        lines = wrap([(text, "")], width)
        assert all(width_of(line) <= width for line in lines)
        assert "".join(texts(lines)).replace(" ", "") == text.replace(" ", "").replace("\n", "")


class TestFit:
    def test_cuts_with_an_ellipsis(self) -> None:
        assert plain(fit((("hello", ""), (" world", "strong")), 8, "…")) == "hello w…"
        assert plain(fit((("short", ""),), 8, "…")) == "short"

    @given(st.text("a日", max_size=20), st.integers(0, 12))
    def test_never_wider(self, text: str, width: int) -> None:
        assert width_of(fit(((text, ""),), width, "…")) <= width

    def test_spread_fills_the_line(self) -> None:
        line = spread((("left", ""),), (("right", ""),), 20, "…")
        assert plain(line) == "left" + " " * 11 + "right"


class TestMarkdown:
    def test_html_and_markup_are_text(self) -> None:
        assert whole("a <b>bold</b> [/x] <script>") == ["a <b>bold</b> [/x] <script>"]
        assert whole("<div>\nblock\n</div>") == ["<div>", "block", "</div>"]

    def test_a_link_shows_where_it_leads(self) -> None:
        assert whole("[bank](http://evil.example)") == ["bank (http://evil.example)"]

    def test_single_newlines_break(self) -> None:
        assert whole("roses\nviolets") == ["roses", "violets"]

    def test_lists_nest_and_wrap_under_their_text(self) -> None:
        assert whole("1. one two three\n   - four", 15) == ["1. one two", "   three", "   • four"]

    def test_a_fence_is_framed_with_its_language_and_folds(self) -> None:
        assert whole("```python\nx = 1\n```", 20) == [
            "┌ python ─────────┐"[:9] + "─" * 10 + "┐",
            "│ x = 1            │",
            "└──────────────────┘",
        ]
        assert "".join(line[2:-2].strip() for line in whole("```\n" + "x" * 40 + "\n```", 20)[1:-1]) == "x" * 40

    def test_tables_fit_narrow_screens(self) -> None:
        lines = whole("| a | b |\n|---|---|\n| one two three | x |", 14)
        assert all(len(line) <= 14 for line in lines)
        assert "three" in "".join(lines)

    def test_ascii_draws_ascii(self) -> None:
        source = "# h\n\n- a\n\n> q\n\n```py\nx\n```\n\n| a | b |\n|-|-|\n| 1 | 2 |\n\n---"
        assert all(text.isascii() for text in texts(lines_of(parse(source, {}), 30, ASCII)))

    @settings(deadline=None)
    @given(st.text("ab \n#*-_`>|[]()!0123.~<&\\:日", max_size=120), st.integers(10, 40))
    @example("> " * 80 + "x", 20)
    @example("- " * 80 + "x", 20)
    @example("[" * 60 + "](x)", 20)
    def test_no_input_fails_or_is_drawn_too_wide(self, source: str, width: int) -> None:
        assert all(width_of(line) <= width for line in lines_of(parse(source, {}), width, UNICODE))


class TestGrowing:
    SOURCE = (
        "# Title\n\nSome *words* and `code`\nmore\n\n1. one\n2. two\n   - nested\n\n```python\ndef f():\n\n"
        "    return 1\n```\n\n> quote\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd [ref][r].\n\n[r]: http://example.com\n"
    )

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
    def test_a_stream_ends_as_the_whole_text_does(self, size: int) -> None:
        assert grown(self.SOURCE, [size] * (len(self.SOURCE) // size)) == whole(self.SOURCE)

    @settings(deadline=None)
    @given(st.text("ab \n#*-_`>|0123.~=", max_size=150), st.lists(st.integers(1, 20), max_size=40))
    def test_the_way_it_is_cut_leaves_no_trace(self, source: str, pieces: list[int]) -> None:
        assert grown(source, pieces) == grown(source, [])

    def test_a_fence_never_breaks_while_it_streams(self) -> None:
        """Textual's Markdown, updated and then appended to, splits a fence in two."""
        source = "Before:\n\n```python\n" + "\n".join(f"line_{n} = {n}" for n in range(100)) + "\n```\n\nafter"
        text = GrowingMarkdown()
        for at in range(0, len(source), 5):
            text.append(source[at : at + 5])
            settled, last = text.lay_out(50, UNICODE)
            lines = texts([*settled, *last])
            assert sum(line.startswith("┌") for line in lines) <= 1
            assert sum(line.startswith("└") for line in lines) == sum(line.startswith("┌") for line in lines)
            assert [line for line in lines if line.startswith("after")] == [] or lines[-1].startswith("after")
        text.finish()
        settled, last = text.lay_out(50, UNICODE)
        body = [line[2:-2].rstrip() for line in texts([*settled, *last]) if line.startswith("│")]
        assert body == [f"line_{n} = {n}" for n in range(100)]

    def test_an_open_fence_longer_than_a_chunk_keeps_every_line(self) -> None:
        code = [f"x{n}" for n in range(3 * FENCE_CHUNK + 5)]
        text = GrowingMarkdown("```\n" + "\n".join(code[:40]))
        text.lay_out(30, UNICODE)
        text.append("\n" + "\n".join(code[40:]))
        settled, last = text.lay_out(30, UNICODE)
        assert [line[2:-2].rstrip() for line in texts([*settled, *last])[1:-1]] == code

    def test_a_marker_alone_is_held_back_so_that_a_paragraph_does_not_flash_as_a_heading(self) -> None:
        text = GrowingMarkdown("A list:\n-")
        assert text.lay_out(40, UNICODE)[1] == [(("A list:", ""),)]
        text.append(" item")
        assert texts(text.lay_out(40, UNICODE)[1]) == ["", "• item"]
        text = GrowingMarkdown("A rule\n-")
        text.finish()
        assert text.lay_out(40, UNICODE)[1] == [(("A rule", "heading"),)]

    def test_settled_lines_are_the_same_objects(self) -> None:
        text = GrowingMarkdown("one\n\ntwo\n\nthree")
        first = list(text.lay_out(40, UNICODE)[0])
        text.append(" more\n\nfour")
        second = text.lay_out(40, UNICODE)[0]
        assert all(a is b for a, b in zip(first, second, strict=False))

    def test_a_new_width_lays_out_everything_again(self) -> None:
        text = GrowingMarkdown("one two three\n\nfour five six")
        text.lay_out(40, UNICODE)
        assert texts([*text.lay_out(9, UNICODE)[0]]) == ["one two", "three"]

    @settings(deadline=None)
    @given(st.lists(st.text("abé ,.'日", max_size=15), max_size=12), st.integers(10, 16))
    def test_prose_is_drawn_without_a_parser_as_with_it(self, pieces: list[str], width: int) -> None:
        text = GrowingMarkdown("Once")
        for piece in pieces:
            text.append(piece)
            settled, last = text.lay_out(width, UNICODE)
            assert [*settled, *last] == lines_of(parse(text.source, {}), width, UNICODE)

    @given(st.lists(st.text("ab \n", max_size=15), max_size=12), st.integers(3, 10))
    def test_plain_text_grows_to_what_it_is_at_once(self, pieces: list[str], width: int) -> None:
        text = GrowingText("", "")
        for piece in pieces:
            text.append(piece)
            text.lay_out(width)
        assert text.lay_out(width) == GrowingText("".join(pieces), "").lay_out(width)

    def test_cleaned_escape_sequences_are_drawn_as_pictures(self) -> None:
        assert whole(clean("x \x1b[31mred\x1b]0;t\x07")) == ["x ␛[31mred␛]0;t␇"]


def test_words_in_an_edge_never_make_a_box_wider() -> None:
    for width in (12, 30, 40):
        box = framed([(("x" * 50, ""),)], width, 4, UNICODE, "a title that is long " * 3, "and a note " * 5)
        assert [width_of(line) for line in box] == [width] * 4
        assert "…" in plain(box[0])
        assert "…" in plain(box[-1])

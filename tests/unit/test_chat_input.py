"""What is typed into the message box and is no message: commands, settings, files."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter

from mtplx_tui.attachments import AttachError, as_sent, read
from mtplx_tui.options_of_chat import OptionError, changed
from mtplx_tui.slash import COMMANDS, as_message, completed, matching, parse


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/new", "new", ""),
        ("/rename  my chat ", "rename", "my chat"),
        ("/set temperature 0.2", "set", "temperature 0.2"),
        ("/exp json", "export", "json"),
        ("/settings", "settings", ""),
    ],
)
def test_a_command_has_a_name_and_an_argument(text: str, name: str, argument: str) -> None:
    found = parse(text)
    assert found is not None
    assert found[0] is not None
    assert (found[0].name, found[1]) == (name, argument)


@pytest.mark.parametrize("text", ["hello", " /new", "//new is a path", "what does /new do?", ""])
def test_any_other_text_is_a_message(text: str) -> None:
    assert parse(text) is None
    assert matching(text) == []


@pytest.mark.parametrize("text", ["/etc/passwd is a file", "/e is a file", "/ is a file"])
def test_an_unknown_command_is_one_all_the_same(text: str) -> None:
    assert parse(text) == (None, "is a file")


def test_two_slashes_send_one() -> None:
    assert as_message("//etc/passwd") == "/etc/passwd"
    assert as_message("/x") == "/x"


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [("/ren", "/rename "), ("/ne", "/new"), ("/se", "/se"), ("/h", "/h"), ("/he", "/help"), ("/zzz", "/zzz"),
     ("/set temp", "/set temp"), ("hi", "hi"), ("/e", "/e"), ("/ed", "/editor")],
)  # fmt: skip
def test_completion_goes_as_far_as_there_is_one_way(typed: str, becomes: str) -> None:
    assert completed(typed) == becomes


def test_every_command_is_found_by_its_own_name() -> None:
    assert all(command in matching("/" + command.name) for command in COMMANDS)


class TestOptions:
    def test_they_are_set_and_taken_back(self) -> None:
        options = changed({}, "temperature", "0.2")
        options = changed(options, "top_k", "40")
        assert options == {"temperature": 0.2, "top_k": 40}
        assert changed(options, "temperature", "") == {"top_k": 40}

    @pytest.mark.parametrize(
        ("name", "text"),
        [("temperature", "hot"), ("temperature", "3"), ("temperature", "nan"), ("top_k", "1.5"), ("top_p", "0"),
         ("max_tokens", "0"), ("colour", "red"), ("seed", "x"), ("min_p", "inf")],
    )  # fmt: skip
    def test_what_can_not_be_is_said(self, name: str, text: str) -> None:
        with pytest.raises(OptionError, match=name):
            changed({}, name, text)


class TestFiles:
    @pytest.mark.parametrize("data", ["héllo\n".encode(), "héllo\n".encode("utf-8-sig"), "héllo\n".encode("utf-16")])
    def test_text_in_each_usual_encoding(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "a.py").write_bytes(data)
        assert read(str(tmp_path / "a.py")) == ("a.py", "héllo\n")

    def test_a_path_in_quotes_and_from_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "my file.txt").write_text("x")
        assert read("'~/my file.txt'") == ("my file.txt", "x")

    @pytest.mark.parametrize(
        ("name", "data", "why"),
        [("a.png", b"\x89PNG\r\n\x1a\n\x00\x00", "no text"), ("a.bin", b"a\x00b", "no text"),
         ("a.txt", b"  \n", "no text"), ("a.pdf", b"%PDF-1.7 broken", "can not be read as a PDF")],
    )  # fmt: skip
    def test_what_is_no_text_is_said(self, tmp_path: Path, name: str, data: bytes, why: str) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(AttachError, match=why):
            read(str(tmp_path / name))

    def test_a_pdf_without_text_is_said(self, tmp_path: Path) -> None:
        writer, out = PdfWriter(), io.BytesIO()
        writer.add_blank_page(100, 100)
        writer.write(out)
        (tmp_path / "a.pdf").write_bytes(out.getvalue())
        with pytest.raises(AttachError, match="no text"):
            read(str(tmp_path / "a.pdf"))

    @pytest.mark.parametrize("path", ["/no/such/file", "/", "~nobody/x", "a\x00b"])
    def test_what_is_not_there_is_said(self, path: str) -> None:
        with pytest.raises(AttachError):
            read(path)

    @given(st.text())
    def test_its_own_text_can_not_end_the_fence(self, text: str) -> None:
        sent = as_sent("a.md", text)
        _, fence, *_ = sent.split("\n")
        assert fence.strip("`") == ""
        assert sent.rstrip("\n").endswith(fence)
        assert fence not in text

"""The tools of the chat by themselves, and calls as they are read from an answer."""

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from engine.events import Span
from mtplx_tui.tools.arithmetic import calculate
from mtplx_tui.tools.errors import ToolError
from mtplx_tui.tools.files import MOST_BYTES, MOST_CHARACTERS, chosen_folder, read
from mtplx_tui.tools.heard import Heard
from mtplx_tui.tools.toolbox import Toolbox

CALL = '{"name": "calculator", "arguments": {"expression":  "47 + 85"}}'


def refused(work: object, *given: object) -> str:
    with pytest.raises(ToolError) as caught:
        work(*given)  # type: ignore[operator]
    return str(caught.value)


def test_arithmetic_is_right_and_exact() -> None:
    for expression, value in {
        "47 + 85": "132", "2 + 3 * 4": "14", "(2 + 3) * 4": "20", "-2^2": "-4", "2 ** 3 ** 2": "512", "2^-1": "0.5",
        "7 // 2": "3", "7 % 4": "3", "0.1 + 0.2": "0.3", "2^200": str(2**200), "1_000 × 3 − 1": "2999",
        ".5 ÷ 2": "0.25",
        "sqrt(16) + abs(-3)": "7", "max(1, 2, 3)": "3", "round(2.567, 2)": "2.57", "round(1234, -2)": "1200",
        "1e3": "1000", "floor(-1.5)": "-2", "round(1, -1000000000)": "0",
    }.items():  # fmt: skip
        assert calculate(expression) == value, expression


def test_arithmetic_does_nothing_else_and_nothing_endless() -> None:
    for expression, said in {
        "__import__('os')": "can not stand", "a.b": "can not stand", "1; 2": "can not stand", "": "too early",
        "9^9^9^9": "too large", "10^5000": "too large", "1e400": "too large", "2^4000 * 2^4000": "too large",
        "1 / 0": "zero", "(-8)^0.5": "no real value", "sqrt(-1)": "no value", "(1": "not closed", "1 2": "not expected",
        "(" * 60 + "1" + ")" * 60: "nested", "2^" * 60 + "2": "nested", "1" * 501: "501 characters", "foo(1)": "sqrt",
    }.items():  # fmt: skip
        assert said in refused(calculate, expression), expression


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("héllo\n", encoding="utf-8")
    (folder / "sub" / "b.md").write_text("# B\n")
    (folder / ".env").write_text("SECRET=1")
    (tmp_path / "outside.txt").write_text("not yours")
    return chosen_folder(str(folder))


def test_files_of_the_folder_are_read_and_folders_listed(folder: Path) -> None:
    assert read(folder, "a.txt") == "héllo\n"
    assert read(folder, "sub/../sub/b.md") == "# B\n"
    assert read(folder, str(folder / "a.txt")) == "héllo\n"
    assert read(folder, ".") == "a.txt, sub/"
    (folder / "link.txt").symlink_to("a.txt")
    assert read(folder, "link.txt") == "héllo\n"


def test_nothing_outside_the_folder_and_nothing_odd_is_read(folder: Path, tmp_path: Path) -> None:
    (folder / "out").symlink_to(tmp_path / "outside.txt")
    (folder / "up").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "binary").write_bytes(b"a\x00b")
    (folder / "latin").write_bytes("é".encode("latin-1"))
    with (folder / "huge").open("wb") as huge:
        huge.truncate(MOST_BYTES + 1)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "sock"))
    for path, said in {
        "../outside.txt": "outside", "/etc/passwd": "outside", "out": "outside", "up/outside.txt": "outside",
        ".env": "hidden", "sub/../.env": "hidden", "pipe": "no ordinary file", "sock": "can not be read",
        "loop": "can not be read", "missing": "a.txt, binary", "a\x00b": "can not be read", "binary": "no text",
        "latin": "no text in UTF-8", "huge": "at most", "a.txt/b": "can not be read",
    }.items():  # fmt: skip
        assert said in refused(read, folder, path), path
    assert "is no folder" in refused(chosen_folder, str(folder / "a.txt"))
    assert "is no folder" in refused(chosen_folder, str(folder / "nope"))


def test_a_long_file_comes_in_parts_that_join(folder: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(1, 4001))
    (folder / "long").write_text(text)
    part, _, rest = read(folder, "long").partition("[cut here; 4,000 lines in all, the next one is first_line ")
    assert 0 < len(part) <= MOST_CHARACTERS
    again = read(folder, "long", int(rest.rstrip("]")))
    assert text.startswith(part + again.partition("[cut")[0])
    assert "lines 1 to 4000" in refused(read, folder, "long", 4001)


def test_a_toolbox_tells_what_it_has_and_refuses_the_rest(folder: Path) -> None:
    box = Toolbox(folder, lambda: datetime(2026, 1, 5, 16, 2, tzinfo=UTC))
    assert list(box.named) == ["calculator", "current_time", "read_file"]
    assert box.run("calculator", '{"expression": "47 + 85"}') == "132"
    assert box.run("current_time", '{"timezone": "Asia/Tokyo"}') == "Tuesday, 2026-01-06 01:02:00 +0900 (Asia/Tokyo)"
    assert box.run("current_time", "").startswith("Monday, 2026-01-05") or box.run("current_time", "{}")
    assert box.run("read_file", '{"path": "a.txt", "first_line": 1}') == "héllo\n"
    for name, arguments, said in [
        ("current_time", '{"timezone": "../../etc/passwd"}', "no time zone"), ("calculator", "{}", "missing"),
        ("calculator", '{"expression": 3}', "must be a text"), ("calculator", "[]", "JSON object"),
        ("read_file", '{"path": "a.txt", "first_line": "2"}', "whole number"), ("shell", "{}", "no tool 'shell'"),
    ]:  # fmt: skip
        assert said in refused(box.run, name, arguments)
    bare = Toolbox(None, datetime.now)
    assert list(bare.named) == ["calculator", "current_time"]
    assert "no tool" in refused(bare.run, "read_file", '{"path": "/etc/passwd"}')


def heard(spans: list[Span], reason: str = "stop") -> tuple[str, list[tuple[str, str]]]:
    ear = Heard(Toolbox(None, datetime.now).named, "r1")
    said = ear.take(spans) + ear.end(reason)  # type: ignore[arg-type]
    return "".join(span.text for span in said), [(call.name, call.arguments) for call in ear.calls]


def test_calls_are_told_from_text_byte_for_byte_however_they_are_cut() -> None:
    xml = "\n<function=calculator>\n<parameter=expression>\n47 + 85\n</parameter>\n</function>\n"
    for text, arguments in ((CALL, '{"expression":  "47 + 85"}'), (xml, '{"expression":"47 + 85"}')):
        whole = [Span("text", "Let me see."), Span("tool", text, opens=True), Span("text", "", opens=True)]
        letters = [Span("text", c) for c in "Let me see."] + [Span("tool", "", opens=True)]
        letters += [Span("tool", c) for c in text] + [Span("text", "", opens=True)]
        for spans in (whole, letters):
            assert heard(spans) == ("Let me see.", [("calculator", arguments)])
    two = [Span("tool", CALL, opens=True), Span("tool", CALL, opens=True)]
    assert len(heard(two)[1]) == 2


def test_what_is_no_call_is_text() -> None:
    for text in ('{"name": "shell", "arguments": {}}', "rm -rf", '{"name": "calculator"', "<function=shell>", ""):
        said, calls = heard([Span("tool", text, opens=True), Span("text", "", opens=True)])
        assert (said, calls) == (f"<tool_call>{text}</tool_call>", []), text
    cut = '{"name": "calculator", "arguments": {"expression": "4'
    said, calls = heard([Span("text", "a"), Span("tool", cut, opens=True)], "length")
    assert (said, calls) == ("a<tool_call>" + cut, [])

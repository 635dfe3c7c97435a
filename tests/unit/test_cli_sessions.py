"""`mtplx-tui sessions`: what it says of a real file of chats, also of a locked, damaged or absent one."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest

from mtplx_tui import paths, store_file
from mtplx_tui.cli import run
from mtplx_tui.store import Store


@pytest.fixture
def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of two chats; the second is the last used, and its answer holds an escape sequence."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    paths.sessions_file().parent.mkdir(parents=True, exist_ok=True)
    store = Store(paths.sessions_file())
    for question, answer in (("What is 47 + 85?", "132"), ("Tell a Story", "Once \x1b[31mred\x1b[0m was")):
        made = store.new_session("demo-13m")
        store.add_message(made, "user", question)
        store.add_message(made, "assistant", answer, "I think", finish_reason="stop")
    store.close()
    return paths.sessions_file()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(["sessions", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(["sessions", *arguments])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return code, printed.err


def test_chats_are_listed_found_shown_renamed_and_deleted(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, listed = said(capsys, "list")
    assert code == 0
    assert [(row["id"], row["title"], row["messages"]) for row in listed["sessions"]] == [
        (2, "Tell a Story", 2),
        (1, "What is 47 + 85?", 2),
    ]
    assert [row["id"] for row in said(capsys, "list", "--limit", "1")[1]["sessions"]] == [2]
    assert [row["id"] for row in said(capsys, "search", "sTORY")[1]["sessions"]] == [2]
    assert [row["id"] for row in said(capsys, "search", "132")[1]["sessions"]] == [1]
    assert said(capsys, "search", "%")[1]["sessions"] == []
    _, shown = said(capsys, "show", "2")
    assert shown["messages"][1] == shown["messages"][1] | {
        "content": "Once \x1b[31mred\x1b[0m was",
        "reasoning": "I think",
    }
    assert said(capsys, "rename", "1", "Sums") == (0, {"id": 1, "title": "Sums"})
    assert said(capsys, "delete", "2", "--yes") == (0, {"deleted": 2})
    assert run(["sessions", "list"]) == 0
    assert capsys.readouterr().out.split()[-3:] == ["messages", "Sums", "(demo-13m)"]


def test_every_command_explains_itself_and_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("sessions", "sessions list", "sessions search", "sessions show", "sessions export",
                    "sessions rename", "sessions delete", "screenshot", "doctor"):  # fmt: skip
        assert run([*command.split(), "--help"]) == 0
        text = capsys.readouterr().out
        assert f"mtplx-tui {command}" in text
        assert "Exit codes: 0 done" in text
        assert ("--json" in text) == (command != "sessions")


def test_an_export_is_a_document_and_writes_over_nothing(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.md"
    assert said(capsys, "export", "1", "-o", str(file)) == (0, {"id": 1, "format": "md", "file": str(file)})
    text = file.read_text()
    assert text.startswith("# What is 47 + 85?\n")
    assert "## Model\n\n> Thinking:\n>\n> I think\n\n132\n" in text
    code, why = refused(capsys, "export", "2", "-o", str(file))
    assert (code, file.read_text()) == (2, text)
    assert "is there already, and nothing was written" in why
    assert run(["sessions", "export", "1", "--format", "json"]) == 0
    assert [message["role"] for message in json.loads(capsys.readouterr().out)["messages"]] == ["user", "assistant"]
    code, why = refused(capsys, "export", "1", "-o", str(tmp_path / "no" / "such" / "folder.md"))
    assert (code, "No such file or directory" in why) == (3, True)


def test_a_terminal_is_asked_before_a_chat_is_deleted_and_obeys_nothing_that_a_model_said(chats: Path) -> None:
    def command(*arguments: str) -> "pexpect.spawn[str]":
        return pexpect.spawn(sys.executable, ["-m", "mtplx_tui", "sessions", *arguments], encoding="utf-8", timeout=60)

    asks = command("delete", "2")
    asks.expect("Delete chat 2, Tell a Story")
    asks.sendline("n")
    asks.expect("nothing was deleted")
    asks.expect(pexpect.EOF)
    shows = command("show", "2")
    shows.expect(pexpect.EOF)
    assert "Once ␛[31mred␛[0m was" in shows.before
    assert "\x1b" not in shows.before


def test_what_can_not_be_done_is_a_plain_line(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, words in (
        (["delete", "2"], 2, "There is no terminal to ask on; nothing was deleted"),
        (["show", "7"], 3, "There is no saved chat number 7."),
        (["rename", "7", "x"], 3, "There is no saved chat number 7."),
        (["show", "one"], 2, "ID is 'one'"),
        (["show", "0"], 2, "ID is '0'"),
        (["search", " "], 2, "TEXT is empty"),
    ):
        assert (found := refused(capsys, *arguments))[0] == code, found
        assert words in found[1]


def test_without_a_file_there_are_no_chats_and_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert said(capsys, "list") == (0, {"sessions": []})
    assert refused(capsys, "show", "1") == (3, "There is no saved chat number 1; none was saved yet.\n")
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named_and_left_as_it_is(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for damage in (b"no database at all" * 400, chats.read_bytes()[:4096] + b"\xff" * 8192):
        chats.write_bytes(damage)
        code, why = refused(capsys, "list")
        assert code == 3
        assert f"The saved chats in {chats} are damaged" in why
        assert "left as it is" in why
        assert chats.read_bytes() == damage
        assert not list(chats.parent.glob("*damaged*"))


def test_a_locked_file_is_waited_for_and_then_named(
    chats: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store_file, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(chats, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        code, why = refused(capsys, "rename", "1", "x")
    assert code == 3
    assert f"Another program holds {chats} locked" in why


def test_a_shell_completes_names_without_loading_a_model(
    chats: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(line: str, shell: str = "bash") -> dict[str, str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_TYPER_COMPLETE_ARGS": line}
        return words | {"_MTPLX_TUI_COMPLETE": f"complete_{shell}"}

    def completed(line: str, shell: str = "bash") -> list[str]:
        for name, value in asked(line, shell).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            run([])
        return capsys.readouterr().out.splitlines()

    code = """
import sys
from mtplx_tui.cli import main
sys.argv = ["mtplx-tui"]
try:
    main()
finally:
    print(sorted({name.split(".")[0] for name in sys.modules} & {"mlx", "textual", "transformers", "fastapi"}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked("mtplx-tui sessions show "),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["2", "1", "[]"]
    assert completed("mtplx-tui ses") == ["sessions"]
    assert completed("mtplx-tui ask --model demo") == ["demo-13m"]
    assert completed("mtplx-tui connect co") == ["codex", "continue"]
    assert completed("mtplx-tui sessions show ", "zsh") == [
        """_arguments '*: :(("2":"Tell a Story\"""",
        """"1":"What is 47 + 85?"))\'""",
    ]

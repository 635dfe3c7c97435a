"""`mtplx-tui cache`: what it says of a real folder, also a damaged one, and one that another process uses."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pexpect
import pytest

from engine.caches.blobs import Blobs, Entry
from mtplx_tui import paths
from mtplx_tui.cli import run

ROOT = "ab" * 20
OTHER = """
import sys
from pathlib import Path
from engine.caches.blobs import Blobs, Entry
blobs = Blobs(Path(sys.argv[1]), 1 << 30)
for number in range(int(sys.argv[2])):
    blobs.write(Entry(f"{number:040x}", "ab" * 20, "ab" * 20, "demo", "a build", 0, 40), [bytes(1000)])
    if number == 0:
        print("runs", flush=True)
print(len(blobs.entries()))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of three prefixes, 6 kB."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(paths.prefixes_folder())
    return paths.prefixes_folder()


def fill(folder: Path) -> None:
    blobs = Blobs(folder, 1 << 30)
    parent = ROOT
    for number in range(1, 4):
        key = f"{number:040x}"
        entry = Entry(key, parent, ROOT, "demo-13m", "format 1", 40 * number - 40, 40 * number)
        blobs.write(entry, [bytes(1000 * number)])
        parent = key
    blobs.close()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(["cache", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", [["cache"], ["cache", "list"], ["cache", "verify"], ["cache", "clear"]])
def test_every_command_explains_itself_and_its_exit_codes(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert " ".join(["mtplx-tui", *command]) in text
    assert "Exit codes: 0 done" in text


def test_list_says_what_is_kept_and_how_much_may_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, listed = said(capsys, "list")
    assert code == 0
    assert (listed["folder"], listed["bytes"], listed["limit_bytes"]) == (str(folder), 6000, 16 << 30)
    assert [entry["bytes"] for entry in listed["entries"]] == [1000, 2000, 3000]
    assert {"model": "demo-13m", "tokens": 40, "end": 80}.items() <= listed["entries"][1].items()
    assert run(["cache", "list"]) == 0
    text = capsys.readouterr().out
    assert "demo-13m tokens 40 to 80 2.0 kB used 20" in " ".join(text.split())
    assert f"3 prefixes, 6.0 kB of at most 17.2 GB, in {folder}" in text


def test_without_a_cache_there_is_nothing_to_list_verify_or_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert said(capsys, "list")[1]["entries"] == []
    assert said(capsys, "verify") == (0, {"checked": 0, "damaged": [], "leftovers_removed": 0})
    assert said(capsys, "clear", "--yes") == (0, {"removed": 0, "bytes": 0})
    assert not paths.prefixes_folder().exists(), "looking creates nothing"


def test_verify_removes_what_is_damaged_and_says_so_with_its_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "verify") == (0, {"checked": 3, "damaged": [], "leftovers_removed": 0})
    damaged = folder / "blobs" / f"{2:040x}.safetensors"
    damaged.write_bytes(bytes(1999) + b"\1")
    (folder / "blobs" / "left.tmp").write_bytes(b"behind")
    assert run(["cache", "verify"]) == 1
    text = capsys.readouterr().out
    assert f"removed {2:040x} (demo-13m, tokens 40 to 80): the file of this prefix was damaged: its checksum" in text
    assert "3 files read, 1 damaged; 1 leftovers removed" in text
    assert not damaged.exists()
    _, listed = said(capsys, "list")
    assert [entry["bytes"] for entry in listed["entries"]] == [1000, 3000]
    assert said(capsys, "verify")[0] == 0


def test_verify_reports_every_file_of_a_folder_that_lost_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (folder / "blobs").iterdir():
        file.unlink()
    code, told = said(capsys, "verify")
    assert code == 1
    assert [found["reason"] for found in told["damaged"]] == ["the file of this prefix was removed meanwhile"] * 3


def test_a_garbage_index_is_an_empty_cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "index.db").write_bytes(b"garbage " * 1000)
    assert said(capsys, "list")[1]["entries"] == []
    assert said(capsys, "verify") == (0, {"checked": 0, "damaged": [], "leftovers_removed": 3})


def test_clear_asks_and_is_refused_where_nobody_can_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["cache", "clear"])
    assert code == 2
    assert "--yes" in capsys.readouterr().err
    for answer, left in (("n", 3), ("y", 0)):
        child = pexpect.spawn(sys.executable, ["-m", "mtplx_tui", "cache", "clear"], encoding="utf-8")
        child.expect("Remove 3 prefixes, 6.0 kB")
        child.sendline(answer)
        child.expect(pexpect.EOF, timeout=30)
        child.close()
        assert child.exitstatus == 0
        assert len(list((folder / "blobs").iterdir())) == left


def test_clear_works_while_another_process_writes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, "-c", OTHER, str(folder), "300"]
    other = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "runs\n"
    code, told = said(capsys, "clear", "--yes")
    assert code == 0
    assert told["removed"] >= 4
    out, err = other.communicate(timeout=60)
    assert (other.returncode, err) == (0, "")
    assert int(out) < 303
    assert said(capsys, "verify")[1]["damaged"] == []


def test_a_folder_that_can_not_be_opened_is_one_plain_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    paths.prefixes_folder().parent.mkdir(parents=True)
    paths.prefixes_folder().write_text("where a folder should be")
    assert run(["cache", "list"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_serve_keeps_prompts_there_and_ask_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    long = "The fox saw a river and a bench, and Nora went to the forest to sing. " * 6
    assert run(["ask", long, "--max-tokens", "1"]) == 0
    capsys.readouterr()
    assert said(capsys, "list")[1]["entries"] == []
    for turn in range(2):
        argv = [sys.executable, "-m", "mtplx_tui", "serve", "--json", "--port", "0"]
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert server.stdout is not None
        url = json.loads("".join(server.stdout.readline() for _ in range(5)))["url"]
        body = {"model": "demo-13m", "messages": [{"role": "user", "content": long}], "max_tokens": 1}
        usage = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()["usage"]
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
        assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) == (turn > 0)
        assert said(capsys, "list")[1]["entries"][0]["model"] == "demo-13m"


def test_no_command_of_it_loads_mlx(folder: Path) -> None:
    code = "import sys; from mtplx_tui.cli import run; run(sys.argv[1:]); sys.exit('mlx' in sys.modules)"
    for command in (["list"], ["verify"], ["clear", "--yes"]):
        argv = [sys.executable, "-c", code, "cache", *command]
        assert subprocess.run(argv, capture_output=True, check=False).returncode == 0

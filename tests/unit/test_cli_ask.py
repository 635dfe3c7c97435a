"""`ask` and `serve` with the bundled model, as a shell runs them."""

import io
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pexpect
import pytest

from mtplx_tui.cli import run

PROGRAM = [sys.executable, "-m", "mtplx_tui"]
SUM = "What is 47 + 85?"


Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """`ask --json` in this process, which has MLX loaded already; gives the answer."""

    def ask(*arguments: str, stdin: str = "") -> dict[str, Any]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run(["ask", *arguments, "--json"])
        printed = capsys.readouterr()
        assert (code, printed.err) == (0, "")
        answer: dict[str, Any] = json.loads(printed.out)
        return answer

    return ask


@pytest.fixture(scope="module")
def greedy() -> dict[str, Any]:
    """The first question of the README, as a shell asks it."""
    argv = [*PROGRAM, "ask", SUM, "--json", "--temperature", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_first_question_of_the_readme(greedy: dict[str, Any]) -> None:
    answer = greedy
    assert "132" in answer["text"]
    assert answer["reasoning"]
    assert (answer["finish_reason"], answer["model"]) == ("stop", "demo-13m")
    assert isinstance(answer["seed"], int)
    assert set(answer["usage"]) == {
        "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens",
        "accepted_prediction_tokens", "rejected_prediction_tokens",
    }  # fmt: skip
    stats = answer["stats"]
    assert set(stats) == {
        "mode", "depth", "accept_rule", "steps", "tokens_per_step", "drafted_by_depth", "accepted_by_depth",
        "queue_s", "ttft_s", "prefill_tok_s", "decode_tok_s",
    }  # fmt: skip
    assert stats["mode"] == "mtp"
    assert stats["accepted_by_depth"][0] > 0
    assert "error" not in answer


def test_a_seed_gives_the_same_text_at_every_depth_and_without_drafts(ask_json: Ask) -> None:
    flags = (SUM, "--seed", "11", "--temperature", "1")
    drafted = ask_json(*flags, "--depth", "3")
    plain = ask_json(*flags, "--mode", "ar")
    assert (drafted["seed"], drafted["stats"]["accept_rule"]) == (11, "coupled")
    assert (drafted["text"], drafted["reasoning"]) == (plain["text"], plain["reasoning"])
    assert (drafted["stats"]["depth"], plain["stats"]["depth"]) == (3, 0)
    assert plain["stats"]["mode"] == "ar"


def test_flags_reach_the_model(ask_json: Ask) -> None:
    answer = ask_json("-", "--no-think", "--system", "You are brief.", "--max-tokens", "3", stdin=SUM)
    assert answer["reasoning"] == ""
    assert (answer["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 3)
    bare = ask_json(SUM, "--no-think", "--max-tokens", "3")
    assert answer["usage"]["prompt_tokens"] > bare["usage"]["prompt_tokens"]
    stopped = ask_json(SUM, "--no-think", "--temperature", "0", "--stop", "13")
    assert "13" not in stopped["text"]
    assert stopped["finish_reason"] == "stop"


def test_a_pipe_gets_the_answer_alone(greedy: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ask", SUM, "--temperature", "0"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (greedy["text"] + "\n", "")


def test_a_terminal_gets_the_reasoning_dimmed_before_the_answer(greedy: dict[str, Any]) -> None:
    child = pexpect.spawn(PROGRAM[0], [*PROGRAM[1:], "ask", SUM, "--temperature", "0"], timeout=60, encoding="utf-8")
    child.expect(pexpect.EOF)
    child.close()
    shown = child.before.replace("\r\n", "\n")
    assert child.exitstatus == 0
    assert shown.endswith(f"\x1b[2m{greedy['reasoning']}\x1b[0m\n\n{greedy['text']}\n")


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b"ok \xff\xfe", 2, "Standard input is not UTF-8 text: byte 0xff at position 3."),
        (b"word " * 200_000, 2, "this model's context holds 2048"),
    ],
    ids=["no text", "1 MB"],
)
def test_input_that_no_model_can_answer(
    data: bytes, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert run(["ask", "-"]) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


STORY = ("ask", "Tell me a long story about a fox", "--mode", "ar")


def test_ctrl_c_while_the_model_loads() -> None:
    child = pexpect.spawn(PROGRAM[0], [*PROGRAM[1:], *STORY], timeout=60)
    child.expect(rb"\x1b\[2m\w")  # what is being loaded
    child.sendintr()
    child.expect(pexpect.EOF, timeout=3)
    child.close()
    assert child.exitstatus == 130
    assert b"Traceback" not in child.before


SLOWED = """
import sys, time
from engine.runner import Runner
from mtplx_tui.cli import run
turn, turns = Runner.turn, 0
def slow(self):
    global turns
    turns += 1
    if turns == 8:
        print("under way", file=sys.stderr, flush=True)
    time.sleep(0.1)
    turn(self)
Runner.turn = slow
sys.exit(run(sys.argv[1:]))
"""


def test_ctrl_c_keeps_what_came_and_leaves_plain_colours() -> None:
    child = pexpect.spawn(sys.executable, ["-c", SLOWED, *STORY], timeout=60)
    child.expect("under way")
    child.sendintr()
    child.expect(pexpect.EOF, timeout=3)
    child.close()
    assert child.exitstatus == 130
    assert b"Traceback" not in child.before
    assert re.search(rb"\x1b\[0m(\r\n|\^C)*$", child.before)


def test_ctrl_c_prints_the_json_of_what_came() -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", SLOWED, *STORY, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    assert running.stderr.readline() == "under way\n"
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=5)
    assert (running.returncode, errors) == (130, "")
    answer = json.loads(output)
    assert answer["finish_reason"] == "cancelled"
    assert answer["reasoning"]
    assert answer["usage"]["completion_tokens"] > 0


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    running = subprocess.Popen(
        [*PROGRAM, "ask", SUM, "--no-think"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == ""
    assert running.wait(timeout=60) == 128 + signal.SIGPIPE


def test_serve_says_where_and_stops_on_ctrl_c() -> None:
    running = subprocess.Popen(
        [*PROGRAM, "serve", "--json", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    printed = "".join(iter(running.stdout.readline, "}\n")) + "}"
    where = json.loads(printed)
    assert (where["model"], where["mode"]) == ("demo-13m", "mtp")
    with urllib.request.urlopen(where["url"] + "/v1/models", timeout=10) as answer:
        assert json.load(answer)["data"][0]["id"] == "demo-13m"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 0
    assert "Traceback" not in errors
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(where["url"] + "/v1/models", timeout=2)

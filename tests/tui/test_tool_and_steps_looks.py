"""What tool cards and the view of an answer's steps look like; see `test_looks` for how."""

import math
from collections.abc import Callable

import pytest
from helpers import ask, chat, shown, transcript, until
from scripted_handle import Play, ScriptedHandle
from syrupy.assertion import SnapshotAssertion
from test_looks import app_in, different, fixed, in_every_way, pictures  # noqa: F401  the fixture is used by being here
from textual.pilot import Pilot

from engine.events import DraftSource, Span, StepEvent, TokenEvent, TokenLogprob
from mtplx_tui.app import MtplxApp
from mtplx_tui.screens.steps import StepsScreen
from mtplx_tui.widgets.lines import Lines

MakeApp = Callable[..., MtplxApp]
STEPS: tuple[tuple[tuple[str, ...], int, str | None, DraftSource], ...] = (
    (("The",), 0, None, "none"),
    ((" verifier", " scores", " every"), 4, " each", "mtp"),
    ((" draft", ",", "\n", " and", " one", " more"), 5, None, "mtp"),
    ((" token", " \x1b[2J[b]"), 3, "s", "copy"),
    (('{"', "a", '":'), 2, None, "grammar"),
)


async def called(pilot: Pilot[None], app: MtplxApp, handle: ScriptedHandle) -> None:
    """A call that has failed, one that is done, and one that waits."""
    chat(app).talk.conversation.session.options = {"tools": {"folder": None}}
    play = (await ask(pilot, handle, "What is 47 + 85, and what is 1 / 0?")).prefill().say("I will work it out.")
    for expression in ("1 / 0", "47 + 85", "(47 + 85) * 12 - sqrt(2) * (3 + 4 + 5 + 6 + 7 + 8 + 9)"):
        play.say(f'{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}', kind="tool").say("")
    play.finish()
    await until(pilot, lambda: len(chat(app).calls.waiting) == 3)
    await pilot.press("escape")
    for left in (2, 1):
        await until(pilot, lambda: transcript(app).decides)
        await pilot.press("a")
        await until(pilot, lambda left=left: len(chat(app).calls.waiting) == left)  # type: ignore[misc]
    await until(pilot, lambda: transcript(app).decides)


async def stepped(pilot: Pilot[None], app: MtplxApp, handle: ScriptedHandle) -> None:
    await pilot.press("ctrl+n")
    play: Play = (await ask(pilot, handle, "How?")).prefill()
    for number, (texts, drafted, refused, source) in enumerate(STEPS, 1):
        accepted = len(texts) - 1
        handle.emit(StepEvent(play.id, 1.0, number, drafted, accepted, texts, refused, 0.04, 2, 9, source))
        likely = [TokenLogprob(i, text.encode(), math.log(0.7),
                               ((i, text.encode(), math.log(0.7)), (99, b" else", math.log(0.2)),
                                (98, b"\xf0\x9f", math.log(0.01))))
                  for i, text in enumerate(texts)]  # fmt: skip
        ids = tuple(range(len(texts)))
        handle.emit(TokenEvent(play.id, 1.0, ids, (Span("text", "".join(texts)),), tuple(likely)))
    play.finish()
    await shown(pilot, "The verifier scores")
    await until(pilot, lambda: chat(app).talk.turn is None)
    await pilot.press("escape")
    await until(pilot, lambda: transcript(app).chosen)
    await pilot.press("s")
    await until(pilot, lambda: isinstance(app.screen, StepsScreen))
    await until(pilot, lambda: "15 tokens" in app.screen.query_one("#steps-title", Lines).text)
    await pilot.press("down", "right", "right")


@pytest.mark.anyio
@in_every_way
async def test_calls_and_steps(
    way: str, snapshot: SnapshotAssertion, make_app: MakeApp, handle: ScriptedHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = await pictures(app_in(way, make_app, monkeypatch), handle, {"calls": called, "steps": stepped})
    assert not different(taken, snapshot)

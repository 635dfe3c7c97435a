"""The view of an answer's steps: origins, probabilities, moving, and answers whose steps are not known."""

import math
from collections.abc import Callable

import pytest
from helpers import ask, chat, shown, transcript, until
from scripted_handle import Play, ScriptedHandle
from textual.pilot import Pilot

from engine.events import StepEvent, TokenEvent, TokenLogprob
from mtplx_tui.app import MtplxApp
from mtplx_tui.charts import tokens
from mtplx_tui.glyphs import ASCII, UNICODE
from mtplx_tui.layout.spans import plain, width_of
from mtplx_tui.recorder import MessageRef
from mtplx_tui.screens.steps import StepsScreen
from mtplx_tui.store import Store
from mtplx_tui.trace import MOST_STEPS, TracedStep, Traces
from mtplx_tui.widgets.lines import Lines

pytestmark = pytest.mark.anyio
MakeApp = Callable[..., MtplxApp]


def step(
    number: int, drafted: int, texts: tuple[str, ...], refused: str | None = None, source: str = "mtp"
) -> StepEvent:
    return StepEvent("r", 1.0, number, drafted, len(texts) - 1, texts, refused, 0.04, 1, 9, source)  # type: ignore[arg-type]


def traced(number: int, drafted: int, *texts: str, refused: str | None = None, source: str = "mtp") -> TracedStep:
    known = tuple(TokenLogprob(i, t.encode(), math.log(0.5), ((i, t.encode(), math.log(0.5)),))
                  for i, t in enumerate(texts))  # fmt: skip
    return TracedStep(step(number, drafted, texts, refused, source), tuple(range(len(texts))), known)


def test_each_token_has_its_origin() -> None:
    kinds = {
        (4, ("a", "b", "c"), "x"): ["draft", "draft", "correction"],
        (2, ("a", "b", "c"), None): ["draft", "draft", "bonus"],
        (0, ("a",), None): ["own"],
        (3, ("a",), "x"): ["correction"],
    }
    for (drafted, texts, refused), origins in kinds.items():
        found = tokens.tokens(traced(1, drafted, *texts, refused=refused))
        assert [token.origin for token in found] == origins
        assert [token.depth for token in found if token.origin == "draft"] == list(range(1, len(texts)))
    ended = TracedStep(step(9, 2, ("a", "<end>"), "b"), (7,))
    assert [token.id for token in tokens.tokens(ended)] == [7, None]


def test_a_row_says_without_colour_what_each_token_is() -> None:
    row = tokens.row(traced(12, 4, "the", " quick", " brown", refused=" red"), 4, 80, UNICODE)
    assert plain(row) == "    12 m ■■x·· the│ quick│[ red→ brown]"
    row = tokens.row(traced(13, 2, "\n", "\x1b[1m", "[b]", source="copy"), 4, 80, ASCII)
    assert plain(row) == "    13 c ##+   \\|?[1m|+[b]"
    long = traced(14, 8, *(f"token{i} " * 3 for i in range(9)))
    for chosen in (0, 4, 8):
        row = tokens.row(long, 8, 60, UNICODE, chosen)
        assert width_of(row) <= 60
        assert f"token{chosen}" in next(text for text, role in row if "cursor" in role)


def test_a_tokens_page_tells_what_is_known_of_it() -> None:
    page = "\n".join(map(plain, tokens.detail(traced(12, 4, "the", " quick", refused=" red"), 1, "57", 80, UNICODE)))
    assert 'token 57  " quick"  id 1' in page
    assert 'in place of draft 2 of 4, " red"' in page
    assert "4 drafted, 1 accepted, 2 out, 40.0 ms" in page
    assert "probability  0.500" in page
    page = "\n".join(map(plain, tokens.detail(TracedStep(step(1, 1, ("a", "b"))), 0, "1", 80, UNICODE)))
    assert "draft 1 of 1, which held; drafted by the model's own MTP head" in page
    assert "probability n/a" in page


def test_the_oldest_answers_steps_are_forgotten_first() -> None:
    traces = Traces()
    refs = [MessageRef(i) for i in range(3)]
    for ref in refs:
        trace = traces.start(ref)
        trace.take(event for i in range(MOST_STEPS // 2 + 1)
                   for event in (step(i, 0, ("a",)), TokenEvent("r", 1.0, (1,), ())))  # fmt: skip
    traces.start(MessageRef(9))
    assert [traces.of(ref) is not None for ref in refs] == [False, False, True]
    assert traces.of(MessageRef(2)) is traces.of(refs[2])  # as it is when its chat is opened again
    assert traces.of(MessageRef(None)) is None


def text(app: MtplxApp, name: str) -> str:
    return app.screen.query_one(f"#steps-{name}", Lines).text


def token(app: MtplxApp) -> str:
    """The line about the chosen token."""
    return text(app, "detail").split("\n")[0]


async def opened(pilot: Pilot[None]) -> MtplxApp:
    app = pilot.app
    assert isinstance(app, MtplxApp)
    if not transcript(app).has_focus:
        transcript(app).focus()
    await until(pilot, lambda: transcript(app).chosen is not None)
    await pilot.press("s")
    await until(pilot, lambda: isinstance(app.screen, StepsScreen) and text(app, "title"))
    return app


async def test_it_opens_on_a_stream_follows_it_and_moves_by_token_and_step(
    make_app: MakeApp, handle: ScriptedHandle, store: Store
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        play = (await ask(pilot, handle, "hi")).prefill().say("One", " two", " three", refused=" four")
        await shown(pilot, "One two three")
        await opened(pilot)
        assert "3 tokens in 1 step, still being written" in text(app, "title")
        assert "[ four→ three]" in text(app, "rows")
        assert token(app).split("  ")[1] == '" three"'
        play.say(" and", " more", drafted=1)
        await until(pilot, lambda: token(app).startswith('token 5 of 5  " more"'), "it follows")
        assert "as a bonus" in text(app, "detail")
        await pilot.press("left", "left")
        assert token(app).split("  ")[1] == '" three"'
        await pilot.press("up", "home")
        assert token(app).split("  ")[1] == '"One"'
        assert "draft 1 of 4, which held" in text(app, "detail")
        play.say(" end")
        await until(pilot, lambda: "6 tokens" in text(app, "title"))
        assert token(app).split("  ")[1] == '"One"'  # whoever looks elsewhere stays there
        await pilot.press("end")
        assert token(app).split("  ")[1] == '" end"'
        play.finish()
        await until(pilot, lambda: "still" not in text(app, "title"))
        assert handle.requests[-1].logprobs is None
        await pilot.press("p", "escape")
        await until(pilot, lambda: app.screen is chat(app))
        await until(pilot, lambda: all(said.ref.id for said in chat(app).talk.conversation.said), "all is saved")
        await pilot.press("r")  # the next answer comes with probabilities
        await until(pilot, lambda: len(handle.requests) == 2)
        assert handle.requests[-1].logprobs == 5
        Play.of(handle, handle.requests[-1]).prefill().say("Two").finish()
        await shown(pilot, "version 2 of 2")
        await until(pilot, lambda: chat(app).talk.turn is None)
        await pilot.press("left_square_bracket")  # the first version, whose steps are known still
        await shown(pilot, "version 1 of 2")
        await opened(pilot)
        assert "6 tokens in 3 steps" in text(app, "title")
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        await chat(again).saved.open(store.sessions()[0].id)
        transcript(again).focus()
        await until(pilot, lambda: transcript(again).chosen is not None)
        await pilot.press("s")
        await until(pilot, lambda: any("not known" in n.message for n in again._notifications))
        assert again.screen is chat(again)

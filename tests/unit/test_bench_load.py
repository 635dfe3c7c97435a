"""The load benchmark: real servers and real clients, and clients whose server fails them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.bench.random_models import write
from engine.bench.report import as_dict, as_text
from engine.bench.shapes import DEMO_VOCABULARY, Shape
from mtplx_tui.bench_load.clients import run
from mtplx_tui.bench_load.measure import bench_load, load_report
from mtplx_tui.bench_load.serving import bench_serve, serve_report

TINY = Shape(4, 64, 64, 2, 1, 32, 2, 2, 32, vocabulary=DEMO_VOCABULARY, context=320, tied=True)
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
FRAMES = (
    b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n',
    b'data: {"choices": [{"delta": {"reasoning": "Hm"}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "Yes"}}]}\n\n',
)


def ask(answer: Answer, clients: int = 1) -> list[dict[str, Any]]:
    """What the clients make of a server that answers so, each asking two questions."""

    async def both() -> list[dict[str, Any]]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        order = {"url": f"http://127.0.0.1:{port}", "model": "m", "max_tokens": 4, "timeout": 20.0}
        async with server:
            return await run(order | {"prompts": [["a", "b"]] * clients})

    return asyncio.run(both())


def sends(*parts: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
        writer.close()

    return answer


def test_an_answer_is_timed_by_its_frames_with_text() -> None:
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    records = ask(sends(HEAD, *FRAMES, end), clients=3)
    assert sorted(record["client"] for record in records) == [0, 0, 1, 1, 2, 2]
    for record in records:
        assert (record["finish"], record["error"]) == ("stop", None)
        assert [text for _, text in record["frames"]] == ["Hm", "Yes"]
        assert record["sent"] <= record["frames"][0][0] <= record["frames"][1][0] <= record["ended"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (sends(), "RemoteProtocolError"),
        (sends(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"), "HTTP 503: busy"),
        (sends(HEAD, *FRAMES), "without a finish_reason"),
        (sends(HEAD, b'data: {"error": {"message": "out of memory"}}\n\n'), "out of memory"),
    ],
    ids=["reset", "refused", "cut short", "failed in the stream"],
)
def test_a_request_that_is_lost_is_counted_with_its_reason(answer: Answer, error: str) -> None:
    records = ask(answer)
    assert len(records) == 2, "the client goes on with its next request"
    assert all(error in record["error"] for record in records)


def test_both_servers_answer_every_client(tmp_path: Path) -> None:
    write(tmp_path / "tiny", TINY)
    result = bench_load(str(tmp_path / "tiny"), clients=(1, 2), requests=1, tokens=16, repeats=1)
    assert [(cost.clients, cost.server, cost.requests) for cost in result.costs] == [
        (1, "mtplx", 1), (1, "mlx-lm", 1), (2, "mtplx", 2), (2, "mlx-lm", 2),
    ]  # fmt: skip
    for cost in result.costs:
        assert (cost.failed, cost.errors) == (0, ())
        assert cost.tok_s.median > 0
        for times in (cost.ttft_ms, cost.frame_gap_ms, cost.inter_token_ms):
            assert times is not None
            assert 0 <= times.p50 <= times.p95
    assert [each.clients for each in result.ratios] == [1, 2]
    assert result.ratios[0].inter_token_p95_vs_solo == 1
    assert all(each.tok_s_vs_peer is not None for each in result.ratios)
    assert as_dict(result)["receipts"]["benchmark"] == "load"
    assert "token p95 / one client" in "\n".join(as_text(load_report(result)))


@pytest.mark.slow
def test_what_the_server_adds_is_measured_beside_its_own_engine() -> None:
    result = bench_serve(None, requests=2, seconds=0.5, repeats=1)
    assert result.client_ttft_ms.values == result.engine_ttft_ms.values == result.added_ms.values == 2
    assert 0 < result.engine_ttft_ms.min <= result.client_ttft_ms.max
    assert result.stream_percent.median > 0
    assert result.stream_frames_s.median > 0
    assert as_dict(result)["receipts"]["benchmark"] == "serve"
    assert "added by the server" in "\n".join(as_text(serve_report(result)))

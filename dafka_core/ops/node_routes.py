"""The routes ``/metrics``, ``/healthz`` and ``/readyz`` of nodes and of the console."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from prometheus_client import exposition
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dafka_core.ops.collector import registry_of
from dafka_core.ops.findings import Finding, Severity
from dafka_core.ops.health import is_alive, is_ready
from dafka_core.ops.watched_nodes import WatchedNodes

PROBES = ("/healthz", "/readyz")
"""The paths that need no token: without one they answer with one word."""


def node_routes(nodes: WatchedNodes) -> list[Route]:
    """Return the routes for nodes."""
    registry, scrape = registry_of(nodes), threading.Lock()

    # Functions that are no coroutines run in threads: a file system may hang.
    def metrics(request: Request) -> Response:
        names = request.query_params.getlist("name[]")
        encode, kind = exposition.choose_encoder(request.headers.get("accept", ""))
        with scrape:  # concurrent scrapes would only slow each other down
            text = encode(registry.restricted_registry(names) if names else registry)
        return Response(text, media_type=kind)

    return [
        Route("/metrics", metrics),
        Route("/healthz", partial(_health, nodes, is_alive, ("ok", "failed"))),
        Route("/readyz", partial(_health, nodes, is_ready, ("ready", "not ready"))),
    ]


def _health(
    nodes: WatchedNodes,
    judge: Callable[[list[Finding]], bool],
    words: tuple[str, str],
    request: Request,
) -> Response:
    found = nodes.findings()
    good = judge([finding for _, _, finding in found])
    code, status = (200, words[0]) if good else (503, words[1])
    if not request.scope["is_known"]:
        return PlainTextResponse(f"{status}\n", code)
    if "json" in request.url.query or "application/json" in request.headers.get("accept", ""):
        facts = [{"kind": kind, "node": name, **each._asdict()} for kind, name, each in found]
        return JSONResponse({"status": status, "findings": facts}, code)
    lines = [
        f"{each.severity}: {kind} {name}: {each}"
        for kind, name, each in found
        if not good or each.severity is not Severity.OK
    ]
    return PlainTextResponse("".join(f"{line}\n" for line in (status, *lines)), code)

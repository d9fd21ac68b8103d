"""The routes ``/healthz`` and ``/readyz`` of the console and of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dafka_core.ops.findings import Finding, Severity
from dafka_core.ops.health import is_alive, is_ready

Found = Sequence[tuple[str, str, Finding]]
"""Findings with the kind and the name of their node."""


def health_routes(findings: Callable[[], Found]) -> list[Route]:
    """Return the routes, which answer with the status, and with the findings to known clients."""
    # Functions that are no coroutines run in threads: a file system may hang.
    return [
        Route("/healthz", partial(_answer, findings, is_alive, ("ok", "failed"))),
        Route("/readyz", partial(_answer, findings, is_ready, ("ready", "not ready"))),
    ]


PATHS = ("/healthz", "/readyz")
"""Their paths, which need no token."""


def _answer(
    findings: Callable[[], Found],
    judge: Callable[[list[Finding]], bool],
    words: tuple[str, str],
    request: Request,
) -> Response:
    found = findings()
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

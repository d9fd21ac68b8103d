"""The options of a process that tells how its nodes are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from dafka_core.config.node_options import HOST, HostPort
from dafka_core.config.options import Options, option

LOOPBACK: Final = "127.0.0.1"

_ADDRESS: Final = re.compile(rf"(?a)(?:(?P<host>{HOST}|\*):)?(?P<port>\d{{1,5}})")


def listen_address(text: str) -> HostPort:
    """What ``[HOST:]PORT`` names, loopback without a host; ValueError for any other text."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) >= 65_536:
        raise ValueError(
            "must be HOST:PORT or a port, as 127.0.0.1:9108; port 0 lets the system choose"
        )
    host = (match["host"] or LOOPBACK).strip("[]")
    return HostPort("0.0.0.0" if host == "*" else host, int(match["port"]))  # noqa: S104 -- asked for


def _parse(value: Any) -> str:
    return str(listen_address(str(value)))


@dataclass(frozen=True)
class MetricsOptions(Options):
    """What a process takes whose nodes are watched."""

    metrics: str | None = option(
        None,
        "where to serve numbers for Prometheus (`/metrics`), `/healthz` and `/readyz` (needs extra "
        "`metrics`): a port on this machine's loopback, or HOST:PORT, `*` for all of its "
        "addresses; 0 lets the system choose. Without it nothing is served",
        kind="[HOST:]PORT",
        parse=_parse,
    )
    metrics_token_file: str = option(
        "",
        "a file with the token that who asks for numbers has to say (`Authorization: Bearer`), as "
        "`dafka keys token FILE` makes it. Needed where other machines reach `metrics`, unless "
        "`insecure` says that everybody there may read them",
        kind="FILE",
    )
    metrics_topics: int = option(
        100,
        "topics that have numbers of their own at `/metrics`; all further ones are counted "
        "together as topic `other`",
        unit="topics",
        minimum=0,
        maximum=10_000,
    )

"""The options of the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dafka_core.config.options import Options, option
from dafka_core.system.hosts import host_port

LOOPBACK: Final = "127.0.0.1"


def _parse(value: Any) -> str:
    """Parse ``[HOST:]PORT``; without a host the port is this machine's alone."""
    text = str(value).strip()
    return str(host_port(f"{LOOPBACK}:{text}" if text.isdecimal() else text))


@dataclass(frozen=True)
class MetricsOptions(Options):
    """The options of a process that serves metrics of its nodes."""

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

"""The options of the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dafka_core.config.options import Options, option
from dafka_core.system.hosts import host_port

LOOPBACK: Final = "127.0.0.1"


def _parse(value: Any) -> str:
    """Parse ``[HOST:]PORT``; the default host is loopback."""
    text = str(value).strip()
    return str(host_port(f"{LOOPBACK}:{text}" if text.isdecimal() else text))


@dataclass(frozen=True)
class MetricsOptions(Options):
    """The options of a process that serves metrics of its nodes."""

    metrics: str | None = option(
        None,
        "serve `/metrics` for Prometheus, `/healthz` and `/readyz` at a port of loopback, or at "
        "HOST:PORT, with `*` for all addresses; port 0 lets the system choose (needs extra "
        "`metrics`)",
        kind="[HOST:]PORT",
        parse=_parse,
    )
    metrics_token_file: str = option(
        "",
        "a file with the token for requests, by `dafka keys token FILE`; required if other "
        "machines have access, unless `insecure` is set",
        kind="FILE",
    )
    metrics_topics: int = option(
        100,
        "maximum number of topics with their own metrics; all others are summed as topic `other`",
        unit="topics",
        minimum=0,
        maximum=10_000,
    )

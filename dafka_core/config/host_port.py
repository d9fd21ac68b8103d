"""Addresses of the form ``HOST:PORT``."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from dafka_core.config.node_options import HOST

_ADDRESS: Final = re.compile(rf"(?a)(?P<host>{HOST})(?::(?P<port>\d{{1,5}}))?")


class HostPort(NamedTuple):
    """A host and a port; an IPv6 address is without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_port(text: str, default_port: int) -> HostPort:
    """Parse ``HOST[:PORT]``; raise ValueError for any other text."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"] or 0) >= 65_536:
        example = f"127.0.0.1:{default_port}"
        raise ValueError(f"must be HOST:PORT, as {example}; port 0 lets the system choose")
    port = default_port if match["port"] is None else int(match["port"])
    return HostPort(match["host"].strip("[]"), port)

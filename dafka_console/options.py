"""The options of the console."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from dafka_core.config.options import Options, option
from dafka_core.system.hosts import HOST, host_port

DEFAULT_PORT: Final = 8046


def _parse_listen(value: Any) -> str:
    return str(host_port(str(value).strip(), DEFAULT_PORT))


def _parse_names(value: Any) -> tuple[str, ...]:
    words = value if isinstance(value, list | tuple) else str(value).split(",")
    found = tuple(dict.fromkeys(str(word).strip().lower() for word in words))
    for each in found:
        if not re.fullmatch(HOST, each):
            raise ValueError(f"must be names of hosts, with commas between; got {each!r}")
    return found


@dataclass(frozen=True)
class ConsoleOptions(Options):
    """What the console takes."""

    MAIN = frozenset({"listen"})

    listen: str = option(
        f"127.0.0.1:{DEFAULT_PORT}",
        "where browsers connect; port 0 lets the system choose",
        kind="HOST[:PORT]",
        parse=_parse_listen,
    )
    token_file: str = option(
        "",
        "a file with the token that who looks has to say, as `dafka keys token FILE` makes it. "
        "Without one anybody on this machine may look; where `listen` is an address that other "
        "machines reach a token is made and printed at the start, unless `insecure` says that "
        "everybody there may look",
        kind="FILE",
    )
    names: tuple[str, ...] = option(
        (),
        "further names of this machine by which browsers may ask for the console, with commas "
        "between; others are refused, so that no page elsewhere can point its own name here",
        kind="HOST,...",
        parse=_parse_names,
    )
    read_only: bool = option(False, "let nobody produce")
    interval_ms: int = option(
        1_000, "how often the stores are asked what has changed", unit="ms", minimum=100
    )

"""The options of the console, and its commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from dafka_core.cli.commands import INSPECT, Command
from dafka_core.cli.flags import add_settings
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
    """The console's options."""

    MAIN = frozenset({"listen"})

    listen: str = option(
        f"127.0.0.1:{DEFAULT_PORT}",
        "where browsers connect; port 0 lets the system choose",
        kind="HOST[:PORT]",
        parse=_parse_listen,
    )
    token_file: str = option(
        "",
        "a file with the login token, by `dafka keys token FILE`. Without one, every user of "
        "this machine has access; on other addresses a token is made and printed, unless "
        "`insecure` is set",
        kind="FILE",
    )
    names: tuple[str, ...] = option(
        (),
        "further host names of the console, separated by commas; requests to others are refused",
        kind="HOST,...",
        parse=_parse_names,
    )
    read_only: bool = option(False, "refuse to write records")
    interval_ms: int = option(
        1_000, "interval at which the stores are asked for changes", unit="ms", minimum=100
    )


add_settings(ConsoleOptions)

COMMANDS: Final = (
    Command("dafka_console.commands:console", INSPECT),
    Command("dafka_console.commands:top", INSPECT),
)
"""The commands of this package (``dafka_core.cli.commands``)."""

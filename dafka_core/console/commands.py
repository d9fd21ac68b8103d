"""The commands ``dafka console`` and ``dafka top``: a cluster in a browser, or a terminal."""

from __future__ import annotations

from typing import Any, Final

from dafka_core.cli import output
from dafka_core.cli.configured import ConfiguredTyper
from dafka_core.cli.flags import ExitWithParent, of_table, with_options
from dafka_core.cli.list_commands import Uris
from dafka_core.cli.process import serve_until_stopped, stop_when_input_ends
from dafka_core.console.console_options import ConsoleOptions
from dafka_core.console.top_command import top
from dafka_core.errors import ConfigError
from dafka_core.flight.store_location import parse_locations
from dafka_core.node_options import ReaderOptions
from dafka_core.security_options import keys_in

EXTRA: Final = "the console needs starlette and uvicorn: pip install 'dafka-spark[console]'"


def add_commands(app: ConfiguredTyper) -> None:
    """Add the commands to those of ``dafka``."""
    app.command()(with_options(ReaderOptions)(top))
    app.command()(with_options(ConsoleOptions, ReaderOptions)(console))


def console(*, uris: Uris = "", exit_with_parent: ExitWithParent = False, **options: Any) -> None:
    """Serve the console (extra 'console'): the cluster live, its records, queries and health.

    It prints READY and its address as JSON when it serves. Ctrl-C stops it.
    """
    if exit_with_parent:
        stop_when_input_ends()
    own = of_table(ConsoleOptions, options)
    ConsoleOptions.build(own)
    try:
        from dafka_core.console.server import Console
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "anyio", "h11"):
            raise
        raise ConfigError("console", error.name, EXTRA) from None
    from dafka_core.console.cluster_view import located

    try:
        named = located(parse_locations(uris), keys_in(options)) if uris else []
    except ValueError as error:
        raise ConfigError("stores", uris, str(error)) from None
    with Console(of_table(ReaderOptions, options), named, **own) as node:
        output.say(f"console at {node.url}; Ctrl-C stops it")
        if node.token:
            output.say(f"who looks needs its token: {node.url}?token={node.token}")
        elif node.is_open:
            may = "read every record" if own.get("read_only") else "read and write records"
            output.say(f"whoever reaches {node.url} from another machine may {may}: no password")
        serve_until_stopped(node, url=node.url, port=node.port)

"""``dafka store``: runs a store, or does something with its directory."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import ExitWithParent, MaybeDirectory
from dafka_core.cli.list_commands import AsJson
from dafka_core.cli.process import serve_until_stopped, stop_when_input_ends
from dafka_core.cli.record_commands import json_lines
from dafka_core.errors import DafkaError
from dafka_core.names import escape


def store(
    ctx: typer.Context,
    *,
    directory: MaybeDirectory = None,
    exit_with_parent: ExitWithParent = False,
    **options: Any,
) -> None:
    """Run a store: it keeps every topic's records on disk, and acknowledges what is there.

    It prints READY, its address and its directory as JSON when it serves. Ctrl-C stops it.
    """
    from dafka_core import Store

    if ctx.invoked_subcommand is not None:
        return
    if directory is None:
        why = "must name the directory in which records are kept"
        raise typer.BadParameter(why, param_hint="'--dir'")
    if exit_with_parent:
        stop_when_input_ends()
    with Store(directory, **options) as node:
        output.say(f"store {node.address} in {directory}; Ctrl-C stops it")
        where = {"address": node.address, "dir": directory}
        serve_until_stopped(node, **where, flight=node.locations)


Stopped = Annotated[str, typer.Argument(metavar="DIR", show_default=False)]
"""The directory of a store that does not run."""


def restore(directory: Stopped) -> None:
    """Make a copy of a store's directory, or a backup that is put back, a store of its own.

    It gets a new address, and keeps its records. Stores that run refuse to be restored.
    """
    from dafka_core.nodes.store_identity import restore as restore_directory

    output.say(f"{directory} is store {restore_directory(directory)} from now on")


def aside(
    directory: Stopped,
    *,
    export: Annotated[
        int | None,
        typer.Option(
            metavar="ID", help="Print its records, as consume --json.", show_default=False
        ),
    ] = None,
    discard: Annotated[
        int | None, typer.Option(metavar="ID", help="Delete it.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the records that a store, which must not run, has set aside.

    A newer producer had gone on without them (docs/guarantees.md). They are kept until they are
    discarded.
    """
    from dafka_core.nodes.store_identity import log_of

    with log_of(directory) as log:
        found = log.aside()
        for chosen in (export, discard):
            if chosen is not None and chosen not in {each.id for each in found}:
                raise DafkaError(f"nothing is set aside as {chosen}; without options all is listed")
        if export is not None:
            for batch in log.read_aside(export):
                output.write(json_lines(batch))
        if discard is not None:
            log.discard_aside(discard)
            output.say(f"{discard} is deleted")
        if export is None and discard is None:
            names = ("id", "topic", "partition", "start", "end", "bytes")
            output.table(names, found, as_json=as_json)
            if not found:
                output.say("nothing is set aside")


def forget(
    directory: Stopped,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", show_default=False)],
) -> None:
    """Have a store, which must not run, forget another one that is gone for ever.

    Otherwise producers that resume wait for it: it may have what nobody else has.
    """
    from dafka_core.nodes.store_identity import log_of

    with log_of(directory) as log:
        met = {escape(each.store): each.store for each in log.met()}
        if address not in met:
            known = ", ".join(met) or "none"
            raise DafkaError(f"the store has met no store {address}; those it has met: {known}")
        log.forget(met[address])
    output.say(f"store {address} is forgotten, until it comes again")

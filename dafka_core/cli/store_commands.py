"""``dafka store``: runs a store, or does something with its directory."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.extensions import check_extensions, extended
from dafka_core.cli.flags import ExitWithParent, MaybeDirectory, WithResult, needed, of_table
from dafka_core.cli.list_commands import AsJson, Timeout
from dafka_core.cli.metrics_flag import watching
from dafka_core.cli.process import serve_until_stopped, stop_when_input_ends
from dafka_core.cli.record_text import json_lines
from dafka_core.errors import DafkaError
from dafka_core.names import escape
from dafka_core.near_names import nearest_name
from dafka_core.node_options import StoreOptions


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
    if ctx.invoked_subcommand is not None:
        return
    run_store(needed(directory), options, exit_with_parent=exit_with_parent)


def run_store(directory: str, options: dict[str, Any], *, exit_with_parent: bool) -> None:
    """Run a store with its extensions until it is told to stop."""
    from dafka_core import Store

    if exit_with_parent:
        stop_when_input_ends()
    check_extensions(options)
    with (
        watching("store", options) as watch,
        Store(directory, announce=False, **of_table(StoreOptions, options)) as node,
        extended(node, options) as (nodes, facts),
    ):
        watch.add(node, *nodes)
        node.announce()
        output.say(f"store {node.address} in {directory}; Ctrl-C stops it")
        where = {"address": node.address, "dir": directory}
        serve_until_stopped(node, **where, flight=node.locations, **facts, **watch.facts)


Stopped = Annotated[str, typer.Argument(metavar="DIR", show_default=False)]
"""The directory of a store that does not run."""


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


_FORGOTTEN: Final = "The store to forget; before it the directory of one that does not run."


def forget(
    what: Annotated[
        list[str], typer.Argument(metavar="[DIR] ADDRESS", show_default=False, help=_FORGOTTEN)
    ],
    *,
    as_json: WithResult = False,
    timeout_s: Timeout = 10.0,
    **options: Any,
) -> None:
    """Have all stores that run forget one that is gone for ever, or one that does not run, in DIR.

    Otherwise it is named as missing, and producers that resume wait for it: it may have what nobody
    else has. When it comes again it is known again.
    """
    if len(what) > 2:
        raise typer.BadParameter("there is more than a directory and an address")
    *directories, address = what
    if directories:
        _forget_in(directories[0], address)
    else:
        _forget_everywhere(address, timeout_s, options)
    said = f"store {address} is forgotten, until it comes again"
    output.done(said, as_json=as_json, forgotten=address)


def _forget_in(directory: str, address: str) -> None:
    from dafka_core.nodes.store_identity import log_of

    with log_of(directory) as log:
        met = {escape(each.store): each.store for each in log.met()}
        if address not in met:
            raise DafkaError(f"the store has met no store {address}; {near_address(address, met)}")
        log.forget(met[address])


def _forget_everywhere(address: str, timeout_s: float, options: dict[str, Any]) -> None:
    from dafka_core import Reader
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.flight.store_location import StoreLocation

    with Reader(**options) as reader:
        reader.hear_stores(timeout_s=timeout_s)
        found = reader.missing_stores(timeout_s=timeout_s)
        there, served, keys = reader.stores(), reader.endpoints(), reader.keys
    missing = {escape(each.store): each.store for each in found}
    if address in map(escape, there):
        raise DafkaError(f"store {address} is there: stop it first, or it would be known again")
    if address not in missing:
        raise DafkaError(
            f"no store that is away is known as {address}; {near_address(address, missing)}"
        )
    failed = [f"store {each} serves no Flight" for each in there if each not in served]
    for each in sorted(served.items()):
        try:
            with StoreClient(StoreLocation(*each), keys) as client:
                client.forget(missing[address], timeout_s=timeout_s)
        except DafkaError as error:
            failed.append(str(error))
    for why in failed:
        output.complain(f"{why}: it has not forgotten; once it is stopped, name its directory")
    if failed:
        raise typer.Exit(1)


def near_address(address: str, known: Collection[str]) -> str:
    """Which of the known stores may have been meant."""
    if near := nearest_name(address, known):
        return f"did you mean {near}?"
    return f"those that are: {', '.join(sorted(known)) or 'none'}"

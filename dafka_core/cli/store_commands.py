"""``dafka store``: runs a store, or does something with its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import ExitWithParent, MaybeDirectory
from dafka_core.cli.process import stop_when_input_ends


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
        output.ready(address=node.address, dir=str(directory), flight=node.locations)
        node.wait(None)


def restore(directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]) -> None:
    """Make a copy of a store's directory, or a backup that is put back, a store of its own.

    It gets a new address, and keeps its records. Stores that run refuse to be restored.
    """
    from dafka_core.nodes.store_identity import restore as restore_directory

    output.say(f"{directory} is store {restore_directory(directory)} from now on")

"""``dafka store backup``, ``restore`` and ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import WithResult
from dafka_core.cli.list_commands import AsJson

AnyStore = Annotated[str, typer.Argument(metavar="DIR|URI", show_default=False)]
"""A store's directory, whether the store runs or not; or where its Flight service is."""


def backup(
    store: AnyStore,
    to: Annotated[str, typer.Argument(metavar="BACKUP", show_default=False)],
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="BACKUP",
            help="An earlier backup: only what is new since is taken, and both are needed to "
            "restore.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Back up a store, which may run, into a directory that is not there yet.

    The directory has all that the store had at one moment, or is not made.
    """
    from dafka_core.nodes.store_backup import back_up
    from dafka_core.storage.backup import Backup
    from dafka_core.storage.storage_errors import BACKUP_MANIFEST

    previous = None if since is None else Backup(Path(since))
    with output.progress(None, "bytes") as advance:
        found = back_up(store, Path(to), previous, advance)
    if as_json:
        output.write((Path(to) / BACKUP_MANIFEST).read_bytes())
    kind = "what is new since it" if previous else "all of it"
    output.say(
        f"{to} is a backup of store {found.store} ({kind}): {found.file_bytes} bytes, "
        f"xxh3 {found.checksum}"
    )


def restore(
    directory: Annotated[str, typer.Argument(metavar="DIR", show_default=False)],
    *,
    backup: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="BACKUP",
            help="Make DIR, which must not be there or be empty, of this backup.",
            show_default=False,
        ),
    ] = None,
    as_json: WithResult = False,
) -> None:
    """Make a backup, or a copy of a store's directory in DIR, a store of its own.

    It gets a new address, and keeps its records. Stores that run refuse to be restored.
    """
    from dafka_core.nodes import store_backup, store_identity

    if backup is None:
        address = store_identity.restore(directory)
    else:
        store_identity.check_directory(directory)
        with output.progress(None, "partitions") as advance:
            address = store_backup.restore(Path(backup), Path(directory), advance)
    said = f"{directory} is store {address} from now on"
    output.done(said, as_json=as_json, directory=directory, store=address)


def verify(
    store: Annotated[str, typer.Argument(metavar="DIR|URI|BACKUP", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Read all that a store has, which may run, or a backup, and say what is damaged.

    Every block's checksum is compared, and every record must be in a block. The exit code is 1 if
    something is damaged.
    """
    from dafka_core.nodes.store_backup import verify as checked
    from dafka_core.storage.log_check import Checked, Damage

    done = Checked()
    with output.progress(None, "partitions") as move:
        for each in checked(store):
            output.table(Damage._fields, each.found, as_json=as_json, wrapped={"why"})
            move(each.partitions)
            done = done.plus(each)
    output.say(
        f"{done.partitions} partitions, {done.records} records in {done.blocks} blocks, "
        f"{done.size_bytes} bytes, format {done.log_format}: "
        + (f"{len(done.found)} damaged" if done.found else "all good")
    )
    if done.found:
        raise typer.Exit(1)

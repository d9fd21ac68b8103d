"""``dafka store backup``, ``restore`` and ``verify``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import WithResult
from dafka_core.cli.list_commands import AsJson
from dafka_core.config.node_options import KeyFiles, keys_in

if TYPE_CHECKING:
    from dafka_core.storage.log_check import Damage

COLUMNS = ("kind", "topic", "partition", "offset", "why")

AnyStore = Annotated[str, typer.Argument(metavar="DIR|URI", show_default=False)]
"""A store's directory, whether the store runs or not; or where its Flight service is."""

Save = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep the store's newest links in FILE, if nothing is damaged: have it where who may "
        "write to the store's disk may not.",
        show_default=False,
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Compare with links that --save has kept, too.", show_default=False
    ),
]
Beside = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|URI",
        help="Read no records, and compare the store's links with those of another store.",
        show_default=False,
    ),
]


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
    **options: Any,
) -> None:
    """Back up a store, which may run, into a directory that is not there yet.

    The directory has all that the store had at one moment, or is not made.
    """
    from dafka_core.nodes.store_backup import back_up
    from dafka_core.storage.backup import Backup
    from dafka_core.storage.storage_errors import BACKUP_MANIFEST

    previous = None if since is None else Backup(Path(since))
    with output.progress(None, "bytes") as advance:
        found = back_up(store, Path(to), previous, advance, keys_in(options))
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
    save: Save = None,
    against: Against = None,
    beside: Beside = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Read all that a store has, which may run, or a backup, and say what is damaged.

    Every block's checksum is compared, every record must be in a block, and those that have links
    must be as they were. The exit code is 1 if something is damaged.
    """
    from dafka_core.nodes.store_backup import SavedLinks
    from dafka_core.nodes.store_backup import verify as checked
    from dafka_core.storage.log_check import Checked

    keys = keys_in(options)
    if beside is not None:
        if save or against:
            why = "is given with --save or --against"
            raise typer.BadParameter(why, param_hint="'--beside'")
        _compare(store, beside, keys, as_json=as_json)
        return
    saved = SavedLinks.read(against) if against else None
    newest = SavedLinks.of(store, keys) if save else None
    done, late = Checked(), Checked()
    with output.progress(None, "partitions") as move:
        for each in checked(store, keys):
            _tell(each.found, as_json=as_json)
            move(each.partitions)
            done = done.plus(each)
        for each in saved.check(store, keys) if saved else ():
            _tell(each.found, as_json=as_json)
            late = late.plus(each)
    output.say(
        f"{done.partitions} partitions, {done.records} records in {done.blocks} blocks, "
        f"{done.size_bytes} bytes, format {done.log_format}: "
        + (f"{len(done.found)} damaged" if done.found else "all good")
    )
    output.say(
        f"{done.linked} records are those of their links"
        if done.linked
        else "no record has a link, by which a change at rest is found: see option tamper_evidence"
    )
    if saved:
        wrong = f"; {len(late.found)} links are wrong" if late.found else ""
        output.say(
            f"{late.linked} records, and all links before them, are those of {against}, which is "
            f"of {saved.time}{wrong}"
        )
    if done.found or late.found:
        raise typer.Exit(1)
    if newest and save:
        newest.write(save)
        output.say(f"{save} has the newest links of {len(newest.links)} partitions")


def _tell(found: Sequence[Damage], *, as_json: bool) -> None:
    output.table(COLUMNS, found, as_json=as_json, wrapped={"why"})


def _compare(store: str, other: str, keys: KeyFiles, *, as_json: bool) -> None:
    """Compares two stores by their links; what they have not settled yet is no damage."""
    from dafka_core.nodes.store_backup import compare
    from dafka_core.storage.log_check import DIFFERENT

    same = wrong = 0
    for records, found in compare(store, other, keys=keys):
        _tell(found, as_json=as_json)
        same, wrong = same + records, wrong + sum(each.kind == DIFFERENT for each in found)
    output.say(
        f"{same} records are the same at both stores, by their links: "
        + (f"{wrong} partitions are different" if wrong else "no difference")
    )
    if wrong:
        raise typer.Exit(1)

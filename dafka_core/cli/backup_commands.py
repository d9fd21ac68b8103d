"""``dafka store backup``, ``restore`` and ``verify``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dafka_core.cli import flags, output
from dafka_core.config.node_options import KeyFiles, SecurityOptions, keys_in

if TYPE_CHECKING:
    from dafka_core.storage.log_check import Damage

COLUMNS = ("kind", "topic", "partition", "offset", "why")


@flags.argument("store", metavar="DIR|URI")
@flags.argument("to", metavar="BACKUP")
@flags.option(
    "--since",
    metavar="BACKUP",
    help="An earlier backup: back up only what is new since then. Restoring needs both.",
)
@flags.json_option
@flags.table_options(SecurityOptions, without=("insecure",))
def backup(store: str, to: str, *, since: str | None, **options: Any) -> None:
    """Back up a store, running or not, to a new directory.

    The backup is a snapshot of the whole store; if it fails, no directory is left.
    """
    from dafka_core.nodes.store_backup import back_up
    from dafka_core.storage.backup import Backup
    from dafka_core.storage.storage_errors import BACKUP_MANIFEST

    previous = None if since is None else Backup(Path(since))
    with output.progress(None, "bytes") as advance:
        found = back_up(store, Path(to), previous, advance, keys_in(options))
    if output.settings.json:
        output.write((Path(to) / BACKUP_MANIFEST).read_bytes())
    kind = "incremental" if previous else "full"
    output.info(
        f"{to} is a backup of store {found.store} ({kind}): {found.file_bytes} bytes, "
        f"xxh3 {found.checksum}"
    )


@flags.argument("directory", metavar="DIR")
@flags.option(
    "--from",
    "backup",
    metavar="BACKUP",
    help="Restore this backup to DIR, which must be missing or empty.",
)
@flags.result_option
def restore(directory: str, *, backup: str | None) -> None:
    """Turn a backup, or a copy of a store's directory in DIR, into a store of its own.

    It keeps its records and gets a new address. A running store cannot be restored.
    """
    from dafka_core.nodes import store_backup, store_identity

    if backup is None:
        address = store_identity.restore(directory)
    else:
        store_identity.check_directory(directory)
        with output.progress(None, "partitions") as advance:
            address = store_backup.restore(Path(backup), Path(directory), advance)
    text = f"{directory} is now store {address}"
    output.done(text, directory=directory, store=address)


@flags.argument("store", metavar="DIR|URI|BACKUP")
@flags.option(
    "--save",
    type=Path,
    metavar="FILE",
    help="Write the store's newest links to FILE if nothing is damaged. Keep FILE where "
    "users with access to the store's disk cannot write.",
)
@flags.option(
    "--against", type=Path, metavar="FILE", help="Also compare with the links that --save wrote."
)
@flags.option(
    "--beside",
    metavar="DIR|URI",
    help="Read no records, and compare the store's links with those of another store.",
)
@flags.json_option
@flags.table_options(SecurityOptions, without=("insecure",))
def verify(
    store: str, *, save: Path | None, against: Path | None, beside: str | None, **options: Any
) -> None:
    """Read a whole store, running or not, or a backup, and list what is damaged.

    Checks the checksum of each block, that no record is missing, and that records with links are
    unchanged. Exits with 1 if anything is damaged.
    """
    from dafka_core.nodes.store_backup import SavedLinks
    from dafka_core.nodes.store_backup import verify as checked
    from dafka_core.storage.log_check import Checked

    keys = keys_in(options)
    if beside is not None:
        if save or against:
            why = "cannot be combined with --save or --against"
            raise click.BadParameter(why, param_hint="'--beside'")
        _compare(store, beside, keys)
        return
    saved = SavedLinks.read(against) if against else None
    newest = SavedLinks.of(store, keys) if save else None
    done, late = Checked(), Checked()
    with output.progress(None, "partitions") as move:
        for each in checked(store, keys):
            _print_damage(each.found)
            move(each.partitions)
            done = done.plus(each)
        for each in saved.check(store, keys) if saved else ():
            _print_damage(each.found)
            late = late.plus(each)
    output.info(
        f"{done.partitions} partitions, {done.records} records in {done.blocks} blocks, "
        f"{done.size_bytes} bytes: " + (f"{len(done.found)} damaged" if done.found else "no damage")
    )
    output.info(
        f"{done.linked} records match their links"
        if done.linked
        else "no record has a link, so changes on disk cannot be detected: see option "
        "tamper_evidence"
    )
    if saved:
        wrong = f"; {len(late.found)} links differ" if late.found else ""
        output.info(
            f"{late.linked} records, and all links before them, match {against}, written at "
            f"{saved.time}{wrong}"
        )
    if done.found or late.found:
        raise click.exceptions.Exit(1)
    if newest and save:
        newest.write(save)
        output.info(f"{save} has the newest links of {len(newest.links)} partitions")


def _print_damage(found: Sequence[Damage]) -> None:
    output.table(COLUMNS, found, wrapped={"why"})


def _compare(store: str, other: str, keys: KeyFiles) -> None:
    """Compare two stores by their links; records without a final link are not compared."""
    from dafka_core.nodes.store_backup import compare
    from dafka_core.storage.log_check import DIFFERENT

    same = wrong = 0
    for records, found in compare(store, other, keys=keys):
        _print_damage(found)
        same, wrong = same + records, wrong + sum(each.kind == DIFFERENT for each in found)
    output.info(
        f"{same} records are identical at both stores by their links: "
        + (f"{wrong} partitions differ" if wrong else "no difference")
    )
    if wrong:
        raise click.exceptions.Exit(1)

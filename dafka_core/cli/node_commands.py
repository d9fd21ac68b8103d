"""Commands that run nodes: ``dafka tower``, ``up``, and ``store`` with its subcommands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import dafka_core
from dafka_core.cli import flags, output
from dafka_core.cli.consume_command import json_lines
from dafka_core.cli.process import serve_until_stopped
from dafka_core.cli.store_clients import served
from dafka_core.config.node_options import (
    KeyFiles,
    MetricsOptions,
    ReaderOptions,
    SecurityOptions,
    StoreOptions,
    TowerOptions,
    keys_in,
)
from dafka_core.config.options import Options
from dafka_core.errors import DafkaError
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape
from dafka_core.model.records import PartitionInfo
from dafka_core.ops.store_extension import ExtensionNode, store_extensions

if TYPE_CHECKING:
    from dafka_core.storage import Log
    from dafka_core.storage.log_check import Damage

STORE_TABLES: Final[tuple[type[Options], ...]] = (
    StoreOptions,
    *(each.options for each in store_extensions()),
    MetricsOptions,
)

DESK_DIRECTORY: Final = "dafka-data"


def check_extensions(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option of an extension that is off."""
    for each in store_extensions():
        each.check(each.options.declared_in(options))


@contextmanager
def extended(
    store: dafka_core.Store, options: Mapping[str, Any]
) -> Iterator[tuple[list[ExtensionNode], dict[str, str]]]:
    """Run the extensions that options switch on; yield them, and their facts for READY."""
    with ExitStack() as stack:
        nodes = []
        for each in store_extensions():
            if each.switch in options:
                node = stack.enter_context(each.start(store, each.options.declared_in(options)))
                nodes.append(node)
                if node.notice:
                    output.info(node.notice)
            else:
                each.retract(store)
        yield nodes, {name: fact for node in nodes for name, fact in node.facts.items()}


@click.pass_context
@flags.directory_option()
@flags.exit_with_parent_option
@flags.table_options(*STORE_TABLES)
def store(ctx: click.Context, *, directory: str | None, **options: Any) -> None:
    """Run a store: it keeps the records of every topic on disk and acknowledges them.

    It prints READY, and its address and directory as JSON, when it serves. Ctrl-C stops it.
    """
    if ctx.invoked_subcommand is not None:
        return
    run_store(flags.needed(directory), options)


def run_store(directory: str, options: dict[str, Any]) -> None:
    """Run a store with its extensions until it is stopped."""
    check_extensions(options)
    with (
        flags.watching("store", options) as watch,
        dafka_core.Store(directory, announce=False, **StoreOptions.declared_in(options)) as node,
        extended(node, options) as (nodes, facts),
    ):
        watch.add(node, *nodes)
        node.announce()
        output.info(f"store {node.address} in {directory}; Ctrl-C stops it")
        where = {"address": node.address, "dir": directory}
        serve_until_stopped(node, **where, flight=node.locations, **facts, **watch.facts)


@flags.exit_with_parent_option
@flags.table_options(TowerOptions, MetricsOptions)
def tower(**options: Any) -> None:
    """Run a tower, through which nodes discover each other.

    It prints READY, and its ports as JSON, when it serves. Ctrl-C stops it.
    """
    with (
        flags.watching("tower", options) as watch,
        dafka_core.Tower(**TowerOptions.declared_in(options)) as node,
    ):
        watch.add(node)
        output.info(f"tower at {node.tower}; Ctrl-C stops it")
        where = {"sub_port": node.sub_port, "pub_port": node.pub_port, "tower": node.tower}
        serve_until_stopped(node, **where, **watch.facts)


@flags.directory_option(default=DESK_DIRECTORY)
@flags.exit_with_parent_option
@flags.table_options(*STORE_TABLES, TowerOptions, without=("tower",))
def up(*, directory: str, **options: Any) -> None:
    """Run a tower and a store in one process: a cluster for development.

    It prints READY, and their addresses as JSON, when it serves. Ctrl-C stops it.
    """
    check_extensions(options)
    stored = StoreOptions.declared_in(options) | {"announce": False}
    with (
        flags.watching("tower and store", options) as watch,
        dafka_core.Tower(**TowerOptions.declared_in(options)) as hub,
        dafka_core.Store(directory, **stored | {"tower": hub.tower}) as node,
        extended(node, options) as (nodes, facts),
    ):
        watch.add(hub, node, *nodes)
        node.announce()
        output.info(f"tower at {hub.tower}, store in {directory}; Ctrl-C stops both")
        output.info("in other terminals, unless this is the default tower:")
        output.info(f"  export DAFKA_TOWER={hub.tower}")
        where = {"tower": hub.tower, "address": node.address, "dir": directory}
        serve_until_stopped(node, **where, flight=node.locations, **facts, **watch.facts)


# -- a stopped store, and stores that are gone -----------------------------------------------------

stopped_argument: Final = flags.argument("directory", metavar="DIR")
"""The directory of a stopped store."""


@stopped_argument
@flags.option(
    "--export", type=int, metavar="ID", help="Print these records as consume --json does."
)
@flags.option("--discard", type=int, metavar="ID", help="Delete these records.")
@flags.json_option
def aside(directory: str, *, export: int | None, discard: int | None) -> None:
    """List the records that a store has set aside; the store must be stopped.

    A newer producer of the partition continued without them (docs/guarantees.md). They are kept
    until they are discarded.
    """
    from dafka_core.nodes.store_identity import log_of

    with log_of(directory) as log:
        found = log.aside()
        for chosen in (export, discard):
            if chosen is not None and chosen not in {each.id for each in found}:
                raise DafkaError(f"nothing is set aside with id {chosen}; omit options for a list")
        if export is not None:
            for batch in log.read_aside(export):
                output.write(json_lines(batch))
        if discard is not None:
            log.discard_aside(discard)
            output.info(f"deleted {discard}")
        if export is None and discard is None:
            output.table(("id", "topic", "partition", "start", "end", "bytes"), found)
            if not found:
                output.info("nothing is set aside")


_FORGOTTEN: Final = "The store to forget, after the directory of a stopped store if DIR is given."


@flags.argument("what", nargs=-1, required=True, metavar="[DIR] ADDRESS", help=_FORGOTTEN)
@flags.result_option
@flags.timeout_option
@flags.table_options(ReaderOptions)
def forget(what: Sequence[str], *, timeout_s: float, **options: Any) -> None:
    """Make all running stores, or the stopped store in DIR, forget a store that is gone for ever.

    Until then it is reported as missing, and producers that resume wait for it, as only it may
    have some records. If it returns, it is known again.
    """
    if len(what) > 2:
        raise click.BadParameter("expected at most a directory and an address")
    *directories, address = what
    if directories:
        _forget_in(directories[0], address)
    else:
        _forget_everywhere(address, timeout_s, options)
    output.done(f"store {address} is forgotten unless it returns", forgotten=address)


def _forget_in(directory: str, address: str) -> None:
    from dafka_core.nodes.store_identity import log_of

    with log_of(directory) as log:
        met = {escape(each.store): each.store for each in log.met()}
        if address not in met:
            near = what_there_is(address, met.values(), "known stores")
            raise DafkaError(f"the store knows no store {address} ({near})")
        log.forget(met[address])


def _forget_everywhere(address: str, timeout_s: float, options: dict[str, Any]) -> None:
    with dafka_core.Reader(**options) as reader:
        reader.wait_for_stores(timeout_s=timeout_s)
        found = reader.missing_stores(timeout_s=timeout_s)
        running, clients = reader.stores(), served(reader)
        silent = sorted(set(running) - reader.endpoints().keys())
    missing = {escape(each.store): each.store for each in found}
    if address in map(escape, running):
        raise DafkaError(f"store {address} is running: stop it first, or it becomes known again")
    if address not in missing:
        near = what_there_is(address, missing.values(), "missing stores")
        raise DafkaError(f"no missing store is {address} ({near})")
    failed = [f"store {each} serves no Flight" for each in silent]
    for client in clients:
        try:
            with client:
                client.forget(missing[address], timeout_s=timeout_s)
        except DafkaError as error:
            failed.append(str(error))
    for why in failed:
        output.error(f"{why}: it still knows {address}; stop it and name its directory")
    if failed:
        raise click.exceptions.Exit(1)


_ADDRESS: Final = re.compile(r"[0-9A-F]{32}")


@stopped_argument
@flags.argument("address", metavar="ADDRESS")
@flags.result_option
@flags.timeout_option
@flags.table_options(ReaderOptions)
def replace(directory: str, address: str, *, timeout_s: float, **options: Any) -> None:
    """Let the stopped store in DIR replace a store that is gone for ever, and take its address.

    With --kafka it accepts writes of Kafka's clients to the partitions that the lost store hosted.
    It must have run until it had copied all records of the other stores.
    """
    from dafka_core.nodes import store_identity

    with store_identity.log_of(directory) as log:
        former = store_identity.address_of(log.directory)
        with dafka_core.Reader(**options) as reader:
            reader.wait_for_stores(timeout_s=timeout_s)
            missing = {each.store for each in reader.missing_stores(timeout_s=timeout_s)}
            _check_gone(reader, missing - {former}, _named_in(log) - {former}, address)
            lacking = _lacking(log, reader, timeout_s)
        if lacking:
            topic, partition = lacking[0].tp
            raise DafkaError(
                f"{directory} lacks records of {len(lacking)} partitions, such as topic {topic!r}, "
                f"partition {partition}: run 'dafka store --dir {directory}' until it has all"
            )
        store_identity.take_address(log.directory, address)
    text = (
        f"{directory} is now store {address}; start it, and make the others forget its previous "
        f"address: 'dafka store forget {former}'"
    )
    output.done(text, directory=directory, store=address, before=former)


def _check_gone(
    reader: dafka_core.Reader, missing: set[str], named: set[str], address: str
) -> None:
    """Raise DafkaError unless the address is free, and all other stores can be compared."""
    running = reader.stores()
    if address in running:
        raise DafkaError(f"store {address} is running: only a store that is gone can be replaced")
    known = set(filter(_ADDRESS.fullmatch, missing | named.difference(running)))
    if address not in known:
        near = what_there_is(address, known, "missing stores")
        raise DafkaError(f"no missing store is {address} ({near})")
    for away in sorted(missing - {address}):
        why = f"store {away} is missing, and may have records that {address} had"
        raise DafkaError(f"{why}: start it, or make the others forget it ('dafka store forget')")
    for silent in sorted(set(running) - reader.endpoints().keys()):
        raise DafkaError(f"store {silent} serves no Flight: its records cannot be compared")


def _named_in(log: Log) -> set[str]:
    """Return the stores that a log knows, and those that records of extensions name."""
    named = {store for each in store_extensions() for store in each.named_stores(log)}
    return named | {each.store for each in log.met()}


def _lacking(log: Log, reader: dafka_core.Reader, timeout_s: float) -> list[PartitionInfo]:
    found = []
    for client in served(reader):
        with client:
            for info in client.heads(None, timeout_s=timeout_s):
                own = log.info(info.tp)
                if info.end and (own is None or (own.life, own.end) < (info.life, info.end)):
                    found.append(info)
    return found


# -- backups, and the check of a store -------------------------------------------------------------

_DAMAGE_COLUMNS: Final = ("kind", "topic", "partition", "offset", "why")


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
    output.table(_DAMAGE_COLUMNS, found, wrapped={"why"})


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

"""``dafka retain``, ``trim`` and ``delete``: retention rules, and deleting records."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import click

from dafka_core.cli import flags, output, store_clients
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.config.missing_stores import described, if_gone
from dafka_core.config.node_options import ReaderOptions
from dafka_core.config.topic_rules import RULES, parse_rules
from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.model.names import INTERNAL, quoted
from dafka_core.model.positions import parse_time_us
from dafka_core.model.records import KnownStore, PartitionInfo

if TYPE_CHECKING:
    from dafka_core.flight.store_client import StoreClient

yes_option: Final = flags.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")

END: Final = "end"


@flags.argument("rules", nargs=-1, metavar=f"[{RULES}]...")
@flags.option("--reset", is_flag=True, help="Restore the rules of each store's own options.")
@flags.reads_stores
def retain(rules: Sequence[str], *, reset: bool, finder: StoreFinder) -> None:
    """Show the retention rules of stores, or set them.

    'flights*=7d,10GiB' keeps a week of these topics, and at most 10 GiB of each; '*=forever' keeps
    everything. The first pattern that matches a topic applies. Rules that are set survive restarts.
    """
    from dafka_core.flight.requests import RetentionRequest

    try:
        parsed = parse_rules(rules)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="rules") from None
    if reset and parsed:
        raise click.BadParameter("--reset cannot be combined with rules")
    request = RetentionRequest(tuple(map(str, parsed)) if parsed else None, reset)
    rows = []
    missing: list[KnownStore] = []
    away = missing.append if parsed or reset else store_clients.warn_away
    with finder.clients(away) as clients:
        for client in clients:
            (active,) = client.ask(finder.timeout_s, request)
            by = "set" if active.is_set else "option"
            shown = " ".join(active.rules) or "none"
            rows.append((client.location.store, shown, by, active.given_up))
    output.table(("store", "rules", "by", "records_given_up"), rows)
    _fail_without(missing, "keeps its previous rules")


@dataclass(frozen=True)
class _Bound:
    """The offset below which records are deleted: one, that of a time, or each partition's end."""

    offset: int | None = None
    time_us: int | None = None

    @classmethod
    def parse(cls, before: str) -> _Bound:
        """Parse ``--before``; raise ValueError if it is invalid."""
        if before == END:
            return cls()
        if before.isdecimal():
            return cls(offset=int(before))
        try:
            time_us = parse_time_us(before)
        except ValueError:
            raise ValueError(
                "must be an age such as 7d, a time with a zone such as 2026-01-31T12:00Z, an "
                f"offset, or {END}"
            ) from None
        if time_us > time.time() * 1e6:
            raise ValueError(f"is in the future; {END} deletes all existing records")
        return cls(time_us=time_us)

    def find(
        self, client: StoreClient, infos: Iterable[PartitionInfo], timeout_s: float
    ) -> list[tuple[PartitionInfo, int]]:
        """Return the partitions of a store that have records below it, each with its offset."""
        held = [info for info in infos if info.earliest < info.end]
        found: Sequence[int | None] = [self.offset] * len(held)
        if self.time_us is not None:
            times = [(*info.tp, self.time_us) for info in held]
            found = client.offset_for_times(times, timeout_s=timeout_s)
        pairs = zip(held, found, strict=True)
        ends = ((info, info.end if at is None else min(at, info.end)) for info, at in pairs)
        return [(info, at) for info, at in ends if at > info.earliest]


@flags.topic_argument
@flags.option(
    "--before",
    type=flags.Parsed(_Bound.parse),
    required=True,
    metavar="AGE|TIME|OFFSET|end",
    help="Delete records older than an age (7d) or a time (2026-01-31T12:00Z), or below "
    "an offset; end deletes all.",
)
@flags.option("--partition", metavar="UUID", help="Only this partition.")
@yes_option
@flags.reads_stores
def trim(
    topic: str, *, before: _Bound, partition: str | None, yes: bool, finder: StoreFinder
) -> None:
    """Delete the records of a topic that are older than a time, or below an offset.

    It asks for confirmation, then deletes at all reachable stores, or at those of --stores. It
    fails if a known store is unreachable, as that store keeps its records.
    """
    timeout_s = finder.timeout_s
    missing: list[KnownStore] = []
    with finder.clients(missing.append) as clients:
        wanted = _wanted(clients, topic, partition, before, missing, timeout_s)
        count = sum(at - info.earliest for each in wanted.values() for info, at in each)
        if count:
            question = f"delete {count} records of topic {quoted(topic)} at {len(clients)} stores"
            without = f", but not at {len(missing)} that are away" if missing else ""
            _confirm(f"{question}{without}?", yes=yes)
            _trim(wanted, timeout_s)
        else:
            output.info(f"no store has such records of topic {quoted(topic)}")
    _fail_without(missing, "keeps its records")


@flags.topic_argument
@yes_option
@flags.json_option
@flags.timeout_option
@flags.table_options(ReaderOptions)
def delete(topic: str, *, yes: bool, timeout_s: float, **options: Any) -> None:
    """Delete all records of a topic at every store, after confirmation.

    Unreachable stores delete the topic when they return, and report partitions that no other store
    had. Partitions keep their names and end offsets: a running producer continues at the same
    offsets, and one that resumes is warned.
    """
    from dafka_core.flight.requests import DeleteRequest

    if topic.startswith(INTERNAL):
        raise DafkaError(f"topic {quoted(topic)} is internal: queries and gateways need it")
    missing: list[KnownStore] = []
    finder = StoreFinder("", timeout_s, options)
    with finder.clients(missing.append, all_serve=True) as found:
        held = [client.heads([topic], timeout_s=timeout_s) for client in found]
        _chosen(found, chain.from_iterable(held), topic, None, missing, timeout_s)
        for each in missing:
            output.error(f"{described(each)} is away: it deletes the topic when it comes back")
        count = max(sum(info.end - info.earliest for info in infos) for infos in held)
        # A store that is away may have records, and learns of the deletion from the others.
        if not count and not missing:
            output.info(f"no store has records of topic {quoted(topic)}")
            return
        text = f"delete topic {quoted(topic)}, {count} records, at all {len(found)} stores?"
        _confirm(text, yes=yes)
        rows, failed = [], []
        for client in found:
            try:
                (done,) = client.ask(timeout_s, DeleteRequest(topic))
            except StoreUnreachableError as error:
                failed.append(f"{client.location.store}: {error.why}")
            else:
                rows.append((client.location.store, done.partitions, done.records))
    if rows:
        _list_deleted(rows)
    if failed:
        remedy = "Repeat the command; if a disk is full, use 'dafka trim TOPIC --before end'"
        raise DafkaError(f"stores have not confirmed the deletion: {'; '.join(failed)}. {remedy}")


def _chosen(
    clients: Iterable[StoreClient],
    infos: Iterable[PartitionInfo],
    topic: str,
    partition: str | None,
    missing: Iterable[KnownStore],
    timeout_s: float,
) -> list[PartitionInfo]:
    """As ``store_clients.chosen``; on failure warn about missing stores, which may have it."""
    chosen = (partition,) if partition else ()
    known = partial(store_clients.heads, clients, None, timeout_s)
    try:
        return store_clients.chosen(infos, topic, chosen, known)
    except DafkaError:
        for each in missing:
            store_clients.warn_away(each)
        raise


_Bounds = dict["StoreClient", list[tuple[PartitionInfo, int]]]


def _wanted(
    clients: Iterable[StoreClient],
    topic: str,
    partition: str | None,
    bound: _Bound,
    missing: Iterable[KnownStore],
    timeout_s: float,
) -> _Bounds:
    """Return each store's partitions, with the offset below which records are deleted.

    Raises:
        DafkaError: no store has the topic, the partition, or records up to the offset.
    """
    held = {client: client.heads([topic], timeout_s=timeout_s) for client in clients}
    chosen = _chosen(held, chain.from_iterable(held.values()), topic, partition, missing, timeout_s)
    names = {info.partition for info in chosen}
    held = {
        client: [info for info in infos if info.partition in names]
        for client, infos in held.items()
    }
    last = max(info.end for info in chain.from_iterable(held.values()))
    if bound.offset is not None and bound.offset > last:  # rather a date than an offset
        why = f"no partition has offset {bound.offset}, the largest end is {last}"
        raise DafkaError(f"{why}: --before {END} deletes all records")
    return {client: bound.find(client, infos, timeout_s) for client, infos in held.items()}


def _fail_without(missing: Sequence[KnownStore], does: str) -> None:
    """Raise DafkaError if stores are away: other stores do not pass on this request."""
    text = "{} is away, and {}: repeat the command when it is back, or {}"
    if missing:
        why = (text.format(described(each), does, if_gone(each)) for each in missing)
        raise DafkaError("; ".join(why))


def _confirm(text: str, *, yes: bool) -> None:
    """Ask for confirmation; raise Exit after a no, and DafkaError without a terminal."""
    if yes:
        return
    if not os.isatty(0):
        raise DafkaError(f"{text} Standard input is not a terminal: confirm with --yes")
    if not click.confirm(text, err=True):
        output.info("nothing is deleted")
        raise click.exceptions.Exit(1)


def _trim(wanted: _Bounds, timeout_s: float) -> None:
    from dafka_core.flight.limits import MAX_TRANSACTIONS, parts
    from dafka_core.flight.requests import TrimRequest

    rows = []
    for client, each in wanted.items():
        count = 0
        for part in parts(each, MAX_TRANSACTIONS):
            trims = tuple((*info.tp, at) for info, at in part)
            (done,) = client.ask(timeout_s, TrimRequest(trims))
            now = zip(done.earliest, part, strict=True)
            count += sum(max(earliest - info.earliest, 0) for earliest, (info, _) in now)
        rows.append((client.location.store, len(each), count))
    _list_deleted(rows)


def _list_deleted(rows: Iterable[Sequence[object]]) -> None:
    output.table(("store", "partitions", "records_given_up"), rows)
    output.info("new records use the freed space; files do not shrink (docs/retention.md)")

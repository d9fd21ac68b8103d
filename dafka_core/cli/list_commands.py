"""Commands that list topics, partitions, staged records, stores and the lag of queries."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dafka_core.cli import flags, output, store_clients
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.errors import DafkaError
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import QUERIES_TOPIC, quoted, unescape

if TYPE_CHECKING:
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.model.records import PartitionInfo, StagedPartition
    from dafka_core.storage import PartitionStatistics

MOST_DISCARDS: Final = 1_000  # discards per request, so that the store responds within the timeout
MOST_US: Final = 253_402_300_799 * 10**6  # the end of the year 9999: ``datetime`` has no later time

_BEHIND: Final = ("records_behind", "bytes_behind", "seconds_behind")
_QUERY_COLUMNS: Final = ("query", "run", "state", "partitions", *_BEHIND, "reported_s")
_LAG_COLUMNS: Final = ("run", "topic", "partition", "position", "end", *_BEHIND)


@flags.min_stores_option
@flags.reads_stores
def topics(*, finder: StoreFinder) -> None:
    """List topics: number of partitions, records and bytes, first and last timestamp."""
    held: dict[str, list[Held]] = defaultdict(list)
    for each in _held(None, finder):
        held[each.info.topic].append(each)
    if not held:
        output.info("the stores have no records yet")
    rows = []
    for topic, parts in sorted(held.items()):
        known = [each.facts for each in parts if each.facts is not None]
        sizes = [each.size_bytes for each in known]
        first = min((each.first_time_us for each in known if each.first_time_us), default=None)
        last = max((each.last_time_us for each in known if each.last_time_us), default=None)
        records = sum(each.info.end - each.info.earliest for each in parts)
        size = sum(sizes) if len(known) == len(parts) else None
        rows.append((topic, len(parts), records, size, _time(first), _time(last)))
    output.table(("topic", "partitions", "records", "bytes", "first", "last"), rows)


@flags.argument(
    "topic", type=flags.TOPIC, required=False, metavar="[TOPIC]", help="Default: all topics."
)
@flags.min_stores_option
@flags.reads_stores
def partitions(topic: str | None, *, finder: StoreFinder) -> None:
    """List partitions: offsets, bytes, first and last timestamp, complete stores, and client."""
    rows = []
    for info, facts, stores in sorted(_held(topic, finder)):
        size = None if facts is None else facts.size_bytes
        first, last = (None, None) if facts is None else (facts.first_time_us, facts.last_time_us)
        records = info.end - info.earliest
        client = None if facts is None else facts.client or None
        rows.append((*info[:4], records, size, _time(first), _time(last), stores, client))
    names = ("topic", "partition", "earliest", "next", "records", "bytes", "first", "last")
    output.table((*names, "stores", "client"), rows)


class Held(NamedTuple):
    """A partition, the facts of the store with the furthest end, and the number of such stores.

    Facts are None if no store that serves Flight has the partition.
    """

    info: PartitionInfo
    facts: PartitionStatistics | None
    stores: int | None


def _held(topic: str | None, finder: StoreFinder) -> list[Held]:
    from dafka_core.flight.requests import furthest_facts

    with finder.holdings(topic) as (infos, clients):
        facts = store_clients.facts(clients, topic, finder.timeout_s) if infos else []
    furthest = furthest_facts(facts)
    ends = {info.tp: info.end for info in infos}
    complete = Counter(each.tp for each in facts if each.end >= ends.get(each.tp, 0))
    return [Held(each, furthest.get(each.tp), complete[each.tp] or None) for each in infos]


@flags.topic_argument
@flags.min_stores_option
@flags.reads_stores
def heads(topic: str, *, finder: StoreFinder) -> None:
    """List a topic's partitions: the earliest offset in stores, and the next one to write."""
    with finder.holdings(topic) as (infos, _):
        rows = sorted((info.partition, info.earliest, info.end) for info in infos)
    output.table(("partition", "earliest", "next"), rows)


@flags.option("--discard", is_flag=True, help="Discard the listed records and fence their writers.")
@flags.option(
    "--idle-hours",
    type=flags.Number(0),
    default=0.0,
    metavar="N",
    help="Only attempts without new records for N hours.",
)
@flags.reads_stores
def staged(*, discard: bool, idle_hours: float, finder: StoreFinder) -> None:
    """List the staged records at each store: records of uncommitted transactions.

    A running writer commits or discards them. Those of a failed writer stay for the store's
    staged_hours, or until --discard.
    """
    found, timeout_s = [], finder.timeout_s
    before_us = time.time() * 1e6 - idle_hours * 3.6e9
    with finder.clients() as clients:
        for client in clients:
            here = [each for each in client.staged(timeout_s=timeout_s) if each[-1] <= before_us]
            found += [(client.location.store, each) for each in here]
            if discard:
                _discard(client, here, timeout_s)
    rows = [
        (store, *each[:3], each.end - each.start, each.size_bytes, _utc(each.staged_at_us))
        for store, each in found
    ]
    if not rows:
        output.info("nothing is staged")
    names = ("store", "topic", "partition", "attempt", "records", "bytes", "last_added")
    output.table(names, rows)


def _discard(client: StoreClient, found: list[StagedPartition], timeout_s: float) -> None:
    from dafka_core.model.log_entries import Discard

    discards = [Discard(each.tp, each.attempt) for each in found if each.attempt]
    for start in range(0, len(discards), MOST_DISCARDS):
        client.discard(discards[start : start + MOST_DISCARDS], timeout_s=timeout_s)
    size_bytes = sum(each.size_bytes for each in found if each.attempt)
    store = client.location.store
    output.info(f"discarded at store {store}: {len(discards)} partitions, {size_bytes} bytes")
    if len(discards) < len(found):
        count = len(found) - len(discards)
        output.info(f"left at store {store}: {count} that another store is copying to it")


@flags.reads_stores
def stores(*, finder: StoreFinder) -> None:
    """List the stores: size of the log file, free space in it, and readers' leases on it."""
    from msgspec.structs import astuple

    rows: list[tuple[Any, ...]] = []
    with finder.clients() as clients:
        for client in clients:
            try:
                space = client.space(timeout_s=finder.timeout_s)
                rows.append((client.location.store, *astuple(space)))
            except DafkaError as error:
                if client is clients[-1] and not rows:
                    raise
                output.error(str(error))
    output.table(("store", "file_bytes", "free_bytes", "leases", "oldest_lease_s"), rows)


@flags.argument(
    "query",
    type=unescape,
    required=False,
    metavar="[QUERY]",
    help="A query, to list its partitions; default: list all queries.",
)
@flags.option(
    "--progress-topic", default=QUERIES_TOPIC, metavar="TOPIC", help="Where queries report."
)
@flags.reads_stores
def lag(query: str | None, *, progress_topic: str, finder: StoreFinder) -> None:
    """List the lag of Spark's streaming queries that report it (option queryName).

    A query that ended by itself is finished. A query that has missed three reports is late: it was
    stopped, it failed, or no store accepts its reports.
    """
    from dafka_core.queries.query_progress import RUNNING, query_lags

    with finder.clients() as clients:
        found = query_lags(clients, progress_topic, timeout_s=finder.timeout_s)
    running = Counter(each.query for each in found if each.state == RUNNING)
    for name in sorted(name for name, count in running.items() if count > 1):
        what = "give each query a unique name (option queryName)"
        output.error(f"{running[name]} queries report as {quoted(name)}: {what}")
    if query is None:
        if not found:
            output.info("no query has reported its lag (Spark's option queryName)")
        output.table(_QUERY_COLUMNS, [shown(each[:-1]) for each in found])
        return
    of_query = [each for each in found if each.query == query]
    if not of_query:
        near = what_there_is(query, {each.query for each in found}, "queries that have")
        raise DafkaError(f"query {quoted(query)} has not reported its lag ({near})")
    rows = [shown((each.run, *lag[1:])) for each in of_query for lag in each.lags]
    output.table(_LAG_COLUMNS, rows)


def shown(row: Sequence[object]) -> list[object]:
    """Round the seconds of a row to tenths."""
    return [round(each, 1) if isinstance(each, float) else each for each in row]


def _time(time_us: int | None) -> str | None:
    if time_us is None or not 0 <= time_us < MOST_US:
        return None
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="milliseconds")


def _utc(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).isoformat()

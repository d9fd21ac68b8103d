"""Commands that inspect a cluster: its state, nodes and problems, and lists of what stores have."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dafka_core
from dafka_core.cli import flags, output, store_clients
from dafka_core.cli.store_clients import StoreFinder, parse_least, parse_uris
from dafka_core.config.missing_stores import EVERY_STORE
from dafka_core.config.node_options import ReaderOptions
from dafka_core.errors import DafkaError
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import QUERIES_TOPIC, quoted, unescape

if TYPE_CHECKING:
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.model.records import PartitionInfo, StagedPartition
    from dafka_core.ops.checks import Facts
    from dafka_core.storage import PartitionStatistics

# -- state, nodes and problems ---------------------------------------------------------------------

OK, SILENT, AWAY, FULL, WRONG = "ok", "silent", "away", "full", "wrong"

SETTLE_S: Final = 1.5  # time in which nodes connect to a new node and announce their kind

_WAITING: Final = ("tower_timeout_s", "wait_for_tower")
"""Options that probes do not have: they don't wait for a tower."""


class State(NamedTuple):
    """The state of a tower or a store."""

    what: str
    name: str
    state: str
    why: str = ""


@flags.min_stores_option
@flags.json_option
@flags.timeout_option
@flags.stores_option
@flags.table_options(ReaderOptions, without=_WAITING)
def status(*, min_stores: str | None, timeout_s: float, uris: str, **options: Any) -> None:
    """Exit with 0 if a tower and all known stores respond, else with 1: for probes.

    With --min-stores N, N stores are enough. 'dafka doctor' names causes and remedies.
    """
    from dafka_core.ops.gathering import gathered

    least = parse_least(min_stores)
    states = [*_states(gathered(options, (), parse_uris(uris), timeout_s=timeout_s))]
    output.table(State._fields, states)
    if why := _why_not(states, least):
        raise DafkaError(why)


def _states(facts: Facts) -> Iterator[State]:
    from dafka_core.ops.checks import damage
    from dafka_core.ops.findings import Severity
    from dafka_core.ops.port_probe import check_towers

    towers = check_towers(facts.towers, found=facts.tower_found)
    for tower, finding in zip(facts.towers, towers, strict=True):
        is_ok = finding.severity is Severity.OK
        yield State("tower", str(tower.tower), *((OK,) if is_ok else (WRONG, finding.sentence)))
    for store in facts.stores:
        if store.failure:
            yield State("store", store.store, SILENT, store.failure)
        elif not store.locations and not store.connects:
            yield State("store", store.store, SILENT, "not connected, and does not serve Flight")
        elif store.refusal:
            yield State("store", store.store, FULL, store.refusal)
        else:
            yield State(
                "store",
                store.store,
                OK,
                damage(store.name, store.damaged).sentence if store.damaged else "",
            )
    for known in facts.away:
        yield State("store", known.store, AWAY, "other stores know it, and it does not respond")


def _why_not(states: list[State], least: int | None) -> str:
    towers = [each.state for each in states if each.what == "tower"]
    stores = [each.state for each in states if each.what == "store"]
    if towers and OK not in towers:
        return "no tower responds"
    here = stores.count(OK)
    if not here:
        return "no store accepts records" if FULL in stores else "no store responds"
    if least is not None and least != EVERY_STORE:
        return f"{here} stores respond, and {least} are required" if here < least else ""
    gone = len(stores) - here
    if not gone:
        return ""
    full = f", or are {FULL}" if FULL in stores else ""
    return f"{gone} of {len(stores)} stores do not respond{full}"


@flags.json_option
@flags.table_options(ReaderOptions)
def nodes(**options: Any) -> None:
    """List the towers, and the producers, consumers, stores and readers with their topics.

    It takes two seconds: nodes connect to this command and announce themselves.
    """
    from dafka_core.config.node_options import ALL_NODES

    # With ALL_NODES, each node connects to this reader and announces its kind.
    with dafka_core.Reader(**{**options, "connect_to": ALL_NODES}) as reader:
        time.sleep(SETTLE_S)
        found = reader.neighbours()
        towers = reader.towers()
    rows: list[tuple[object, ...]] = [("", "tower", each, True, "") for each in towers]
    rows += [
        (each.node, each.kind or "-", each.endpoint, each.connected, ",".join(each.topics))
        for each in found
    ]
    output.table(("node", "kind", "endpoint", "connected", "topics"), rows)


@flags.option(
    "--topic",
    multiple=True,
    type=flags.TOPIC,
    metavar="TOPIC",
    help="A topic to check; may be given several times.",
)
@flags.json_option
@flags.timeout_option
@flags.stores_option
@flags.table_options(ReaderOptions, without=_WAITING)
def doctor(*, topic: Sequence[str], timeout_s: float, uris: str, **options: Any) -> None:
    """Diagnose a cluster: towers, stores, topics, clocks, versions, locks and connections.

    Exits with 1 if it finds a problem; warnings do not count.
    """
    from dafka_core.ops.checks import check_all, check_security
    from dafka_core.ops.findings import problems
    from dafka_core.ops.gathering import gathered

    facts = gathered(options, topic, parse_uris(uris), timeout_s=timeout_s)
    found = [*check_all(facts), *check_security(ReaderOptions.build(options), facts)]
    rows = [(each.severity.value, *each[1:4]) for each in found]
    names = ("severity", "about", "finding", "remedy")
    output.table(names, rows, wrapped=("finding", "remedy"))
    if wrong := problems(found):
        raise DafkaError("1 problem" if len(wrong) == 1 else f"{len(wrong)} problems")


# -- lists -----------------------------------------------------------------------------------------

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
    with finder.clients() as clients:
        for client in clients:
            here = client.staged(timeout_s=timeout_s)
            before_us = client.clock_us(timeout_s=timeout_s) - idle_hours * 3.6e9
            here = [each for each in here if each.staged_at_us <= before_us]
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

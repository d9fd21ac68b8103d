"""The offsets of a query's partitions: its start and end, latest, earliest, by time, and archived.

A store sends what has changed since its previous answer, so the cost of a trigger follows the
changes and not the number of partitions.  While a query is idle, each store also holds one open
request, which it answers as soon as something changes.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from dafka_core.archive import archive
from dafka_core.archive.manifest import ArchivedFile
from dafka_core.config.missing_stores import check_min_stores, warning
from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import ConfigError, DafkaError, NoStoreError
from dafka_core.flight.limits import MAX_NAMES, MAX_RANGES
from dafka_core.flight.requests import RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, quoted
from dafka_core.model.positions import AGO, EARLIEST, OFFSET, TIME, Position
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_core.model.timestamps import shown_time
from dafka_core.queries.source_offset import Positions
from dafka_spark.cluster import cluster_reader, connections, timing
from dafka_spark.cluster.cluster_reader import ClusterReader, map_concurrently, remember
from dafka_spark.cluster.connections import Connect
from dafka_spark.cluster.store_registry import Answer, StoreRegistry
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_types import EVERY_TOPIC, TopicSelection, as_written
from dafka_spark.options import AUTO, LOCAL, MESH, Bound, SourceOptions
from dafka_spark.source.offset_ranges import NOT_ARCHIVED, Archived, Sizes, StoreRange, Waiting

T = TypeVar("T")

Heads = Mapping[TopicPartition, PartitionInfo]  # the earliest and the end offset of each partition

_log = logging.getLogger("dafka_spark")


class OffsetsSnapshot(NamedTuple):
    """The contents of the stores, and of an archive, at one moment.

    Attributes:
        heads: the selected partitions, merged from all stores, in order.
        answers: the answer of each store by Flight.
        silent: the stores that the mesh announces and that do not answer.
        is_complete: Flight alone has answered; the mesh was not needed.
        archived: the files of the archive; ``heads`` includes their records.
    """

    heads: Heads
    answers: Sequence[Answer[Heads]] = ()
    silent: Sequence[str] = ()
    is_complete: bool = False
    archived: Archived = NOT_ARCHIVED

    def holders(self, tp: TopicPartition) -> list[StoreRange]:
        """Return the stores that serve a partition by Flight, with their ranges."""
        return [StoreRange(at, *heads[tp][2:]) for at, heads in self.answers if tp in heads]

    @property
    def locations(self) -> list[StoreLocation]:
        """The stores that answered by Flight."""
        return [location for location, _ in self.answers]


_Found = tuple[range, int | None]
"""The offsets that a store or the archive has, and that of a time in it; None: all are older."""


class TimeOffsets(NamedTuple):
    """The offsets of one time in each partition.

    Attributes:
        found: the first offset published at the time or later; None if no record is so new.
        failures: the error of a store of each partition of which one has not answered.
        ahead_us: how far the store clock that is furthest ahead is ahead of this machine's.
    """

    found: dict[TopicPartition, int | None]
    failures: dict[TopicPartition, DafkaError]
    ahead_us: int


class Resolved(NamedTuple):
    """The offsets of a bound.

    ``since_us`` is the time that the bound sets for all partitions, later ones included, in
    microseconds since the epoch UTC by this machine's clock; None if it sets none.
    """

    offsets: Positions
    since_us: int | None = None


_registries: WeakKeyDictionary[ClusterReader, StoreRegistry] = WeakKeyDictionary()
"""The stores of a mesh, by its reader, once the mesh has answered that reader."""

_NO_TIMES: Final = (
    "no store can find times in {}: only stores with Arrow Flight can, except with fetch = mesh; "
    "name an offset, or read from such a store"
)
_UNMATCHED: Final = (
    "{} has no record of {} or later; with startingOffsetsByTimestampStrategy = latest the query "
    "starts at the end of such partitions"
)
_UNSELECTED: Final = (
    "option %s = %r does not select %d of the checkpoint's %d partitions any more, the first one "
    "%s: the query does not read them. Set the option back to continue with them, or start another "
    "query with a new checkpoint"
)
_NONE_MATCHED: Final = (
    "option %s = %r: no partition has a record of this time or later, so the query starts at the "
    "end of each; check the time if records were expected"
)


class OffsetReader:
    """Reads the offsets of one query's partitions.  For one thread."""

    def __init__(
        self, options: SourceOptions, connect: Connect, selection: TopicSelection | None = None
    ) -> None:
        self._options = options
        self._connect = connect
        self._selection = selection or options.selection
        self._watch = StoreWatch(self._selection, options.keys)
        self._last = OffsetsSnapshot({})
        self._archive: archive.Archive | None = None
        self._archived: archive.Held = {}
        self._earliest: dict[TopicPartition, int] = {}

    def snapshot(self, *, thorough: bool = False) -> OffsetsSnapshot:
        """Return the earliest and latest offsets; the previous snapshot if nothing has changed.

        ``thorough`` is for an answer that decides what a whole query reads: a store that Flight
        does not reach is then contacted over the mesh at once.

        Raises:
            StoreUnreachableError: ``fetch`` allows Flight only, and no store answers.
            DafkaError: a retry does not help.
        """
        found = self._stores_snapshot(thorough=thorough)
        if found is not self._last:
            self._last = self._with_archive(found) if self._options.archive else found
        return self._last

    def wait(self, snapshot: OffsetsSnapshot, timeout_s: float) -> bool:
        """Wait until a store of the snapshot may have changed; return False if none has."""
        return self._watch.wait(snapshot.locations, timeout_s)

    def resolve(self, bound: Bound, snapshot: OffsetsSnapshot, began_us: int = 0) -> Resolved:
        """Return the offset of every partition; relative positions stay within each partition.

        ``began_us`` is the time of the query's start, in microseconds since the epoch UTC.

        Raises:
            ConfigError: the bound is beyond a partition's end, or no time in it is found.
            DafkaError: the stores that could find times do not answer.
        """
        heads = snapshot.heads
        for tp, position in bound.limit.partitions.items():
            known = heads.get(tp)
            if position.base == OFFSET and position.number > (known.end if known else 0):
                why = f"no store has {tp}; partitions have the UUIDs that 'dafka heads' lists"
                if known:
                    why = f"{tp} has offsets {known.earliest} up to, not including, {known.end}"
                raise ConfigError(bound.option, position.number, why)
        wanted = {tp: bound.limit.of(tp, bound.default) for tp in heads}
        times = {tp: each for tp, each in wanted.items() if each.base in (TIME, AGO)}
        answers = self.offsets_for_times(times, snapshot, self._options.fetch_timeout_s)
        for tp in sorted(times.keys() - answers.found.keys()):
            why = _NO_TIMES.format(tp)
            raise answers.failures.get(tp) or ConfigError(bound.option, bound.limit.text, why)
        unmatched = [tp for tp in times if answers.found[tp] is None]
        if unmatched and bound.is_strict:
            why = _UNMATCHED.format(unmatched[0], shown_time(wanted[unmatched[0]].number))
            raise ConfigError(bound.option, bound.limit.text, why)
        fixed = [tp for tp in times if wanted[tp].base == TIME]
        if fixed and fixed == unmatched and bound.option.startswith("starting"):
            _log.warning(_NONE_MATCHED, bound.option, bound.limit.text)
        found = {tp: heads[tp].end if each is None else each for tp, each in answers.found.items()}
        offsets = {
            tp: found[tp] if tp in times else position.offset_in(heads[tp])
            for tp, position in wanted.items()
        }
        for tp, position in wanted.items():
            if position.base == EARLIEST:
                offsets[tp] = min(offsets[tp], heads[tp].end)
        return Resolved(offsets, _since_us(bound.everywhere, began_us, answers))

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, Position],
        snapshot: OffsetsSnapshot,
        timeout_s: float = 0.0,
    ) -> TimeOffsets:
        """Return the offsets of these times, each between the partition's earliest and its end.

        Stores that do not answer are retried for ``timeout_s``.
        """
        for _ in Deadline(timeout_s).attempts():
            answers, failures, ahead_us = self._ask_times(times, snapshot)
            if not failures:
                break
        now_us = time.time_ns() // 1_000 + ahead_us
        for tp in snapshot.archived.keys() & times.keys() - (failures.keys() - answers.keys()):
            files, time_us = snapshot.archived[tp], _by_clock(times[tp], now_us)
            offset = archive.offset_of_time(self._options.archive, tp, files, time_us)
            answers[tp].append((range(files[0].start, files[-1].end), offset))
        found = {tp: _first(each, snapshot.heads[tp]) for tp, each in answers.items()}
        for tp in failures.keys() & found.keys():
            # A store that has not answered may have an earlier record of the time.
            earliest = min(held.start for held, _ in answers[tp])
            if found[tp] == earliest > snapshot.heads[tp].earliest:
                del found[tp]
        return TimeOffsets(found, failures, ahead_us)

    def bounds_of_time(
        self,
        time_us: int,
        tps: Collection[TopicPartition],
        snapshot: OffsetsSnapshot,
        *,
        after_all: bool,
    ) -> dict[TopicPartition, int]:
        """Return an offset of each partition before which all records are older than the time.

        With ``after_all``, one from which on no record is older.  A record with different times at
        two stores (docs/guarantees.md) counts with both.  Partitions without an answer are missing;
        all of them, if a store does not answer.
        """
        times = dict.fromkeys(tps, Position(TIME, time_us))
        answers, failures, _ = self._ask_times(times, snapshot, after_all=after_all)
        for error in failures.values():
            _log.warning("%s; the query's ranges are not narrowed by time", error)
            return {}
        in_files, bound = (_end_in_files, _end) if after_all else (_first_in_files, _start)
        for tp in snapshot.archived.keys() & times.keys():
            files = snapshot.archived[tp]
            answers[tp].append((range(files[0].start, files[-1].end), in_files(files, time_us)))
        return {tp: bound(each, snapshot.heads[tp]) for tp, each in answers.items()}

    def _ask_times(
        self,
        times: Mapping[TopicPartition, Position],
        snapshot: OffsetsSnapshot,
        *,
        after_all: bool = False,
    ) -> tuple[dict[TopicPartition, list[_Found]], dict[TopicPartition, DafkaError], int]:
        """Return the answers of all stores of the snapshot, failures, and the clocks' advance.

        With ``after_all`` stores return the end of all older records instead of the first record.
        """
        parts = [(at, [heads[tp] for tp in times if tp in heads]) for at, heads in snapshot.answers]
        parts = [(at, infos) for at, infos in parts if infos]

        def ask(
            part: tuple[StoreLocation, list[PartitionInfo]],
        ) -> tuple[int, list[int | None]] | DafkaError:
            location, infos = part
            try:
                with connections.borrow_client(location, self._options.keys) as client:
                    own_us = time.time_ns() // 1_000
                    now_us = client.clock_us(timeout_s=self._answer_s)
                    rows = [(*info.tp, _by_clock(times[info.tp], now_us)) for info in infos]
                    return now_us - own_us, client.offset_for_times(
                        rows, timeout_s=self._answer_s, after_all=after_all
                    )
            except DafkaError as error:
                return error

        found: dict[TopicPartition, list[_Found]] = defaultdict(list)
        failures: dict[TopicPartition, DafkaError] = {}
        ahead_us = []
        for (_, infos), answer in zip(parts, map_concurrently(ask, parts), strict=True):
            if isinstance(answer, DafkaError):
                failures |= {info.tp: answer for info in infos}
                continue
            ahead_us.append(answer[0])
            for info, offset in zip(infos, answer[1], strict=True):
                found[info.tp].append((range(info.earliest, info.end), offset))
        return found, failures, max(ahead_us, default=0)

    def record_sizes(
        self, waiting: Waiting, firsts: Mapping[TopicPartition, int], snapshot: OffsetsSnapshot
    ) -> Sizes:
        """Return samples of the sizes of waiting records, from offsets ``firsts`` on.

        Of the partitions with most of them; some may be missing.
        """
        found: dict[TopicPartition, Sequence[float]] = {}
        stores: dict[StoreLocation, list[RecordRange]] = defaultdict(list)
        for tp in heapq.nlargest(MAX_RANGES, waiting, key=waiting.__getitem__):
            if held := snapshot.holders(tp):
                best = max(held, key=lambda each: (each.life, each.end, -each.earliest))
                wanted = RecordRange(*tp, firsts[tp], firsts[tp] + waiting[tp])
                stores[best.location].append(wanted)
        for location, ranges in stores.items():
            try:
                with connections.borrow_client(location, self._options.keys) as client:
                    sizes = client.record_sizes(ranges, timeout_s=self._answer_s).sizes
            except DafkaError as error:
                _log.debug("the size of records is unknown: %s", error)
                continue
            for wanted, size in zip(ranges, sizes, strict=False):
                found[wanted.tp] = size or ()
        return found

    def query_stores(self, work: Callable[[StoreClient], T]) -> list[Answer[T]]:
        """Run some work at each store with Flight that the latest snapshot found, in parallel."""
        with self._connect(self._options.mesh_address) as reader:
            registry = _registries.get(reader, StoreRegistry(keys=self._options.keys))
        return registry.ask(work, timeout_s=self._answer_s)

    @contextmanager
    def clients(self) -> Iterator[list[StoreClient]]:
        """Yield a client of each store with Flight that answers."""
        found = self.query_stores(lambda client: client.location)
        with ExitStack() as borrowed:
            borrow = connections.borrow_client
            yield [borrowed.enter_context(borrow(at, self._options.keys)) for at, _ in found]

    def check_stores(self) -> None:
        """Warn of unreachable stores; raise ConfigError if they are too many (``minStores``)."""
        with self._connect(self._options.mesh_address) as reader:
            missing = reader.missing_stores(timeout_s=timing.DISCOVERY_TIMEOUT_S)
            there = {*reader.stores()} - {each.store for each in missing}
        check_min_stores("minStores", self._options.min_stores, len(there), missing)
        for each in missing:
            _log.warning("%s", warning(each))

    def check_found(
        self, held: Collection[TopicPartition], bound: Bound | None = None, *, waits: bool = False
    ) -> None:
        """Raise ConfigError for a name that no store has; warn if the query waits for it.

        The names are those in ``bound``, by default those that the query selects.
        """
        missing = (bound.limit.named if bound else self._selection).missing(held)
        others = OffsetReader(self._options, self._connect, TopicSelection(pattern=EVERY_TOPIC))
        everything = others._stores_snapshot(thorough=False).heads if missing else ()
        for each in missing:
            name, why = _why_missing(each, everything)
            if not waits and self._options.fail_on_missing_topic:
                option = "assign" if self._options.assign else "subscribe"
                why = f"{why}; failOnMissingTopic = false reads it as empty"
                raise ConfigError(bound.option if bound else option, name, why)
            where = f"option {bound.option}: " if bound else ""
            _log.warning("%s%s; it is empty until a store has it", where, why)

    def warn_of_unselected(self, positions: Positions) -> None:
        """Warn of partitions in a checkpoint that the options do not select any more."""
        unread = [tp for tp in positions if not self._selection.has(tp)]
        if unread:
            options = self._options
            name = "subscribePattern" if options.subscribe_pattern else "subscribe"
            name = "assign" if options.assign else name
            value = options.assign or options.subscribe_pattern or options.subscribe
            counts = len(unread), len(positions)
            _log.warning(_UNSELECTED, name, as_written(value), *counts, unread[0])

    @property
    def _answer_s(self) -> float:
        return min(self._options.fetch_timeout_s, timing.REQUEST_TIMEOUT_S)

    def _stores_snapshot(self, *, thorough: bool) -> OffsetsSnapshot:
        self._watch.clear()
        with self._connect(self._options.mesh_address) as reader:
            if self._options.fetch == MESH:
                heads = merge_heads(self._discover(reader) or ())
                self._registry(reader).update(reader.endpoints(), reader.stores())
                return OffsetsSnapshot(heads)
            registry, answers, over_mesh = self._ask_stores(reader, thorough=thorough)
        remember(self._options.mesh_address.name, registry.locations)
        silent = tuple(registry.silent())
        last = self._last
        if over_mesh is None and last.is_complete and last[1:3] == (answers, silent):
            return last
        if self._options.fetch == AUTO:
            others = over_mesh or []
        else:
            self._check_fetch(registry, answers, over_mesh or ())
            others = []
        infos = [info for _, heads in answers for info in heads.values()]
        is_one = len(answers) == 1 and not others  # merging 10,000 partitions takes 15 ms
        heads = dict(sorted(answers[0][1].items())) if is_one else merge_heads(infos + others)
        return OffsetsSnapshot(heads, answers, silent, over_mesh is None)

    def _ask_stores(
        self, reader: ClusterReader, *, thorough: bool
    ) -> tuple[StoreRegistry, list[Answer[Heads]], list[PartitionInfo] | None]:
        """Ask the stores by Flight, and over the mesh if Flight may lack some partitions.

        The mesh's answers are None if they were not needed.
        """
        over_mesh: list[PartitionInfo] | None = None
        if reader not in _registries or not reader.endpoints():
            over_mesh = self._discover(reader)
        elif thorough:
            with suppress(NoStoreError):  # the known stores still answer
                reader.wait_for_stores(timeout_s=timing.DISCOVERY_TIMEOUT_S)
        registry = self._registry(reader)
        answers = self._by_flight(registry, reader)
        if not answers and over_mesh is None:
            # None of the known stores answers: this waits for one that comes back.
            over_mesh = self._over_mesh(reader)
            answers = self._by_flight(registry, reader, again=True)
        failing = registry.failures(0.0 if thorough else timing.FLIGHT_FAILURE_S)
        is_allowed = thorough or self._options.fetch == AUTO
        if over_mesh is None and is_allowed and (registry.others or failing):
            over_mesh = self._over_mesh(reader)
        return registry, answers, over_mesh

    def _registry(self, reader: ClusterReader) -> StoreRegistry:
        """Return the registry of a mesh that has answered."""
        return _registries.setdefault(reader, StoreRegistry(keys=self._options.keys))

    def _by_flight(
        self, registry: StoreRegistry, reader: ClusterReader, *, again: bool = False
    ) -> list[Answer[Heads]]:
        registry.update(reader.endpoints(), reader.stores())
        return registry.ask(
            lambda client: self._watch.heads(client, self._answer_s),
            timeout_s=self._answer_s,
            # A log file is readable only in the session that the location names.
            max_age_s=0.0 if self._options.fetch == LOCAL else timing.LOCATION_MAX_AGE_S,
            again=again,
        )

    def _over_mesh(self, reader: ClusterReader, timeout_s: float = math.inf) -> list[PartitionInfo]:
        timeout_s = min(timeout_s, self._options.fetch_timeout_s)
        return self._selection.of(reader.partitions(self._selection.asked, timeout_s=timeout_s))

    def _discover(self, reader: ClusterReader) -> list[PartitionInfo] | None:
        """Wait until stores are discovered, and return their answers over the mesh.

        Return None if stores cannot connect to this process and serve Flight instead.
        """
        deadline = Deadline(self._options.fetch_timeout_s)
        address = self._options.mesh_address
        try:
            return self._over_mesh(reader, timing.DISCOVERY_TIMEOUT_S)
        except NoStoreError as error:
            has_flight = set(reader.stores()) <= set(reader.endpoints())
            if error.unconnected and self._options.fetch != MESH and has_flight:
                _log.warning(
                    "stores have not connected to %s and are read by Arrow Flight alone: %s",
                    error.endpoint,
                    ", ".join(error.unconnected),
                )
                cluster_reader.warn_of_towers(address)
                return None
            diagnosis = cluster_reader.explain(reader, address, error, deadline)
        try:
            return self._over_mesh(reader, deadline.left_s)
        except NoStoreError as error:
            raise cluster_reader.diagnosed(error, deadline, diagnosis) from None

    def _check_fetch(
        self,
        registry: StoreRegistry,
        answers: Sequence[Answer[Heads]],
        over_mesh: Sequence[PartitionInfo],
    ) -> None:
        """Raise an error unless the stores with Flight can do what ``fetch`` demands."""
        missing = {info.tp for info in over_mesh}.difference(*(heads for _, heads in answers))
        failures = registry.failures()
        if failures and (not answers or (missing and not registry.others)):
            raise failures[0]
        if not answers:
            why = "no store of this mesh serves Arrow Flight; start one without --flight-port off, "
            why += "or read with fetch = auto or mesh"
        elif self._options.fetch == LOCAL and not any(at.directory for at, _ in answers):
            why = "no store announces a log on this machine; read with fetch = auto or flight"
        elif missing:
            why = f"{min(missing)} is only in stores that serve no Arrow Flight; use fetch = auto"
        else:
            return
        raise ConfigError("fetch", self._options.fetch, why)

    def _with_archive(self, snapshot: OffsetsSnapshot) -> OffsetsSnapshot:
        if self._archive is None:
            self._archive = archive.Archive(self._options.archive)
        earliest = {tp: info.earliest for tp, info in snapshot.heads.items()}
        if earliest != self._earliest or not self._earliest:
            # Stores archive records before they trim them: otherwise the archive has no news.
            self._archived = self._archive.held(self._selection.asked)
            self._earliest = earliest
        held = self._archived
        infos = self._selection.of(archive.info_of(tp, files) for tp, files in held.items())
        heads = merge_heads([*snapshot.heads.values(), *infos])
        return snapshot._replace(heads=heads, archived={info.tp: held[info.tp] for info in infos})


def _why_missing(tp: TopicPartition, held: Collection[TopicPartition]) -> tuple[str, str]:
    """Return the name that no store has, and a sentence about it."""
    topic, name = quoted(tp.topic), escape(tp.partition)
    partitions = [each.partition for each in held if each.topic == tp.topic]
    if not partitions:
        near = what_there_is(tp.topic, {each.topic for each in held}, "topics")
        return escape(tp.topic), f"no store has topic {topic} ({near})"
    near = what_there_is(tp.partition, partitions, "partitions")
    return name, f"no store has partition {name} of topic {topic} ({near})"


def _by_clock(position: Position, now_us: int) -> int:
    """Return the time of a position by the clock of a store."""
    return now_us - position.number if position.base == AGO else position.number


def _since_us(everywhere: Position | None, began_us: int, answers: TimeOffsets) -> int | None:
    if everywhere is None or everywhere.base == EARLIEST:
        return None
    if everywhere.base == TIME:
        # By this machine's clock, which is compared with the stores' clocks later on.
        return min(everywhere.number - answers.ahead_us, began_us)
    return began_us - (everywhere.number if everywhere.base == AGO else 0)


def _first(found: Sequence[_Found], head: PartitionInfo) -> int | None:
    """Return the first offset of a time by the answers of all sources; None if all are older."""
    offset = min((each for _, each in found if each is not None), default=None)
    if offset is None:
        furthest = max(held.stop for held, _ in found)
        return furthest if furthest < head.end else None  # records that no source has may be newer
    return min(max(offset, head.earliest), head.end)


def _start(found: Sequence[_Found], head: PartitionInfo) -> int:
    # Records behind those of all sources may be newer than the time, and records before those of
    # all sources may be new enough if the first one of these is.
    furthest = max(held.stop for held, _ in found)
    offset = min([furthest, *(each for _, each in found if each is not None)])
    return head.earliest if offset <= min(held.start for held, _ in found) else offset


def _end(found: Sequence[_Found], head: PartitionInfo) -> int:
    if all(each is None for _, each in found):
        return head.end
    return max(
        held.stop if each is None else each
        for held, each in found
        # A store without older records knows nothing of others' records before its own.
        if each != held.start or not any(other.start < each <= other.stop for other, _ in found)
    )


def _first_in_files(files: Sequence[ArchivedFile], time_us: int) -> int | None:
    newer = (f.start for f in files if f.greatest_us is None or f.greatest_us >= time_us)
    return next(newer, None)


def _end_in_files(files: Sequence[ArchivedFile], time_us: int) -> int | None:
    end = None
    for file in reversed(files):
        if file.least_us is None or file.least_us < time_us:
            break
        end = file.start
    return end


@dataclass(slots=True)
class _WatchedStore:
    """The latest answer of one store; ``heads`` is a new object when it has changed.

    A request for changes may be sent from ``watch_at`` on: never while one is open.
    """

    location: StoreLocation
    cursor: str = ""
    complete_at: float = -math.inf
    heads: dict[TopicPartition, PartitionInfo] = field(default_factory=dict)
    watch_at: float = -math.inf


class StoreWatch:
    """The partitions of each store, kept up to date by what the stores send as changed.

    One thread calls it; ``heads`` may run for several stores in parallel.
    """

    def __init__(self, selection: TopicSelection, keys: KeyFiles) -> None:
        self._keys = keys
        self._selection = selection
        topics = selection.asked
        self._topics = topics if topics is None or len(topics) <= MAX_NAMES else None
        self._stores: dict[str, _WatchedStore] = {}
        self._changed = threading.Event()

    def clear(self) -> None:
        """Forget changes up to now: the next ``wait`` returns for those after this call."""
        self._changed.clear()

    def heads(self, client: StoreClient, timeout_s: float) -> Heads:
        """Return a store's partitions: the same object as long as nothing has changed."""
        store, now = self._of(client.location), time.monotonic()
        cursor = store.cursor if now < store.complete_at + timing.FULL_HEADS_MAX_AGE_S else ""
        found = client.watch(self._topics, cursor, wait_s=0.0, timeout_s=timeout_s)
        changed = {info.tp: info for info in self._selection.of(found.heads)}
        store.cursor = found.cursor
        if found.complete:
            store.complete_at = now
        heads = changed if found.complete else {**store.heads, **changed}
        if heads != store.heads:
            store.heads = heads
        return store.heads

    def wait(self, locations: Sequence[StoreLocation], timeout_s: float) -> bool:
        """Wait until one of these stores may have changed; return False if none has."""
        stores = [self._of(each) for each in locations]
        for store in stores:
            if time.monotonic() >= store.watch_at:
                store.watch_at = math.inf
                name = "dafka-store-watch"
                threading.Thread(target=self._run, args=(store,), name=name, daemon=True).start()
        if all(store.watch_at == math.inf for store in stores):
            return self._changed.wait(timeout_s)
        self._changed.wait(min(timeout_s, timing.UNWATCHED_POLL_S))
        return True

    def _of(self, location: StoreLocation) -> _WatchedStore:
        store = self._stores.get(location.store)
        if store is None or store.location != location:
            store = self._stores[location.store] = _WatchedStore(location)
        return store

    def _run(self, store: _WatchedStore) -> None:
        wait_s, timeout_s, next_at = timing.WATCH_TIMEOUT_S, timing.REQUEST_TIMEOUT_S, -math.inf
        try:
            with connections.borrow_client(store.location, self._keys) as client:
                client.watch(self._topics, store.cursor, wait_s=wait_s, timeout_s=timeout_s)
        except DafkaError as error:
            _log.debug("%s", error)  # the next snapshot finds the cause
            next_at = time.monotonic() + timing.STORE_BACKOFF_S
        store.watch_at = next_at
        self._changed.set()

"""The offsets of partitions: latest, earliest, by time, and archived."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from dafka_core.archive import archive
from dafka_core.archive.manifest import ArchivedFile
from dafka_core.config.missing_stores import check_min_stores, warning
from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import ConfigError, DafkaError, NoStoreError
from dafka_core.flight import limits
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, quoted
from dafka_core.model.packed_offset import Positions
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_spark.cluster import connections, preflight, timing
from dafka_spark.cluster.cluster_reader import ClusterReader as Reader
from dafka_spark.cluster.connections import Connect
from dafka_spark.cluster.known_stores import remember
from dafka_spark.cluster.store_registry import Answer, StoreRegistry
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_types import (
    AGO,
    EARLIEST,
    EVERY_TOPIC,
    LATEST,
    OFFSET,
    TIME,
    Position,
    TopicSelection,
    shown_time,
)
from dafka_spark.options import AUTO, LOCAL, MESH, Bound, SourceOptions
from dafka_spark.source.offset_ranges import NOT_ARCHIVED, Archived, HeldRange, Holders

# What each store holds, kept from one look to the next: the stores tell what has changed.
#
# A look asks each store for what is new, so its cost grows with what has changed and not with the
# number of partitions.  While a query waits, each store also has one request that it answers when
# something changes: that says when to look, and the look says what there is.


Infos = list[PartitionInfo]

_log = logging.getLogger("dafka_spark")


@dataclass(slots=True)
class _Known:
    """What one store holds; ``infos`` is another list when that has changed."""

    location: StoreLocation
    tells_changes: bool
    cursor: str = ""
    complete_at: float = -math.inf
    held: dict[TopicPartition, PartitionInfo] = field(default_factory=dict)
    infos: Infos = field(default_factory=list)
    is_watched: bool = False
    unwatched_until: float = -math.inf


class StoreWatch:
    """What stores hold of some partitions, for one query.

    Looks are made by one thread, which may ask several stores at the same time.
    """

    def __init__(self, selection: TopicSelection, keys: KeyFiles) -> None:
        self._keys = keys
        self._selection = selection
        self._asked = selection.asked
        self._known: dict[str, _Known] = {}
        self._news = threading.Event()

    def begin_look(self) -> None:
        """To be called before stores are asked: what is new from now on ends the next ``wait``."""
        self._news.clear()

    def ask(self, client: StoreClient, timeout_s: float) -> Infos:
        """What a store holds: the same list as long as nothing has changed."""
        known = self._of(client.location)
        if known.tells_changes:
            return self._ask_changes(known, client, timeout_s)
        found = self._selection.of(client.heads(self._asked, timeout_s=timeout_s))
        known.infos = known.infos if found == known.infos else found
        return known.infos

    def wait(self, locations: Sequence[StoreLocation], timeout_s: float) -> bool:
        """Waits until one of these stores may hold something new; False if none has said so."""
        watched = [self._has_watch(self._of(each)) for each in locations]
        if all(watched):
            return self._news.wait(timeout_s)
        self._news.wait(min(timeout_s, timing.UNWATCHED_S))
        return True

    def _of(self, location: StoreLocation) -> _Known:
        known = self._known.get(location.store)
        if known is None or known.location != location:
            can_be_asked = self._asked is None or len(self._asked) <= limits.MAX_NAMES
            known = self._known[location.store] = _Known(location, can_be_asked)
        return known

    def _ask_changes(self, known: _Known, client: StoreClient, timeout_s: float) -> Infos:
        now = time.monotonic()
        cursor = known.cursor if now < known.complete_at + timing.COMPLETE_S else ""
        found = client.watch(self._asked, cursor, wait_s=0.0, timeout_s=timeout_s)
        news = {info.tp: info for info in self._selection.of(found.heads)}
        held = news if found.complete else known.held | news if news else known.held
        known.cursor = found.cursor
        if found.complete:
            known.complete_at = now
        if held != known.held:
            known.held, known.infos = held, list(held.values())
        return known.infos

    def _has_watch(self, known: _Known) -> bool:
        if not known.tells_changes or not known.cursor:
            return False
        if not known.is_watched and time.monotonic() >= known.unwatched_until:
            known.is_watched = True
            arguments = (known, known.cursor)
            name = "dafka-store-watch"
            threading.Thread(target=self._watch, args=arguments, name=name, daemon=True).start()
        return known.is_watched

    def _watch(self, known: _Known, cursor: str) -> None:
        waiting = {"wait_s": timing.WATCH_S, "timeout_s": timing.ANSWER_S}
        try:
            with connections.lend_client(known.location, self._keys) as client:
                client.watch(self._asked, cursor, **waiting)
        except DafkaError as error:
            _log.debug("%s", error)  # the next look finds out what it means
            known.unwatched_until = time.monotonic() + timing.RETRY_S
        known.is_watched = False
        self._news.set()


T = TypeVar("T")

Heads = Mapping[TopicPartition, PartitionInfo]
"""What the stores hold together, by partition."""


class OffsetsSnapshot(NamedTuple):
    """What the stores hold at one moment.

    Attributes:
        heads: of each selected partition what all of them have together, in order.
        holders: which stores can be read in bulk, and what each of them has.
        answered: the stores that said so themselves, by Flight.
        silent: the stores that are there, so far as the mesh knows, and do not answer.
        answers: what each store has answered by Flight, if the mesh was not asked, too.
        archived: the files of the archive, of which ``heads`` tell, too.
        archive: its directory.
        keys: by which these stores let this process in.
    """

    heads: Heads
    holders: Holders
    answered: frozenset[str] = frozenset()
    silent: Sequence[str] = ()
    answers: Sequence[Answer[Infos]] = ()
    archived: Archived = NOT_ARCHIVED
    archive: str = ""
    keys: KeyFiles = NO_KEYS

    def is_of(self, answers: Sequence[Answer[Infos]], silent: Sequence[str]) -> bool:
        """Whether it was made of these answers: what has not changed is the same list."""
        return (self.silent, len(self.answers)) == (silent, len(answers)) and all(
            location == before[0] and infos is before[1]
            for (location, infos), before in zip(answers, self.answers, strict=True)
        )


_registries: WeakKeyDictionary[Reader, StoreRegistry] = WeakKeyDictionary()
"""The stores of a mesh, by its reader once that has been there for long enough to know them all."""


def fetch_latest_offsets(
    options: SourceOptions,
    connect: Connect,
    *,
    thorough: bool,
    watch: StoreWatch | None = None,
    before: OffsetsSnapshot | None = None,
) -> OffsetsSnapshot:
    """What the stores hold of the partitions that are read.

    With a ``watch`` they are asked for what has changed since the look ``before``, whose snapshot
    it is if nothing has.

    ``thorough`` is for an answer that decides what a whole query reads: then a store that Flight
    does not reach is asked over the mesh at once.

    Raises:
        ConfigError: option ``fetch`` asks for what no store offers, or not for all partitions.
        NoStoreError: no store was heard of within ``fetchTimeoutMs``.
        StoreUnreachableError: ``fetch`` allows Flight only, and no store answers.
    """
    with connect(options.mesh_address) as reader:
        if options.fetch == MESH:
            return OffsetsSnapshot(merge_heads(_meet(reader, options) or ()), {})
        over_mesh: Infos | None = None
        if reader not in _registries or not reader.endpoints():
            over_mesh = _meet(reader, options)
        elif thorough:
            _hear_stores(reader)
        registry = _registries.setdefault(reader, StoreRegistry(keys=options.keys))
        answers = _ask_stores(registry, reader, options, watch)
        if not answers and over_mesh is None:
            # No store that was there answers: this waits for one that comes back.
            over_mesh = _ask_mesh(reader, options)
            answers = _ask_stores(registry, reader, options, watch, again=True)
        failing = registry.failures(0.0 if thorough else timing.UNREACHABLE_S)
        is_partial = bool(registry.others or failing)
        if over_mesh is None and is_partial and (thorough or options.fetch == AUTO):
            over_mesh = _ask_mesh(reader, options)
    remember(options.mesh_address.name, registry.locations)
    silent = tuple(registry.silent())
    if over_mesh is None and before is not None and before.is_of(answers, silent):
        return before
    locations = [location for location, _ in answers]
    held = [(location, info) for location, infos in answers for info in infos]
    holders: dict[TopicPartition, list[HeldRange]] = {}
    for location, info in held:
        held_range = HeldRange(location, info.earliest, info.end, info.life)
        holders.setdefault(info.tp, []).append(held_range)
    infos = [info for _, info in held]
    if options.fetch == AUTO:
        infos += over_mesh or ()
    elif not answers and registry.failures():
        raise registry.failures()[0]
    else:
        missing = {info.tp for info in over_mesh or ()} - set(holders)
        _check_possible(options, locations, missing)
    answered = frozenset(location.store for location in locations)
    alone = answers if over_mesh is None else ()
    return OffsetsSnapshot(merge_heads(infos), holders, answered, silent, alone, keys=options.keys)


def ask_known(
    options: SourceOptions, connect: Connect, work: Callable[[StoreClient], T]
) -> list[Answer[T]]:
    """Has each store with Flight that the last look has found do some work, all at a time."""
    with connect(options.mesh_address) as reader:
        registry = _registries.get(reader, StoreRegistry(keys=options.keys))
    return registry.ask(work, timeout_s=min(options.fetch_timeout_s, timing.ANSWER_S))


def _hear_stores(reader: Reader) -> None:
    with suppress(NoStoreError):  # those of before are there all the same
        reader.hear_stores(timeout_s=timing.FIND_S)


def _meet(reader: Reader, options: SourceOptions) -> Infos | None:
    """Waits until stores have been heard of; what they say over the mesh.

    That is None where stores cannot connect to this process: their answers do not come, but where
    they serve Flight does.
    """
    began = Deadline(options.fetch_timeout_s)
    try:
        return _ask_mesh(reader, options, min(timing.FIND_S, began.timeout_s))
    except NoStoreError as error:
        by_flight = options.fetch != MESH and set(reader.stores()) <= set(reader.endpoints())
        if error.unmet and by_flight:
            text = (
                "stores are asked by Arrow Flight alone, as they have not connected here, at %s: %s"
            )
            _log.warning(text, error.endpoint, ", ".join(error.unmet))
            preflight.warn_of_towers(options.mesh_address)
            return None
        diagnosis = preflight.explain(reader, options.mesh_address, error, began)
    try:
        return _ask_mesh(reader, options, began.left_s)
    except NoStoreError as error:
        raise preflight.no_store(error, began, diagnosis) from None


def _ask_mesh(reader: Reader, options: SourceOptions, timeout_s: float = math.inf) -> Infos:
    timeout_s = min(timeout_s, options.fetch_timeout_s)
    infos = reader.partitions(options.selection.asked, timeout_s=timeout_s)
    return options.selection.of(infos)


def _ask_stores(
    registry: StoreRegistry,
    reader: Reader,
    options: SourceOptions,
    watch: StoreWatch | None,
    *,
    again: bool = False,
) -> list[Answer[Infos]]:
    selection, timeout_s = options.selection, min(options.fetch_timeout_s, timing.ANSWER_S)

    def ask(client: StoreClient) -> Infos:
        if watch is not None:
            return watch.ask(client, timeout_s)
        return selection.of(client.heads(selection.asked, timeout_s=timeout_s))

    registry.update(reader.endpoints(), reader.stores())
    return registry.ask(
        ask,
        timeout_s=timeout_s,
        # A file is read only if its session is the one that the location names.
        max_age_s=0.0 if options.fetch == LOCAL else timing.DESCRIPTION_S,
        again=again,
    )


def _check_possible(
    options: SourceOptions, locations: Sequence[StoreLocation], missing: set[TopicPartition]
) -> None:
    """Raises ``ConfigError`` unless the stores with Flight suffice for what ``fetch`` asks."""
    why = ""
    if not locations:
        why = (
            "no store of this mesh serves Arrow Flight, through which its records are found; "
            "start one without --flight-port off, or read with fetch = auto or mesh"
        )
    elif options.fetch == LOCAL and not any(location.directory for location in locations):
        why = "no store says where its log is; read with fetch = auto or flight"
    elif missing:
        why = (
            f"{min(missing)} is only in stores that serve no Arrow Flight; read with fetch = auto "
            "or mesh"
        )
    if why:
        raise ConfigError("fetch", options.fetch, why)


# Topics and partitions that no store has, and stores that are away, when a query begins.
#
# A query that ends would read nothing in silence: it fails, and so does one that names partitions.
# Other streaming queries wait for them, and say so once.


def check_found(options: SourceOptions, held: Collection[TopicPartition], connect: Connect) -> None:
    """Raises ``ConfigError`` for a name that no store has, if ``failOnMissingTopic`` is true."""
    if options.fail_on_missing_topic and (missing := options.selection.missing(held)):
        option, value, sentence = _sentence(options, missing[0], _all_held(options, connect))
        raise ConfigError(
            option, value, f"{sentence}; failOnMissingTopic = false reads it as empty"
        )


def wait_or_fail(
    options: SourceOptions, held: Collection[TopicPartition], connect: Connect, *, ends: bool
) -> None:
    """The same for a streaming query, which waits unless it ``ends`` or names partitions."""
    if ends or options.assign:
        check_found(options, held, connect)
    missing = options.selection.missing(held)
    everything = _all_held(options, connect) if missing else ()
    for each in missing:
        _, _, sentence = _sentence(options, each, everything)
        _log.warning("%s; the query waits for it", sentence)


def _all_held(options: SourceOptions, connect: Connect) -> Collection[TopicPartition]:
    everything = replace(
        options.without_bounds(),
        subscribe=(),
        assign=frozenset(),
        subscribe_pattern=EVERY_TOPIC,
        metadata="",
    )
    return fetch_latest_offsets(everything, connect, thorough=False).heads


def _sentence(
    options: SourceOptions, missing: TopicPartition, held: Collection[TopicPartition]
) -> tuple[str, str, str]:
    partitions = [tp.partition for tp in held if tp.topic == missing.topic]
    if not partitions:
        option = "assign" if options.assign else "subscribe"
        near = what_there_is(missing.topic, {tp.topic for tp in held}, "topics")
        return option, escape(missing.topic), f"no store has topic {quoted(missing.topic)} ({near})"
    near = what_there_is(missing.partition, partitions, "partitions")
    name = escape(missing.partition)
    what = f"partition {name} of topic {quoted(missing.topic)}"
    return "assign", name, f"no store has {what} ({near})"


def check_stores(options: SourceOptions, connect: Connect) -> None:
    """Warns of each store that is known and away.

    Raises:
        ConfigError: there are fewer stores than option ``minStores`` asks for.
    """
    with connect(options.mesh_address) as reader:
        missing = reader.missing_stores(timeout_s=timing.FIND_S)
        there = len(reader.stores())
    check_min_stores("minStores", options.min_stores, there, missing)
    for each in missing:
        _log.warning("%s", warning(each))


# Offsets at given times, and where a query starts and ends.
#
# A partition's timestamps never go back (docs/guarantees.md), so one offset parts what was
# published before a time from all the rest. Each store is asked once for all partitions of which
# it is the best: some thousands are one request.


Told = tuple[range, list[int | None]]
"""The offsets that somebody has, and where two times are in them; None: all is of before."""


class AskedTime(NamedTuple):
    """A time, in microseconds since the epoch UTC, or before now by the clock of who is asked."""

    us: int
    is_ago: bool = False


@dataclass
class TimeOffsets:
    """What the stores say.

    Attributes:
        found: of each partition that a store has told of, the first offset that was published at
            the time or later; None where no record is so new.
        failures: why stores have not answered, by partition.
        ahead_us: how far the clock of the store that is most ahead is ahead of this machine's.
    """

    found: dict[TopicPartition, int | None] = field(default_factory=dict)
    failures: dict[TopicPartition, DafkaError] = field(default_factory=dict)
    ahead_us: int | None = None


def offsets_of_times(
    asked: Mapping[TopicPartition, AskedTime],
    heads: Mapping[TopicPartition, PartitionInfo],
    holders: Holders,
    timeout_s: float,
    keys: KeyFiles,
) -> TimeOffsets:
    """The offsets of these times, each between the partition's earliest offset and its end.

    The best store of a partition is asked first, and others where it does not answer, or where they
    have earlier records than the first one it has.
    """
    answers = TimeOffsets()
    orders = {tp: ranked(holders.get(tp, ())) for tp in asked}
    for choice in range(max(map(len, orders.values()), default=0)):
        stores: dict[StoreLocation, list[tuple[TopicPartition, HeldRange]]] = {}
        for tp, order in orders.items():
            if choice < len(order) and _is_open(answers, tp, order[:choice], heads[tp]):
                stores.setdefault(order[choice].location, []).append((tp, order[choice]))
        for location, wanted in stores.items():
            try:
                with connections.lend_client(location, keys) as client:
                    offsets = _ask(
                        client, answers, [asked[tp] for tp, _ in wanted], wanted, timeout_s
                    )
            except DafkaError as error:
                answers.failures |= dict.fromkeys((tp for tp, _ in wanted), error)
                continue
            for (tp, held), offset in zip(wanted, offsets, strict=True):
                _take(answers, tp, held, offset, heads[tp])
    return answers


def _ask(
    client: StoreClient,
    answers: TimeOffsets,
    asked: Iterable[AskedTime],
    wanted: Sequence[tuple[TopicPartition, HeldRange]],
    timeout_s: float,
) -> list[int | None]:
    own_us, now_us = time.time_ns() // 1_000, client.clock_us(timeout_s=timeout_s)
    answers.ahead_us = max(
        now_us - own_us, now_us - own_us if answers.ahead_us is None else answers.ahead_us
    )
    times = [now_us - each.us if each.is_ago else each.us for each in asked]
    rows = [(*tp, time_us) for (tp, _), time_us in zip(wanted, times, strict=True)]
    return client.offset_for_times(rows, timeout_s=timeout_s)


def _is_open(
    answers: TimeOffsets, tp: TopicPartition, before: Sequence[HeldRange], head: PartitionInfo
) -> bool:
    """Whether the next store is to be asked, too: nobody has answered, or not for all records."""
    if tp not in answers.found:
        return True
    first = min(held.earliest for held in before)
    return answers.found[tp] == first > head.earliest


def _take(
    answers: TimeOffsets,
    tp: TopicPartition,
    held: HeldRange,
    offset: int | None,
    head: PartitionInfo,
) -> None:
    if offset is None and held.end < head.end:
        offset = held.end  # where all that the store has is older, what it has not may be newer
    if offset is not None:
        offset = min(max(offset, head.earliest), head.end)
    known = answers.found.get(tp)
    answers.found[tp] = offset if known is None or offset is None else min(known, offset)
    answers.failures.pop(tp, None)


def ranked(held: Sequence[HeldRange]) -> list[HeldRange]:
    """The stores of a partition, first those that have most of its newest history."""
    return sorted(held, key=lambda each: (each.life, each.end, -each.earliest), reverse=True)


def spans_of_times(
    times_us: Sequence[int | None],
    tps: Collection[TopicPartition],
    heads: Mapping[TopicPartition, PartitionInfo],
    holders: Holders,
    timeout_s: float,
    archived: Archived = NOT_ARCHIVED,
    *,
    keys: KeyFiles,
) -> dict[TopicPartition, tuple[int, int]]:
    """Offsets that have every record from a time on and before another one, at any store.

    Either may be None.  All stores that have some of a partition are asked: where two of them
    differ about a record's time (docs/guarantees.md) it is in the span if it fits at one of them.
    What an archive has counts as a store's.  A partition that a store has and does not tell of is
    left out.
    """
    told = {tp: [_of_files(archived[tp], times_us)] if archived.get(tp) else [] for tp in tps}
    stores: dict[StoreLocation, list[tuple[TopicPartition, HeldRange]]] = {}
    for tp in tps:
        for held in holders.get(tp, ()):
            if held.earliest < held.end:
                stores.setdefault(held.location, []).append((tp, held))
    for location, wanted in stores.items():
        rows = [(*tp, us) for tp, _ in wanted for us in times_us if us is not None]
        try:
            with connections.lend_client(location, keys) as client:
                offsets = iter(client.offset_for_times(rows, timeout_s=timeout_s))
        except DafkaError as error:
            _log.warning("%s; what it has is not narrowed by time", error)
            for tp, _ in wanted:
                told.pop(tp, None)
            continue
        for tp, held in wanted:
            found = [None if us is None else next(offsets) for us in times_us]
            if tp in told:
                told[tp].append((range(held.earliest, held.end), found))
    return {tp: _span(told[tp], times_us, heads[tp]) for tp in told if told[tp]}


def _of_files(files: Sequence[ArchivedFile], times_us: Sequence[int | None]) -> Told:
    since_us, before_us = times_us
    since: int | None = files[0].start
    before = None
    if since_us is not None:
        newer = (each.start for each in files if each.last_us is None or each.last_us >= since_us)
        since = next(newer, None)
    if before_us is not None:
        older = [n for n, e in enumerate(files) if e.first_us is None or e.first_us < before_us]
        if (fitting := older[-1] + 1 if older else 0) < len(files):
            before = files[fitting].start
    return range(files[0].start, files[-1].end), [since, before]


def _span(
    told: Sequence[Told],
    times_us: Sequence[int | None],
    head: PartitionInfo,
) -> tuple[int, int]:
    start, end = head.earliest, head.end
    if times_us[0] is not None:
        # Where all that stores have is older, what none of them has may be newer; and older records
        # than theirs may be new enough where their first one is.
        first = min(held.start for held, _ in told)
        furthest = max(held.stop for held, _ in told)
        found = min([furthest, *(each for _, (each, _) in told if each is not None)])
        start = start if found <= first else found
    if times_us[1] is not None:
        ends = [each for _, (_, each) in told]
        if any(each is not None for each in ends):
            ranges = [held for held, _ in told]
            end = max(
                held.stop if each is None else each
                for held, each in zip(ranges, ends, strict=True)
                # Who has none of before says nothing of others' records before its own.
                if each != held.start or not any(o.start < each <= o.stop for o in ranges)
            )
    return start, end


class ArchiveLook:
    """Looks at the archive, when stores have given up some records since the last look.

    Raises:
        ArchiveError: option ``archive`` names what is no archive.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._selection = options.selection
        self._directory = options.archive
        self._archive = archive.Archive(options.archive)
        self._held: archive.Held = {}
        self._earliest: dict[TopicPartition, int] | None = None

    def added_to(self, snapshot: OffsetsSnapshot) -> OffsetsSnapshot:
        """What stores and archive have together.

        Raises:
            ArchiveError: the archive is damaged, or the disk fails.
        """
        earliest = {tp: info.earliest for tp, info in snapshot.heads.items()}
        if earliest != self._earliest:
            # Stores give up nothing before it is archived: else there is nothing new to see.
            self._held = self._archive.held(self._selection.asked)
            self._earliest = earliest
        held = self._held
        infos = self._selection.of(archive.info_of(tp, files) for tp, files in held.items())
        heads = merge_heads([*snapshot.heads.values(), *infos])
        archived = {info.tp: held[info.tp] for info in infos}
        return snapshot._replace(heads=heads, archived=archived, archive=self._directory)


def add_archived_times(
    answers: TimeOffsets, asked: Mapping[TopicPartition, AskedTime], snapshot: OffsetsSnapshot
) -> None:
    """Adds to what the stores say of times what the archive does: the first offset of both counts.

    A partition of which a store that has some of it does not tell is left open.

    Raises:
        ArchiveError, DataLossError: a file of the archive cannot be read.
    """
    now_us = time.time_ns() // 1_000 + (answers.ahead_us or 0)
    for tp, each in asked.items():
        files = snapshot.archived.get(tp, ())
        if not files or (tp not in answers.found and snapshot.holders.get(tp)):
            continue
        time_us = now_us - each.us if each.is_ago else each.us
        found = archive.offset_of_time(snapshot.archive, tp, files, time_us)
        known = (found, answers.found.get(tp))
        answers.found[tp] = min((offset for offset in known if offset is not None), default=None)


_UNTOLD: Final = (
    "no store can tell when the records of {} were published: only stores with Arrow Flight can, "
    "and with fetch = mesh none is asked; name an offset, or read from such a store"
)
_UNMATCHED: Final = (
    "{} has no record of {} or later; with startingOffsetsByTimestampStrategy = latest the query "
    "starts at the end of such partitions"
)


class Resolved(NamedTuple):
    """The offsets of a bound.

    ``since_us`` is the time, in microseconds since the epoch UTC by this machine's clock, that the
    bound says of all partitions, also of those that appear later; None where it says none.
    """

    offsets: Positions
    since_us: int | None = None


def resolved(
    bound: Bound, snapshot: OffsetsSnapshot, timeout_s: float, began_us: int = 0
) -> Resolved:
    """The offsets of every partition that is known; what is relative lies within each.

    ``began_us`` is when the query began, in microseconds since the epoch UTC.

    Raises:
        ConfigError: an offset lies beyond its partition's end, no store has a partition that is
            named, none can tell the time of its records, or none of these is as new as asked for.
        DafkaError: the stores that could tell do not answer.
    """
    heads = snapshot.heads
    for tp, position in bound.limit.partitions.items():
        _check_inside(bound, tp, position, heads.get(tp))
    wanted = {tp: bound.limit.of(tp, bound.unnamed) for tp in heads}
    asked = {tp: _asked(each) for tp, each in wanted.items() if each.is_time}
    answers = _told(bound, asked, snapshot, timeout_s)
    offsets = {}
    for tp, position in wanted.items():
        if position.is_time:
            offset = answers.found[tp]
            if offset is None and bound.fails_unmatched:
                why = _UNMATCHED.format(tp, shown_time(position.number))
                raise ConfigError(bound.option, bound.limit.text, why)
            offsets[tp] = heads[tp].end if offset is None else offset
        else:
            offsets[tp] = _offset(position, heads[tp])
    return Resolved(offsets, _since_us(bound.everywhere, began_us, answers))


def _told(
    bound: Bound,
    asked: dict[TopicPartition, AskedTime],
    snapshot: OffsetsSnapshot,
    timeout_s: float,
) -> TimeOffsets:
    """What the stores say of times; they are asked again until all that should have answered."""
    answers, waiting = TimeOffsets(), asked
    answer_s = min(timeout_s, timing.ANSWER_S)
    for _ in Deadline(timeout_s).attempts() if asked else ():
        now = offsets_of_times(waiting, snapshot.heads, snapshot.holders, answer_s, snapshot.keys)
        answers.found |= now.found
        answers.failures = now.failures
        answers.ahead_us = now.ahead_us if answers.ahead_us is None else answers.ahead_us
        waiting = {tp: each for tp, each in asked.items() if tp in now.failures}
        if not waiting:
            break
    add_archived_times(answers, asked, snapshot)
    untold = sorted(asked.keys() - answers.found.keys())
    if untold and untold[0] in answers.failures:
        raise answers.failures[untold[0]]
    if untold:
        raise ConfigError(bound.option, bound.limit.text, _UNTOLD.format(untold[0]))
    return answers


def _asked(position: Position) -> AskedTime:
    return AskedTime(position.number, is_ago=position.base == AGO)


def _check_inside(
    bound: Bound, tp: TopicPartition, position: Position, known: PartitionInfo | None
) -> None:
    end = known.end if known else 0
    if position.base == OFFSET and position.number > end:
        why = f"no store has {tp}"
        if known:
            why = f"{tp} has offsets {known.earliest} up to, not including, {known.end}"
        raise ConfigError(bound.option, position.number, why)


def _offset(position: Position, info: PartitionInfo) -> int:
    if position.base == EARLIEST:
        return min(info.earliest + position.number, info.end)
    if position.base == LATEST:
        return max(info.end - position.number, info.earliest)
    return position.number


def _since_us(everywhere: Position | None, began_us: int, answers: TimeOffsets) -> int | None:
    if everywhere is None or everywhere.base == EARLIEST:
        return None
    if everywhere.base == TIME:
        # By this machine's clock, which is what is compared with the stores' later on.
        return min(everywhere.number - (answers.ahead_us or 0), began_us)
    return began_us - (everywhere.number if everywhere.base == AGO else 0)

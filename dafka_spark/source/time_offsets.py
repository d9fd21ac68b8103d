"""Offsets at given times, and where a query starts and ends.

A partition's timestamps never go back (docs/guarantees.md), so one offset parts what was published
before a time from all the rest.  Each store is asked once for all partitions of which it is the
best: some thousands are one request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dafka_core.archive import archive
from dafka_core.archive.manifest import ArchivedFile
from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.packed_offset import Positions
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import Bound, SourceOptions
from dafka_spark.positions import AGO, EARLIEST, LATEST, OFFSET, TIME, Position, shown_time
from dafka_spark.source.latest_offsets import OffsetsSnapshot
from dafka_spark.source.range_planner import NOT_ARCHIVED, Archived, HeldRange, Holders

_log = logging.getLogger("dafka_spark")


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

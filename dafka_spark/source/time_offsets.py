"""Offsets at given times, from stores and from archives.

A partition's timestamps never go back (docs/guarantees.md), so one offset parts what was published
before a time from all the rest.  Each store is asked once for all partitions of which it is the
best: some thousands are one request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dafka_core.archive import archive
from dafka_core.archive.manifest import ArchivedFile
from dafka_core.config.security_options import KeyFiles
from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_spark.cluster import connections
from dafka_spark.options import SourceOptions
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

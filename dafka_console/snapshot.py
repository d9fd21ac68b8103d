"""A cluster's state at one moment: its nodes, its partitions as columns, and series of its numbers.

The series reach back ten minutes, six hours and seven days, in memory of a fixed size.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isnan
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dafka_core.errors import InvalidRequestError
from dafka_core.model.records import (
    KnownStore,
    Neighbour,
    PartitionInfo,
    TopicPartition,
    merge_heads,
)
from dafka_core.queries.query_progress import QueryLag
from dafka_core.storage import PartitionStatistics
from dafka_core.storage.environment import Space

# -- series of numbers -----------------------------------------------------------------------------

WINDOWS: Final = {"10m": 600, "6h": 21_600, "7d": 604_800}  # windows by name, in seconds
POINTS: Final = 200  # means of each window: of 3 s, 108 s and 50 min

SET_BACK_S: Final = 60.0  # until then the clock may be set forward again

MOST_SERIES: Final = 10_000
"""Series that are kept: 24 MB.  Any client can create topics, and name queries."""


class TimeSeries:
    """Means of values, in a ring for each window.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: list[Hashable] = []
        self._rows: dict[Hashable, int] = {}
        self._rings = np.full((len(WINDOWS), 0, POINTS), np.nan, np.float32)
        self._slots = [-1] * len(WINDOWS)  # the newest mean of each ring, since 1970
        self._counts = np.zeros((len(WINDOWS), 0), np.int64)  # the values in it, of each series
        self._newest_s, self._back_s = 0.0, inf  # the latest time, and the earliest set back

    def add(
        self, time_s: float, names: Sequence[Hashable], values: Sequence[float] | npt.NDArray[Any]
    ) -> None:
        """Add a value of each series; forget series without one."""
        with self._lock:
            self._name([*names[:MOST_SERIES]])
            column = np.asarray(values[:MOST_SERIES], np.float32)
            is_set_back = self._is_set_back(time_s)
            for number, window_s in enumerate(WINDOWS.values()):
                before, ring = self._slots[number], self._rings[number]
                slot = int(time_s * POINTS / window_s)
                if is_set_back and slot < before:  # these means are of the future now
                    ring[:, np.arange(slot, min(before, slot + POINTS) + 1) % POINTS] = np.nan
                    before = slot - 1
                slot = max(slot, before)
                if slot > before:
                    new = np.arange(max(before + 1, slot - POINTS + 1), slot + 1)
                    ring[:, new % POINTS] = np.nan
                    self._slots[number], self._counts[number] = slot, 0
                self._counts[number] += 1
                mean = ring[:, slot % POINTS]
                step = (column - mean) / self._counts[number]  # counts from a series' beginning on
                ring[:, slot % POINTS] = np.where(np.isnan(mean), column, mean + step)

    def _is_set_back(self, time_s: float) -> bool:
        """Return True when a clock that was set back has run for ``SET_BACK_S`` since."""
        if time_s < self._newest_s:
            self._back_s = min(self._back_s, time_s)
            if time_s - self._back_s < SET_BACK_S:
                return False
        self._newest_s, self._back_s, is_back = time_s, inf, time_s < self._newest_s
        return is_back

    def points(self, name: Hashable, window: str) -> list[tuple[int, float]]:
        """Return the means of a window, oldest first, each with the time of its beginning."""
        if window not in WINDOWS:
            why = f"must be one of {', '.join(WINDOWS)}"
            raise InvalidRequestError("window", window[:100], why)
        number = [*WINDOWS].index(window)
        step_s = WINDOWS[window] / POINTS
        with self._lock:
            slots = np.arange(max(self._slots[number] - POINTS + 1, 0), self._slots[number] + 1)
            row = self._rows.get(name)
            means = () if row is None else self._rings[number, row, slots % POINTS].tolist()
        pairs = zip((slots * step_s).tolist(), means, strict=False)
        return [(round(at), round(mean, 2)) for at, mean in pairs if not isnan(mean)]

    def last(self, name: Hashable, count: int) -> list[float]:
        """Return the last means of the shortest window, up to ``count``."""
        return [mean for _, mean in self.points(name, next(iter(WINDOWS)))[-count:]]

    def slope(self, name: Hashable) -> float:
        """Return the growth per second over the last minute; 0 without two points."""
        points = self.points(name, "10m")[-21:]
        if len(points) < 2:
            return 0.0
        (first_s, first), *_, (last_s, last) = points
        return (last - first) / (last_s - first_s)

    def _name(self, names: list[Hashable]) -> None:
        if names == self._names:
            return
        old, counts = self._rings, self._counts
        self._rings = np.full((len(WINDOWS), len(names), POINTS), np.nan, np.float32)
        self._counts = np.zeros((len(WINDOWS), len(names)), np.int64)
        kept = [(row, self._rows[name]) for row, name in enumerate(names) if name in self._rows]
        if kept:
            new, before = map(list, zip(*kept, strict=True))
            self._rings[:, new] = old[:, before]
            self._counts[:, new] = counts[:, before]
        self._names, self._rows = names, {name: row for row, name in enumerate(names)}


# -- partitions as columns -------------------------------------------------------------------------

SETTLE_S: Final = 4.0  # time constant of the smoothed rates
LEAST_RATE: Final = 0.01  # records per second; a lower rate counts as 0

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PartitionColumns:
    """The partitions at one moment; all columns have the same order."""

    tps: list[TopicPartition]  # the partition of each row
    rows: Mapping[TopicPartition, int]  # the row of each partition, also of those found since
    topic: Ints  # the topic's index in ``topics``
    earliest: Ints  # over all stores
    end: Ints  # over all stores, the last known one
    readable: Ints  # the end at the stores that answer; -1 if none has it
    bytes: Ints  # the approximate size of its values
    first_us: Ints  # the time of its first record; 0 if unknown
    last_us: Ints  # the time of its newest record; 0 if unknown
    rate: Floats  # records per second
    byte_rate: Floats  # bytes per second
    stores: dict[str, Ints]  # by address of each answering store, its own end; -1 if it has none
    topics: list[str]
    topic_rates: Floats  # the last records per second of each topic
    clients: Mapping[TopicPartition, str]  # the clients that write partitions, if stores know them

    def row_of(self, tp: TopicPartition) -> int | None:
        """Return the row of a partition; None if no store has it."""
        row = self.rows.get(tp, len(self.tps))
        return row if row < len(self.tps) else None

    def behind(self, store: str) -> int:
        """Return the number of records that a store lacks."""
        ends = self.stores[store]
        return int((self.end - np.maximum(ends, self.earliest)).clip(0).sum())

    def holders(self) -> Ints:
        """Return the number of stores with each partition."""
        if not self.stores:
            return np.zeros(len(self.tps), np.int64)
        held: Ints = np.sum([ends >= 0 for ends in self.stores.values()], axis=0, dtype=np.int64)
        return held


class PartitionTable:
    """The stores' answers, updated with the changed partitions only.

    Used by one thread.
    """

    def __init__(self) -> None:
        self._tps: list[TopicPartition] = []
        self._rows: dict[TopicPartition, int] = {}
        self._topics: dict[str, int] = {}
        self._held: dict[str, dict[TopicPartition, PartitionInfo]] = {}
        self._ends: dict[str, Ints] = {}
        names = ("topic", "earliest", "end", "bytes", "records", "first_us", "last_us", "before")
        self._ints: dict[str, Ints] = {name: np.zeros(0, np.int64) for name in names}
        self._rate: Floats = np.zeros(0)
        self._topic_rates: Floats = np.zeros(0)
        self._clients: dict[TopicPartition, str] = {}  # replaced, so that snapshots share it

    def hear(self, store: str, heads: Iterable[PartitionInfo], *, complete: bool) -> None:
        """Set a store's bounds: of all its partitions if ``complete``, else of changed ones."""
        is_first = store not in self._ends
        self._ends.setdefault(store, np.full(len(self._tps), -1, np.int64))
        held = self._held.setdefault(store, {})
        found = {info.tp: info for info in heads}
        gone = held.keys() - found.keys() if complete else ()
        for tp in [*gone]:
            del held[tp]
        held.update(found)
        self._merge(found.keys() | gone, is_first=is_first)
        ends = np.full(len(self._tps), -1, np.int64) if complete else self._ends[store]
        for tp, info in found.items():
            ends[self._rows[tp]] = info.end
        self._ends[store] = ends

    def drop(self, store: str) -> None:
        """Keep the last answer of a store that no longer answers; it can't be read."""
        if self._ends.pop(store, None) is not None:
            self._merge(self._held[store].keys(), is_first=True)

    def forget(self, store: str) -> None:
        """Remove a store, and the partitions that no other one has."""
        self.hear(store, (), complete=True)
        self.drop(store)
        del self._held[store]

    def held(self, store: str) -> int:
        """Return a store's number of partitions at its last answer."""
        return len(self._held.get(store, ()))

    def learn(self, facts: Iterable[PartitionStatistics]) -> None:
        """Set the disk usage, times and clients of partitions."""
        ints, clients = self._ints, dict(self._clients)
        for fact in facts:
            row = self._rows.get(fact.tp)
            if row is not None and fact.records:
                if fact.client:
                    clients[fact.tp] = fact.client
                ints["bytes"][row], ints["records"][row] = fact.size_bytes, fact.records
                ints["first_us"][row] = fact.first_time_us or 0
                ints["last_us"][row] = max(ints["last_us"][row], fact.last_time_us or 0)
        self._clients = clients

    def lacks_facts(self) -> bool:
        """True if the disk usage of a partition is unknown."""
        ints = self._ints
        return bool(((ints["records"] == 0) & (ints["end"] > ints["earliest"])).any())

    def tick(self, passed_s: float, now_us: int) -> tuple[float, float]:
        """Count what was written in the last ``passed_s`` seconds.

        Returns records and bytes per second of all partitions.
        """
        ints = self._ints
        written = (ints["end"] - ints["before"]).clip(0)
        ints["before"][:] = ints["end"]
        ints["last_us"][written > 0] = now_us
        rates = written / max(passed_s, 1e-3)
        self._rate += -np.expm1(-passed_s / SETTLE_S) * (rates - self._rate)
        self._rate[self._rate < LEAST_RATE] = 0
        by_topic = np.bincount(ints["topic"], rates, len(self._topics))
        self._topic_rates = by_topic.astype(np.float64)
        return float(rates.sum()), float((rates * self._record_bytes()).sum())

    def columns(self) -> PartitionColumns:
        """Return a copy of the partitions' state."""
        ints, size = self._ints, self._record_bytes()
        return PartitionColumns(
            tps=list(self._tps),
            rows=self._rows,
            topic=ints["topic"].copy(),
            earliest=ints["earliest"].copy(),
            end=ints["end"].copy(),
            readable=np.max([np.full(len(self._tps), -1), *self._ends.values()], axis=0),
            bytes=((ints["end"] - ints["earliest"]) * size).astype(np.int64),
            first_us=ints["first_us"].copy(),
            last_us=ints["last_us"].copy(),
            rate=self._rate.copy(),
            byte_rate=self._rate * size,
            stores={store: ends.copy() for store, ends in self._ends.items()},
            topics=list(self._topics),
            topic_rates=self._topic_rates,
            clients=self._clients,
        )

    def _record_bytes(self) -> Floats:
        return self._ints["bytes"] / np.maximum(self._ints["records"], 1)

    def _merge(self, changed: Set[TopicPartition], *, is_first: bool) -> None:
        """Combine all stores' bounds of some partitions.

        Records of a newly discovered store are old; those of other new partitions were just
        written. A silent store does not report a partition's beginning: records may have been
        deleted since.
        """
        heads, live = (
            merge_heads(
                self._held[each][tp] for each in stores for tp in changed & self._held[each].keys()
            )
            for stores in (self._held, self._ends)
        )
        self._remove({tp for tp in changed if tp not in heads})
        new = [tp for tp in heads if tp not in self._rows]
        self._add(new)
        ints = self._ints
        for tp, info in heads.items():
            row = self._rows[tp]
            here = live.get(tp) or info._replace(earliest=int(ints["earliest"][row]))
            before, end = ints["end"][row], max(here.end, info.end)
            ints["earliest"][row], ints["end"][row] = here.earliest, end
            if is_first:
                ints["before"][row] += end - before
        for tp in () if is_first else new:
            row = self._rows[tp]
            ints["before"][row] = ints["earliest"][row]

    def _add(self, new: list[TopicPartition]) -> None:
        count = len(new)
        for tp in new:
            self._rows[tp] = len(self._tps)
            self._tps.append(tp)
            self._topics.setdefault(tp.topic, len(self._topics))
        for name in self._ints:
            self._ints[name] = np.append(self._ints[name], np.zeros(count, np.int64))
        self._ints["topic"][len(self._tps) - count :] = [self._topics[tp.topic] for tp in new]
        self._rate = np.append(self._rate, np.zeros(count))
        self._ends = {
            store: np.append(ends, np.full(count, -1, np.int64))
            for store, ends in self._ends.items()
        }
        more = len(self._topics) - len(self._topic_rates)
        self._topic_rates = np.append(self._topic_rates, np.zeros(more))

    def _remove(self, gone: set[TopicPartition]) -> None:
        if gone.isdisjoint(self._rows):
            return
        keep = np.array([tp not in gone for tp in self._tps], bool)
        self._tps = [tp for tp in self._tps if tp not in gone]
        self._rows = {tp: row for row, tp in enumerate(self._tps)}
        names = dict.fromkeys(tp.topic for tp in self._tps)
        rows = [self._topics[name] for name in names]
        self._topic_rates = self._topic_rates[rows]
        self._topics = {name: number for number, name in enumerate(names)}
        self._ints = {name: column[keep] for name, column in self._ints.items()}
        self._ints["topic"] = np.array([self._topics[tp.topic] for tp in self._tps], np.int64)
        self._rate = self._rate[keep]
        self._clients = {tp: name for tp, name in self._clients.items() if tp not in gone}
        self._ends = {store: ends[keep] for store, ends in self._ends.items()}


# -- the cluster -----------------------------------------------------------------------------------

TOWER: Final = "tower"
STORE: Final = "store"
NO_FLIGHT: Final = "it serves no Arrow Flight: what it has is not shown"


class StoreState(NamedTuple):
    """A store at its last answer."""

    store: str  # its address
    locations: tuple[str, ...] = ()  # its Arrow Flight locations, if any
    here: bool = False  # whether it answers
    failure: str = ""  # why it does not
    space: Space | None = None  # its file's size; None if unknown
    partitions: int = 0  # its number of partitions
    behind: int = 0  # the number of records that it lacks
    answered_s: float = 0.0  # the duration of its answer
    peers: tuple[Neighbour, ...] | None = None  # the nodes connected to it; None if unknown
    rules: tuple[str, ...] | None = None  # its ``retention_rules``; None if unknown
    since_us: int = 0  # the time of the answer, in microseconds since 1970 UTC; 0 without one


RECORDS: Final = ("records",)
BYTES: Final = ("bytes",)
"""The series of the whole cluster's rates; a topic's has the topic's name."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A cluster's state."""

    number: int  # counts from 1
    time_s: float  # when it was made, in seconds since 1970 UTC
    took_s: float  # how long asking the stores took
    partitions: PartitionColumns  # over all stores, from their last answers
    stores: Sequence[StoreState] = ()  # the present and former ones
    nodes: Sequence[Neighbour] = ()  # the nodes of the mesh except towers
    towers: Sequence[str] = ()
    own: str = ""  # the console's address among the nodes
    missing: Sequence[KnownStore] = ()  # known stores that are not reachable
    queries: Sequence[QueryLag] = ()  # the runs of Spark's queries that report their progress
    # records per second of the cluster and of each topic, and the cluster's bytes
    rates: TimeSeries = field(default_factory=TimeSeries)
    lags: TimeSeries = field(default_factory=TimeSeries)  # records behind, by query and run

    @property
    def live(self) -> bool:
        """True if a store answers."""
        return any(each.here for each in self.stores)

    @cached_property
    def topics(self) -> TopicColumns:
        """The topics, computed once."""
        return TopicColumns.of(self.partitions)


class TopicColumns(NamedTuple):
    """Topics, as sums over their partitions; rows are those of ``PartitionColumns.topics``."""

    partitions: Ints
    records: Ints
    bytes: Ints
    rate: Floats
    byte_rate: Floats
    first_us: Ints
    last_us: Ints
    stale: Ints

    @classmethod
    def of(cls, columns: PartitionColumns) -> TopicColumns:
        """Sum up partitions by topic."""
        count, topic = len(columns.topics), columns.topic
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.zeros(count, np.int64)
        known = columns.first_us > 0
        np.minimum.at(first, topic[known], columns.first_us[known])
        np.maximum.at(last, topic, columns.last_us)
        first[first == np.iinfo(np.int64).max] = 0

        def total(column: Ints) -> Ints:
            # Not by bincount: its floats would round sums of offsets.
            found = np.zeros(count, np.int64)
            np.add.at(found, topic, column)
            return found

        return cls(
            np.bincount(topic, minlength=count).astype(np.int64),
            total(columns.end - columns.earliest),
            total(columns.bytes),
            np.bincount(topic, columns.rate, count).astype(np.float64),
            np.bincount(topic, columns.byte_rate, count).astype(np.float64),
            first,
            last,
            total((columns.end > columns.readable).astype(np.int64)),
        )


NOTHING: Final = Snapshot(0, 0.0, 0.0, PartitionTable().columns())
"""The state before the first answers."""

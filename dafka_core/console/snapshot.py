"""A cluster at one moment: what everybody who looks at it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from dafka_core.console.partition_table import Floats, Ints, PartitionColumns, PartitionTable
from dafka_core.flight.json_messages import SpaceUsed
from dafka_core.queries.query_lag import QueryLag
from dafka_core.records import KnownStore, Neighbour

TOWER: Final = "tower"
STORE: Final = "store"
NO_FLIGHT: Final = "it serves no Arrow Flight: what it has is not shown"


class StoreState(NamedTuple):
    """A store, as it was asked last.

    Attributes:
        store: its address.
        locations: where Arrow Flight serves it; none where it serves none.
        here: whether it answers.
        failure: why it does not.
        space: what its file takes; None where it has not said so.
        partitions: how many it has something of.
        behind: records that others have, and it has not yet.
        answered_s: how long it took to answer.
        peers: who is connected to it, as it says; None where it cannot say.
        rules: what it keeps (``retention_rules``); None where it cannot say.
        since_us: when it said all this, in microseconds since 1970 UTC; 0 if it never did.
    """

    store: str
    locations: tuple[str, ...] = ()
    here: bool = False
    failure: str = ""
    space: SpaceUsed | None = None
    partitions: int = 0
    behind: int = 0
    answered_s: float = 0.0
    peers: tuple[Neighbour, ...] | None = None
    rules: tuple[str, ...] | None = None
    since_us: int = 0


class LagMoment(NamedTuple):
    """How far behind a query was at one moment: seconds since 1970 UTC, records, seconds."""

    time_s: float
    records_behind: int
    seconds_behind: float | None


class QueryState(NamedTuple):
    """A run of a query: how far behind it is, and was, oldest first."""

    lag: QueryLag
    history: tuple[LagMoment, ...]


class Moment(NamedTuple):
    """How much was written at one moment: seconds since 1970 UTC, and per second."""

    time_s: float
    rate: float
    byte_rate: float


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What was found out about a cluster.

    Attributes:
        number: the first one is 1.
        time_s: when it was made, in seconds since 1970 UTC.
        took_s: how long it took to ask everybody.
        partitions: of all stores together, as each said it last.
        stores: those that are there, and those that were.
        nodes: the nodes of the mesh but towers.
        towers: where towers are.
        own: the address of whoever has asked, among the nodes.
        queries: Spark's streaming queries that report how far they are.
        missing: stores that others know and that are not there.
        history: how much was written, oldest first.
    """

    number: int
    time_s: float
    took_s: float
    partitions: PartitionColumns
    stores: Sequence[StoreState] = ()
    nodes: Sequence[Neighbour] = ()
    towers: Sequence[str] = ()
    own: str = ""
    missing: Sequence[KnownStore] = ()
    queries: Sequence[QueryState] = ()
    history: Sequence[Moment] = field(default_factory=tuple)

    @property
    def live(self) -> bool:
        """Whether a store answers."""
        return any(each.here for each in self.stores)

    @cached_property
    def topics(self) -> TopicColumns:
        """The topics; made once, for whoever asks first."""
        return TopicColumns.of(self.partitions)


class TopicColumns(NamedTuple):
    """Topics, each the sum of its partitions; rows are as those of ``PartitionColumns.topics``."""

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
        """The topics of these partitions."""
        count, topic = len(columns.topics), columns.topic
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.zeros(count, np.int64)
        known = columns.first_us > 0
        np.minimum.at(first, topic[known], columns.first_us[known])
        np.maximum.at(last, topic, columns.last_us)
        first[first == np.iinfo(np.int64).max] = 0

        def total(column: Ints) -> Ints:
            # Not as weights of bincount, which are floats: sums of offsets stay whole numbers.
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
"""Before anybody was asked."""

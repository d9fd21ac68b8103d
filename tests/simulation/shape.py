"""The decisions of a seed before the start: the nodes, and the faults.

Swarm testing: each seed leaves out most kinds of faults and takes others strongly, and makes some
of the nodes' limits so small that they are reached.  All at once would hide each other.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Final

from dafka_core.nodes import sockets, store_loop
from dafka_core.protocol import (
    codec,
    fetch_scheduler,
    partition_fetcher,
    producer_role,
    record_limits,
    store_requests,
    timing,
)

TOPICS: Final = ("a", "ab", "abc", "b")
"""Some are prefixes of others: subscriptions match by prefix."""

OURS: Final = "ours"
RFC46: Final = "rfc46"
SINGLE: Final = "single"
"""Styles of nodes: ours; ours with the layout of RFC 46; without packed records and queries, as
C nodes are."""

LIMITS: Final[dict[tuple[ModuleType, str], tuple[int, ...]]] = {
    (partition_fetcher, "FETCH_FIRST_COUNT"): (1, 3, 20),
    (partition_fetcher, "FETCH_BLOCK_COUNT"): (20, 60, 200),
    (partition_fetcher, "FETCH_BLOCK_BYTES"): (100, 1_000),
    (partition_fetcher, "MAX_REORDER_RECORDS"): (5, 40, 200),
    (partition_fetcher, "MAX_REORDER_BYTES"): (200, 4_000),
    (fetch_scheduler, "MAX_UNDER_WAY"): (1, 2, 4),
    (fetch_scheduler, "MAX_FETCH_PARTITIONS"): (1, 2),
    (store_requests, "MAX_PENDING_REQUESTS"): (3, 16, 64),
    (store_requests, "MAX_REPLY_ENTRIES"): (1, 3),
    (store_loop, "MAX_PENDING_BYTES"): (100, 2_000),
    (store_loop, "SERVE_COUNT"): (2, 15, 100),
    (store_loop, "SERVE_BYTES"): (300, 1_000),
    (store_loop, "SERVE_REQUESTS"): (1, 3),
    (producer_role, "MAX_ANSWER_BYTES"): (400, 4_000),
    (sockets, "LIVE_BATCH_BYTES"): (20, 200),
    (sockets, "DIRECT_BATCH_BYTES"): (20, 200, 1_000),
    (codec, "MAX_KNOWN_PREFIXES"): (1, 3),
    (timing, "HOSTED_HEADS_S"): (2, 5),
}
"""Limits of production, and values of them that a small simulation reaches."""


@dataclass(frozen=True)
class Shape:
    """One world.  Times are in seconds, probabilities per message unless noted."""

    seed: int
    topics: tuple[str, ...]
    stores: int
    late_stores: int  # of the stores, how many come only when some time has passed
    producers: int
    writers: int
    queries: int  # writers of transactions, each once
    consumers: int
    readers: int
    records: int  # number of records of each producer and writer
    value_bytes: int  # longest value
    burst: int  # records published at once, at the most
    faults_s: float  # duration of the faults
    acks: int
    urgent: float  # share of bursts after which an application waits in ``flush``
    max_unacked: int
    max_queued: int
    styles: tuple[str, ...]
    beacon_s: float
    sync_s: float
    high_water_mark: int
    disk_s: float  # longest append
    delay_s: float  # longest delay of a message without a fault
    lag_s: float  # longest delay until a node processes an arrival
    loss: float
    double: float
    reorder: float
    reorder_s: float
    corrupt: float
    partition_every_s: float
    """A partition begins so often, on average; 0 never.  The same of those below."""
    cut_every_s: float
    crash_every_s: float
    stall_every_s: float
    towers: int
    tower_every_s: float
    trim_every_s: float
    retains: bool  # stores trim also what others lack: each has a retention of its own
    latest: float  # the share of consumers that begin at the end
    leaves: float
    """The share of producers that end for good: when all is acknowledged, or when they crash."""
    another_every_s: float  # mean interval at which a producer is started again while it runs
    replaced_every_s: float  # mean interval at which a store's disk is copied, or lost and restored
    limit_bytes: int
    """The largest record that some of the consumers take; 0: that all take every one."""
    limits: Mapping[tuple[ModuleType, str], int] = field(repr=False)
    locked: bool = False  # each node has a key, and is believed what that allows
    byzantine: int = 0  # peers that have a key of the cluster and do what they may not
    attack_every_s: float = 0.0  # mean interval of each one's actions

    def describe(self) -> list[str]:
        """The shape in lines, for people."""
        changed = [f"{module.__name__}.{name} = {v}" for (module, name), v in self.limits.items()]
        return [repr(self), *changed]


def _limits(chance: random.Random) -> dict[tuple[ModuleType, str], int]:
    """The limits of production that are small."""
    limits = {key: chance.choice(values) for key, values in LIMITS.items()}
    kept = {key: value for key, value in limits.items() if chance.random() < 0.25}
    if (producer_role, "MAX_ANSWER_BYTES") in kept:
        # A block that is asked for is a quarter of what is answered at once.
        kept[partition_fetcher, "FETCH_BLOCK_BYTES"] = kept[producer_role, "MAX_ANSWER_BYTES"] // 4
    return kept


def shape_of(seed: int) -> Shape:
    """The world of a seed."""
    chance = random.Random(f"shape {seed}")

    def sometimes(share: float, low: float, high: float) -> float:
        return chance.uniform(low, high) if chance.random() < share else 0.0

    stores = chance.choice((1, 1, 2, 2, 3))
    kept = _limits(chance)
    styles = chance.choice(((OURS,), (OURS,), (OURS, SINGLE), (OURS, RFC46, SINGLE), (RFC46,)))
    shape = Shape(
        seed=seed,
        topics=TOPICS[: chance.choice((1, 2, 3, 4))],
        stores=stores,
        late_stores=chance.randint(0, 1) if stores > 1 else 0,
        producers=chance.randint(1, 3),
        writers=chance.choice((0, 0, 1)),
        queries=chance.choice((0, 0, 1)),
        consumers=chance.randint(1, 2),
        readers=chance.choice((0, 1)),
        records=chance.choice((5, 40, 150, 400)),
        value_bytes=chance.choice((8, 40, 200)),
        burst=chance.choice((1, 5, 40)),
        faults_s=chance.uniform(4, 20),
        acks=chance.choice((1, 1, 1, 2)) if stores > 1 else 1,
        urgent=chance.choice((0.0, 0.2)),
        max_unacked=chance.choice((10, 100, 500_000)),
        max_queued=chance.choice((20, 100, 200_000)),
        styles=styles,
        beacon_s=chance.choice((1.0, 2.0)),
        sync_s=chance.choice((2.0, 5.0, 10.0)),
        high_water_mark=chance.choice((20, 1_000, 50_000)),
        disk_s=chance.choice((0.001, 0.02, 0.3)),
        delay_s=chance.choice((0.0005, 0.01, 0.1)),
        lag_s=chance.choice((0.0002, 0.02)),
        loss=sometimes(0.5, 0.01, 0.3),
        double=sometimes(0.3, 0.01, 0.3),
        reorder=sometimes(0.3, 0.01, 0.3),
        reorder_s=chance.choice((0.02, 1.5)),
        corrupt=sometimes(0.2, 0.01, 0.1),
        partition_every_s=sometimes(0.4, 1, 6),
        cut_every_s=sometimes(0.4, 0.5, 4),
        crash_every_s=sometimes(0.6, 1, 6),
        stall_every_s=sometimes(0.3, 1, 5),
        # Its own chance: worlds with one tower are what they were without this line.
        towers=random.Random(f"towers {seed}").choice((1, 1, 1, 2)),
        tower_every_s=sometimes(0.15, 3, 8),
        latest=chance.choice((0.0, 0.0, 0.5)),
        leaves=chance.choice((0.0, 0.3, 1.0)),
        # C stores do not trim.
        trim_every_s=sometimes(0.0 if SINGLE in styles else 0.3, 1, 6),
        # Its own chance, as towers.
        retains=random.Random(f"retains {seed}").random() < 0.5,
        limit_bytes=0,
        # C nodes do not know lives, and single records do not say them.
        another_every_s=sometimes(0.4 if set(styles) == {OURS} else 0.0, 1, 6),
        replaced_every_s=0.0,
        limits=kept,
    )
    return _locked(_limited(_replaced(shape), kept))


def _locked(shape: Shape) -> Shape:
    """Return the shape, with keys for some seeds, and with byzantine owners of keys.

    C nodes have no keys, and messages in RFC 46's layout cannot be withheld from a node.
    """
    chance = random.Random(f"locked {shape.seed}")
    if shape.styles != (OURS,) or chance.random() < 0.55:
        return shape
    byzantine, every_s = chance.choice((0, 1, 1, 1, 2)), chance.choice((0.01, 0.05, 0.2))
    return replace(shape, locked=True, byzantine=byzantine, attack_every_s=every_s)


def _replaced(shape: Shape) -> Shape:
    """The shape, where stores may lose their disks.

    Without zombies: a store that knows nothing of a newer life acknowledges an older one's records.
    Without exact queries: their staged records are gone.  Without trimming: no node can fill a
    store from its first record on.
    """
    chance = random.Random(f"replaced {shape.seed}")
    wild = shape.another_every_s or shape.queries or shape.trim_every_s or SINGLE in shape.styles
    if shape.stores == 1 or wild or chance.random() >= 0.7:
        return shape
    return replace(shape, replaced_every_s=chance.uniform(1, 4))


def _limited(shape: Shape, kept: dict[tuple[ModuleType, str], int]) -> Shape:
    """The shape, with what its nodes need of limits; some consumers may not take every record."""
    announce = SINGLE in shape.styles or shape.leaves
    if announce and kept.get((fetch_scheduler, "MAX_UNDER_WAY")) == 1:
        # C nodes, and producers that end for good, announce records that no node has: a
        # request would hold the only place for seconds.
        kept[fetch_scheduler, "MAX_UNDER_WAY"] = 2
    # C nodes send every record to every node: one that cannot accept it would never continue.
    if SINGLE in shape.styles or random.Random(f"limit {shape.seed}").random() < 0.6:
        return shape
    kept[record_limits, "LEAST_BYTES"] = 1
    # A burst's records come before its reports of others above the limit, and wait for them.
    for room in ("MAX_REORDER_RECORDS", "MAX_REORDER_BYTES"):
        kept.pop((partition_fetcher, room), None)
    return replace(shape, limit_bytes=shape.value_bytes * 3 // 4)


@contextmanager
def limited(limits: Mapping[tuple[ModuleType, str], Any]) -> Iterator[None]:
    """Replaces limits of production, or other names of its modules, for a while."""
    before = {(module, name): getattr(module, name) for module, name in limits}
    try:
        for (module, name), value in limits.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)

"""Table 12: two stores with different retention are killed in turn while records arrive.

One keeps recent records, the other a number of bytes. A producer publishes at a steady rate and
notes offset and time of each step, so that each store's required content is known at any moment. A
consumer reads all the time. The sizes of the stores' files are checked, too.
"""

import contextlib
import random
import time
from functools import partial
from typing import Final, NamedTuple

from dafka_core import Consumer, Producer
from dafka_core.errors import DafkaError, NotAcknowledgedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import PartitionInfo, TopicPartition
from tests.chaos.harness import PATIENCE_S, Chaos, ChaosError, Round, Worker, wait_until
from tests.chaos.nodes import Node, Site, TowerSite, memory_mb

ROUNDS: Final = 10
SHORT_ROUNDS: Final = 1
"""Ten rounds are an hour."""

TOPIC: Final = "retained"
SIZE_BYTES: Final = 1_000
STEP_S: Final = 0.05
AWAY_S: Final = 5.0
"""Longest absence of a store."""

LIMIT_MB: Final = 400.0  # as in table 7, for any node
GROWTH: Final = 1.25  # largest file size in the last third of a round, relative to the second third
_LEAST: Final = 0.95  # bytes of values to keep; records take a little more
BLOCK_BYTES: Final = 16 << 20  # tolerance: whole blocks are deleted


class Load(NamedTuple):
    """Duration, rate, retention, and frequency of kills."""

    seconds: float
    step_records: int
    age_s: int
    kept_bytes: int
    kill_every_s: float


FULL: Final = Load(360.0, 250, 30, 100_000_000, 20.0)  # 5 MB a second

SHORT: Final = Load(26.0, 100, 5, 10_000_000, 8.0)


def value(offset: int) -> bytes:
    return b"%d" % offset + bytes(SIZE_BYTES - len(str(offset)))


class Flow(Worker):
    """A producer that runs until stopped, with the offset at each time."""

    def __init__(self, tower: str, load: Load) -> None:
        super().__init__("the producer")
        self._load = load
        self._producer = Producer(TOPIC, tower=tower, max_unacked_records=200_000)
        self.tp = TopicPartition(TOPIC, self._producer.address)
        self._times = [time.time()]  # before each step
        self.start()

    def published_s(self, offset: int) -> float:
        """Return a time at or before a record's publication."""
        return self._times[offset // self._load.step_records]

    def end(self) -> int:
        """Stop once all is acknowledged; return the number of records."""
        self.finish()
        self._producer.flush(PATIENCE_S)
        return self._producer.next_offset

    def close(self) -> None:
        self.stop()
        with contextlib.suppress(NotAcknowledgedError):
            self._producer.close()

    def _work(self) -> None:
        step = self._load.step_records
        while not self._done.wait(STEP_S):
            first = self._producer.next_offset
            self._times.append(time.time())
            self._producer.publish_many([value(first + at) for at in range(step)])


class Watcher(Worker):
    """A consumer that compares its records with the expected ones, and keeps none."""

    def __init__(self, tower: str) -> None:
        super().__init__("a consumer")
        self._consumer = Consumer(tower=tower)
        self.first: int | None = None  # its first offset
        self.next_offset = 0
        self._consumer.subscribe(TOPIC)
        self.start()

    def wait_for(self, end: int) -> None:
        wait_until(
            lambda: self.failure or self.next_offset >= end,
            lambda: f"a consumer has {end} records, it has {self.next_offset}",
        )
        self.check()

    def close(self) -> None:
        self._consumer.close()
        self.stop()

    def _work(self) -> None:
        for batch in self._consumer.batches():
            if self.first is None:
                self.first = self.next_offset = batch.offset
            if batch.offset != self.next_offset:
                raise ChaosError(f"{batch.offset} comes where {self.next_offset} is due")
            for offset, found in enumerate(batch.values, batch.offset):
                if found != value(offset):
                    raise ChaosError(f"offset {offset} has {bytes(found[:20])!r}")
            self.next_offset = batch.end


class Kept:
    """A store with a rule, and its observations."""

    def __init__(self, name: str, rule: str, site: Site) -> None:
        self.name = name
        self._rule = f"{TOPIC}={rule}"
        self._site = site
        self._sizes: list[tuple[float, int]] = []
        self.most_mb = 0.0
        self.node: Node | None = None
        self.location: StoreLocation | None = None

    def start(self) -> None:
        self.node = self._site.store(self.name, "--retain", self._rule)
        self.location = self.node.location()

    def kill(self) -> None:
        assert self.node is not None
        self.node.kill()
        self.node = None

    def info(self, tp: TopicPartition) -> PartitionInfo | None:
        """Return its report of a partition; None while it is away."""
        if self.node is None or self.location is None:
            return None
        with contextlib.suppress(DafkaError), StoreClient(self.location) as client:
            found = client.heads([tp.topic], timeout_s=5)
            return next((each for each in found if each.tp == tp), None)
        return None

    def look(self, since_s: float) -> None:
        """Record the size of its files, and its memory."""
        files = (self._site.directory / self.name).glob("**/*")
        with contextlib.suppress(FileNotFoundError):
            size_bytes = sum(each.stat().st_blocks * 512 for each in files)
            self._sizes.append((time.monotonic() - since_s, size_bytes))
        if self.node is not None:
            self.most_mb = max(self.most_mb, memory_mb(self.node.pid))

    def most_bytes(self, after_s: float, before_s: float) -> int:
        """Return the largest size of its files in a part of the round."""
        return max(size for at_s, size in self._sizes if after_s <= at_s <= before_s)


class TableRound(Round):
    def run(self) -> None:
        load = SHORT if self.chaos.short else FULL
        site = TowerSite(self.directory, self.stack)
        young = Kept("young", f"{load.age_s}s", site)
        large = Kept("large", f"{load.kept_bytes}B", site)
        for store in (young, large):
            store.start()
        flow = Flow(site.tower, load)
        self.stack.callback(flow.close)
        watcher = Watcher(site.tower)
        self.stack.callback(watcher.close)
        began_s = time.monotonic()
        _kill_in_turns(self.chaos, self.chance, (young, large), flow, load)
        end = flow.end()
        watcher.wait_for(end)
        if watcher.first:
            raise ChaosError(f"the consumer that was there all the time begins at {watcher.first}")
        self.chaos.outcome.records += end
        for store in (young, large):
            wait_until(
                partial(_is_settled, store, flow.tp, end),
                f"store {store.name} has all of {end} records, and has given up the first ones",
            )
            _check(store, flow, load)
            _check_flat(self.chaos, store, time.monotonic() - began_s)
        late = Watcher(site.tower)
        self.stack.callback(late.close)
        late.wait_for(end)
        assert late.first is not None
        self.chaos.add("records given up", late.first)
        if not 0 < late.first <= end - _LEAST * load.kept_bytes / SIZE_BYTES:
            raise ChaosError(f"a new consumer begins at {late.first} of {end}")


def _kill_in_turns(
    chaos: Chaos, chance: random.Random, stores: tuple[Kept, Kept], flow: Flow, load: Load
) -> None:
    began_s = time.monotonic()
    due_s = load.kill_every_s * chance.uniform(0.5, 1)
    away: tuple[Kept, float] | None = None
    while (now_s := time.monotonic() - began_s) < load.seconds:
        for store in stores:
            store.look(began_s)
            _check(store, flow, load)
        if away is not None and now_s >= away[1]:
            away[0].start()
            away = None
        elif away is None and now_s >= due_s and now_s < load.seconds - AWAY_S:
            victim = chance.choice(stores)
            victim.kill()
            chaos.fault(f"store killed that keeps what is {victim.name}")
            away = victim, now_s + chance.uniform(0, AWAY_S)
            due_s = now_s + load.kill_every_s * chance.uniform(0.5, 1.5)
        time.sleep(0.2)
    if away is not None:
        away[0].start()


def _is_settled(store: Kept, tp: TopicPartition, end: int) -> bool:
    info = store.info(tp)
    return info is not None and info.earliest > 0 and info.end == end


def _check(store: Kept, flow: Flow, load: Load) -> None:
    """Check that it has what its rule keeps, by its first offset."""
    info = store.info(flow.tp)
    if info is None or not info.earliest:
        return
    if store.name == "young":
        age_s = time.time() - flow.published_s(info.earliest - 1)
        if age_s < load.age_s:
            raise ChaosError(f"{info} has given up records that are {age_s:.1f} s old")
    elif (info.end - info.earliest) * SIZE_BYTES < _LEAST * load.kept_bytes:
        raise ChaosError(f"{info} has given up more than it should")


def _check_flat(chaos: Chaos, store: Kept, took_s: float) -> None:
    """Check that neither its files nor its memory grow without end."""
    middle = store.most_bytes(took_s / 3, 2 * took_s / 3)
    last = store.most_bytes(2 * took_s / 3, took_s)
    chaos.most(f"most of {store.name}'s files, MB", round(last / 1e6))
    chaos.most(f"most of {store.name}'s memory, MB", round(store.most_mb))
    if not chaos.short and last > GROWTH * middle + BLOCK_BYTES:
        raise ChaosError(f"the files of {store.name} grew from {middle:,} to {last:,} bytes")
    if store.most_mb > LIMIT_MB:
        raise ChaosError(f"{store.name} had {store.most_mb:.0f} MB of memory")

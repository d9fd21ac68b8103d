"""Table 1: a store is killed while records arrive and while it merges, and started again.

A series of rounds shares a directory. Two producers publish over the mesh, a third writer sends
blocks over Arrow Flight. What each of them knows to be acknowledged is noted before each kill, and
must be in the directory after it, with nothing that was not sent. At a series' end everything must
have arrived once, at an old consumer and at a new one.
"""

import abc
import contextlib
import random
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from dafka_core import NotAcknowledgedError, Producer
from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from tests.chaos.disks import Blocks, values_on_disk
from tests.chaos.harness import PATIENCE_S, Chaos, ChaosError, Round, Worker, wait_until
from tests.chaos.nodes import Node, Site, TowerSite

ROUNDS = 100
SHORT_ROUNDS = 3

TOPIC = "ingest"
PAD_BYTES = 900
"""Makes a block of a hundred records: so that small blocks are merged."""

MERGE_WAIT_S = 5.0


def value(name: str, offset: int) -> bytes:
    return f"{name}-{offset}".encode().ljust(PAD_BYTES + offset % 7, b".")


class Writer(Worker):
    """One partition that a thread writes continuously, whatever happens to the store."""

    def __init__(self, name: str, seed: str) -> None:
        super().__init__(name)
        self.partition = uuid.uuid4().hex.upper()
        self._chance = random.Random(seed)
        self._may_write = threading.Event()
        self._may_write.set()

    def hold(self, held: bool) -> None:
        (self._may_write.clear if held else self._may_write.set)()

    def finish(self) -> None:
        self.hold(False)
        super().finish()

    @abc.abstractmethod
    def sent(self) -> int:
        """The number of records sent."""

    @abc.abstractmethod
    def acknowledged(self) -> int:
        """The number of records known to be on disk."""

    @abc.abstractmethod
    def write(self, values: list[bytes]) -> None:
        """Send records from ``sent`` on."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop at once."""

    def _work(self) -> None:
        while not self._done.is_set():
            self._may_write.wait()
            first = self.sent()
            count = self._chance.randint(1, 160)
            self.write([value(self.name, first + n) for n in range(count)])
            time.sleep(self._chance.uniform(0, 0.02))


class MeshWriter(Writer):
    def __init__(self, name: str, seed: str, tower: str) -> None:
        super().__init__(name, seed)
        self._producer = Producer(TOPIC, tower=tower, max_unacked_records=20_000)
        self.partition = self._producer.address

    def sent(self) -> int:
        return self._producer.next_offset

    def acknowledged(self) -> int:
        # Before the count: a record published in between must not count as acknowledged.
        sent = self._producer.next_offset
        try:
            self._producer.flush(0)
        except NotAcknowledgedError as error:
            return sent - error.count
        return sent

    def write(self, values: list[bytes]) -> None:
        self._producer.publish_many(values)

    def finish(self) -> None:
        super().finish()
        self._producer.flush(PATIENCE_S)

    def close(self) -> None:
        # Like a failing application, without waiting for acknowledgements.
        self._producer.__exit__(DafkaError, DafkaError(), None)


class FlightWriter(Writer):
    """Sends blocks; after a kill it asks the store for the end, and continues there."""

    def __init__(self, name: str, seed: str) -> None:
        super().__init__(name, seed)
        self._place: StoreLocation | None = None
        self._acknowledged = self._sent = 0

    def found(self, store: Node) -> None:
        self._place = store.location()

    def sent(self) -> int:
        return self._sent

    def acknowledged(self) -> int:
        return self._acknowledged

    def write(self, values: list[bytes]) -> None:
        location, first = self._place, self._sent
        if location is None:
            time.sleep(0.02)
            return
        try:
            with StoreClient(location) as client:
                held = {info.partition: info.end for info in client.heads([TOPIC], timeout_s=5)}
                start = held.get(self.partition, 0)
                if start < self._acknowledged:
                    raise ChaosError(f"acknowledged to {self._acknowledged}, the store has {start}")
                values = [value(self.name, start + n) for n in range(len(values))]
                self._sent = max(first, start + len(values))
                with client.put(TopicPartition(TOPIC, self.partition), start, timeout_s=5) as put:
                    put.write(pa.array(values, pa.binary()))
                    self._acknowledged = put.finish(5)
        except DafkaError:
            # Killed: the next client asks for the outcome.
            time.sleep(0.05)

    def finish(self) -> None:
        super().finish()
        # Unacknowledged records may be lost with the store.
        deadline = time.monotonic() + PATIENCE_S
        before = self._acknowledged
        while self._acknowledged <= before or self._acknowledged < self._sent:
            if time.monotonic() > deadline:
                raise ChaosError("no put has succeeded any more")
            self.write([b""] * 10)

    def close(self) -> None:
        self._place = None


class TableRound(Round):
    series = 10  # the directory grows, and each round reads all of it

    def run(self) -> None:
        chaos = self.chaos
        site = TowerSite(self.directory, self.stack)
        listener = site.listener(TOPIC)
        seed = f"{chaos.outcome.seed}/{self.number}"
        mesh = [MeshWriter(f"mesh{n}", f"{seed}/{n}", site.tower) for n in (1, 2)]
        putter = FlightWriter("put", f"{seed}/put")
        writers: list[Writer] = [*mesh, putter]
        for writer in writers:
            self.stack.callback(writer.close)
        for writer in writers:
            writer.start()
        for number in range(self.number, self.number + self.count):
            with _store(site, putter) as store:
                _kill(chaos, chaos.chance(number), store, writers, self.directory)
            putter.close()
        with _store(site, putter):
            for writer in writers:
                writer.finish()
            everything = [
                value(writer.name, offset).decode()
                for writer in writers
                for offset in range(writer.acknowledged())
            ]
            chaos.outcome.records += len(everything)
            late = site.listener(TOPIC, "late")
            for consumer in (late, listener):
                consumer.wait_for(len(everything))
            chaos.compare("a new consumer", everything, late.values())
            chaos.compare("a consumer that was there", everything, listener.values())


@contextlib.contextmanager
def _store(site: Site, putter: FlightWriter) -> Iterator[Node]:
    with site.store() as store:
        putter.found(store)
        yield store


def _kill(
    chaos: Chaos, chance: random.Random, store: Node, writers: list[Writer], directory: Path
) -> None:
    before = [writer.acknowledged() for writer in writers]
    wait_until(
        lambda: all(w.acknowledged() > b for w, b in zip(writers, before, strict=True)),
        f"records of every writer are acknowledged, {before} were",
    )
    time.sleep(chance.uniform(0, 0.4))
    if chance.random() < 0.5:
        chaos.fault(_wait_for_merging(chance, writers, directory / "store"))
    else:
        chaos.fault("store killed during ingest")
    acknowledged = [writer.acknowledged() for writer in writers]
    store.kill()
    on_disk = values_on_disk(directory / "store")
    for writer, least in zip(writers, acknowledged, strict=True):
        chaos.compare(
            f"{writer.name} on disk after a kill",
            [value(writer.name, offset) for offset in range(least)],
            on_disk.get(TopicPartition(TOPIC, writer.partition), []),
            [value(writer.name, offset) for offset in range(writer.sent())],
        )
        writer.hold(False)


def _wait_for_merging(chance: random.Random, writers: list[Writer], directory: Path) -> str:
    """Let the store become quiet, so that it merges; the kill comes while it does."""
    for writer in writers:
        writer.hold(True)
    blocks = Blocks(directory)
    try:
        deadline = time.monotonic() + MERGE_WAIT_S
        most = blocks.count()
        while (now := blocks.count()) >= most:
            if time.monotonic() > deadline:
                return "store killed when quiet"
            most = now
            time.sleep(0.001)
    finally:
        blocks.close()
    if chance.random() < 0.5:
        for writer in writers:
            writer.hold(False)
        time.sleep(chance.uniform(0, 0.03))
        return "store killed during merges, records coming in"
    time.sleep(chance.uniform(0, 0.03))
    return "store killed during merges"

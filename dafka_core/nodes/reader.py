"""The reader: asks stores for their partitions, and fetches ranges.  Spark and the CLI use it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Any, Final

from dafka_core.config.node_options import ReaderOptions
from dafka_core.config.options import check_argument
from dafka_core.errors import (
    ConfigError,
    DafkaError,
    DataLossError,
    FetchTimeoutError,
    NoStoreError,
)
from dafka_core.model.records import (
    KnownStore,
    Neighbour,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
)
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.consumer import RecordQueue, check_partition
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import Node
from dafka_core.protocol.consumer_role import RangeRead, ReaderRole
from dafka_core.protocol.fields import check_end, check_sequence, check_topics
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.messages import HeadsQuery, TimesQuery

_log = logging.getLogger("dafka.reader")

_GIVEN_UP: Final = (
    "%s %s at %s is announced and has not connected to this reader in %.0f s: records that only it "
    "has are missing in the results until it connects"
)


class Reader(Node):
    """Reads heads, times and ranges from the stores (``ReaderOptions``).  Thread-safe.

    Raises:
        ConfigError: an option is invalid.
        TowerNotFoundError: no tower answered.
    """

    def __init__(self, **options: Any) -> None:
        self._config = ReaderOptions.build(options)
        self.address = new_address(self._config)  # the reader's UUID
        self.keys = self._config.keys  # the files of its own key and of the allowed keys
        self.role = ReaderRole(
            self.address, limit_bytes=max_taken_bytes(self._config.max_record_bytes)
        )
        self._queues: dict[RangeRead, RecordQueue] = {}
        self.mesh = Mesh("reader", self.role, self._config)
        self.mesh.start(self._on_round)
        self.is_open = True

    def stores(self) -> list[str]:
        """Return the addresses of the stores discovered so far."""
        return sorted(self.role.directory.stores)

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """Return the Flight URIs of stores, by the store's address."""
        return self.role.directory.endpoints

    def neighbours(self) -> list[Neighbour]:
        """Return the announced nodes with their kinds, and whether they have connected here."""
        return self.mesh.call(lambda now: self.mesh.peers.inbound.neighbours())

    def towers(self) -> list[str]:
        """Return the towers of its mesh, as ``HOST:SUB_PORT:PUB_PORT``."""
        return [str(each) for each in self._config.tower]

    def wait_for_stores(self, *, timeout_s: float) -> None:
        """Wait until every possible store has answered, or was given up with a warning.

        Raises NoStoreError if none was discovered within ``timeout_s`` seconds.
        """
        self.partitions(["-"], timeout_s=timeout_s)  # any topic: the answer waits for the stores

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """Return stores that others know and that do not answer: their records may be missing.

        Stores name each other until one is forgotten (``dafka store forget``).  Also empty if no
        store was discovered within ``timeout_s`` seconds.
        """
        with contextlib.suppress(NoStoreError):
            self.wait_for_stores(timeout_s=timeout_s)
        return self.role.directory.missing

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """Return the stores' combined partitions of the topics (None: of all).

        Raises:
            ConfigError: a topic is invalid, or the topics are too many.
            NoStoreError: no store was discovered within ``timeout_s`` seconds.
        """
        if isinstance(topics, str | bytes):  # a collection of its letters
            raise ConfigError("topics", topics, "must be a list of topics")
        names = tuple(topics or ())  # once: it may be an iterator
        check_argument("topics", names, check_topics)
        query = self.mesh.query(self.role.directory, timeout_s, HeadsQuery, names)
        wanted = {tp.topic for tp in query.heads} if topics is None else set(names)
        return [info for info in sorted(query.heads.values()) if info.topic in wanted]

    def times(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> list[tuple[int, int]]:
        """Return timestamps of records ``[start, end)``: (first offset, microseconds), by offset.

        Each time applies up to the next one's offset.  Empty if no store knows them.

        Raises:
            ConfigError: the range is invalid.
            NoStoreError: no store was discovered within ``timeout_s`` seconds.
        """
        _check_range(tp, start, end)
        directory = self.role.directory
        return self.mesh.query(directory, timeout_s, TimesQuery, *tp, start, end).best_times()

    def read(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
        """Yield the records ``[start, end)``, in order and complete.

        Raises:
            ConfigError: the range is invalid.
            DataLossError: no store has the records any more, or has them yet.
            HistoryChangedError: another history has replaced yielded records.
            FetchTimeoutError: nothing arrived for ``timeout_s`` seconds.
            RecordTooLargeError: a record is above ``max_record_bytes``; those before it were
                yielded.
        """
        _check_range(tp, start, end)
        if start >= end:
            return

        begun: list[RangeRead] = []

        def begin(now: float) -> RecordQueue:
            mesh, read = self.mesh, self.role.read(tp, start, end)
            queue = self._queues[read] = RecordQueue(lambda: None if read.room else mesh.wake())
            begun.append(read)
            return queue

        def forget(now: float) -> None:
            for read in begun:  # none, if Ctrl-C came before
                self.role.forget(read)
                del self._queues[read]

        offset = start
        try:
            queue = self.mesh.call(begin)
            while offset < end:
                self.mesh.check()  # a closed reader yields no records, even if they have arrived
                batch = self.mesh.wait_until(queue.next_batch, timeout_s)
                if batch is None:
                    raise self._diagnosis(tp, offset, end, timeout_s)
                offset = batch.end
                yield batch
        finally:
            # A range may be dropped after the reader was closed, or in a forked child.
            with contextlib.suppress(DafkaError):
                self.mesh.call_soon(forget)

    def close(self) -> None:
        """Close the reader.  Idempotent."""
        self.is_open = False
        self.mesh.close()

    def _diagnosis(
        self, tp: TopicPartition, offset: int, end: int, waited_s: float
    ) -> DataLossError | FetchTimeoutError:
        infos = self.partitions([tp.topic], timeout_s=waited_s)
        held = next((info for info in infos if info.partition == tp.partition), None)
        if held is None:
            return DataLossError(*tp, offset, None, "no store has the partition")
        if held.earliest > offset:
            why = "the records before it have been trimmed"
            return DataLossError(*tp, offset, held.earliest, why)
        if held.end < end:
            why = f"the partition ends at {held.end} in every store, {end} was asked for"
            return DataLossError(*tp, max(offset, held.end), held.earliest, why)
        return FetchTimeoutError(*tp, offset, end, waited_s)

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        given_up = self.role.directory.given_up
        while given_up:
            each = given_up.popleft()
            kind = "store" if each.is_store else "node, perhaps a store,"
            at = each.endpoint or "an unknown address"
            _log.warning(_GIVEN_UP, kind, each.node, at, each.waited_s)
        room_again = False
        for read, queue in self._queues.items():
            delivered, read.delivered = read.delivered, []
            queue.add(delivered)
            had_room = read.room
            read.room = False  # the application wakes the loop for what it takes from now on
            read.room = queue.size[1] < self._config.max_queued_bytes
            room_again |= read.room and not had_room
        return room_again


def _check_range(tp: TopicPartition, start: int, end: int) -> None:
    check_partition(tp)
    check_argument("start", start, check_sequence)
    check_argument("end", end, check_end)

"""Keeps what groups commit in the store: this gateway's records, and those of the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.kafka.gateway_node import GatewayNode
from dafka_core.kafka.groups.group_records import OFFSETS_TOPIC, GroupRecord
from dafka_core.kafka.groups.offsets import Offsets
from dafka_core.nodes.own_partition import append
from dafka_core.records import PartitionInfo, TopicPartition

MAX_WAITING: Final = 10_000
"""Records on their way to the disk; who comes later is told to try again."""

MAX_BATCH: Final = 1_000
"""Records that go to disk together."""

MAX_READ_BYTES: Final = 4 << 20
"""At one time: other clients are served between two looks at what was read."""

LEAST_REPEATED: Final = 10_000
"""So many records, and four times those that count, are written before these are written again."""

REPLICATE_S: Final = 5.0
"""How long other stores may take, as Kafka's ``offsets.commit.timeout.ms``."""

APPEND_TIMEOUT_S: Final = 30.0
"""How long the store's own disk may take."""

_log: Final = logging.getLogger("dafka.kafka")


class OffsetLog:
    """What all groups have committed, durable.  For the gateway's loop.

    ``offsets`` has what this gateway has written, and what the others had when it last looked.
    """

    def __init__(self, node: GatewayNode) -> None:
        self.offsets = Offsets()
        self.own = TopicPartition(OFFSETS_TOPIC, node.store.address)
        self._node = node
        self._log = node.store.log
        self._replication = node.replication
        self._read: dict[str, int] = {}  # up to where each gateway's records were looked at
        self._begins: dict[str, int] = {}  # where they began then
        self._changes = -1  # of the log, that were looked at
        self._reading = asyncio.Lock()
        self._waiting: list[tuple[GroupRecord, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._repeat_at = LEAST_REPEATED
        """When this gateway's partition is so long, what counts is written again."""

    async def catch_up(self) -> None:
        """Reads what gateways have written since the last call.

        Raises:
            DafkaError: the log cannot be read.
        """
        async with self._reading:
            changes = self._log.changes
            number = changes.number
            if changes.since(self._changes, frozenset((OFFSETS_TOPIC,))) == []:
                return
            began = dict(self._begins)
            for info in await self._node.in_thread(self._log.partitions, OFFSETS_TOPIC):
                await self._catch_up(info)
            self._changes = number
            if self._begins != began:
                self.offsets.forget(self._begins)

    async def write(self, records: Collection[GroupRecord]) -> None:
        """Writes records; returns when they are on disk here and at the other stores.

        Raises:
            InvalidRequestError: a record is larger than a store takes, or there are too many.
            TimeoutError: another store that is there does not have them in time.
            DafkaError: the store has ended.
        """
        if len(self._waiting) + len(records) > MAX_WAITING:
            raise InvalidRequestError("offsets", len(records), "wait until others are on disk")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in records]
        self._waiting += zip(records, futures, strict=True)
        if self._writer is None:
            self._writer = loop.create_task(self._write_all())
        found = await asyncio.gather(*futures, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each

    async def close(self) -> None:
        """Waits for what is on its way."""
        while tasks := [*self._answering, *([self._writer] if self._writer else [])]:
            await asyncio.wait(tasks)

    # -- reading -----------------------------------------------------------------------------------

    async def _catch_up(self, info: PartitionInfo) -> None:
        start = self._read.get(info.partition, 0)
        if start > info.end:
            start = 0  # another history has won; what was read is the same, or older
        trim_to = 0
        while (start := max(start, info.earliest)) < info.end:
            found, start, repeats = await self._node.in_thread(
                self._parsed, info.tp, start, info.end
            )
            for offset, record in found:
                self.offsets.take(info.partition, record, offset)
            trim_to = max(trim_to, repeats)
        self._read[info.partition] = info.end
        self._begins[info.partition] = max(info.earliest, min(trim_to, info.end))
        if info.tp == self.own:
            self._repeat_at = max(self._repeat_at, info.earliest + LEAST_REPEATED)
        if info.earliest < trim_to <= info.end:
            await self._node.in_thread(self._log.trim, info.tp, trim_to)

    def _parsed(
        self, tp: TopicPartition, start: int, end: int
    ) -> tuple[list[tuple[int, GroupRecord]], int, int]:
        """Some records with their offsets, the offset behind them, and up to where they repeat."""
        found, repeats, at = [], 0, start
        for batch in self._log.read(tp, start, end, max_bytes=MAX_READ_BYTES):
            for offset, value in enumerate(batch.values, batch.offset):
                try:
                    record = GroupRecord.parse(bytes(value))
                except InvalidRequestError:
                    continue  # anybody may write there, and versions to come will
                found.append((offset, record))
                if record.repeats <= offset:
                    repeats = max(repeats, record.repeats)
            start = batch.end
        return found, start if start > at else end, repeats

    # -- writing -----------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        while self._waiting:
            taken = self._waiting[:MAX_BATCH]
            del self._waiting[:MAX_BATCH]
            records, futures = [each for each, _ in taken], [each for _, each in taken]
            try:
                end = await self._put(records)
            except (DafkaError, TimeoutError) as error:
                if len(taken) == 1 or not isinstance(error, InvalidRequestError):
                    _end(futures, error)
                else:  # one is too large: which, shows when each is written alone
                    await self._one_by_one(records, futures)
            except RuntimeError as error:  # the gateway has ended
                _end(futures, error)
            else:
                self._answer(end, futures)
                await self._repeat(end)
        self._writer = None

    async def _one_by_one(
        self, records: Sequence[GroupRecord], futures: Sequence[asyncio.Future[None]]
    ) -> None:
        for record, future in zip(records, futures, strict=True):
            try:
                self._answer(await self._put([record]), [future])
            except (DafkaError, TimeoutError) as error:
                _end([future], error)

    async def _put(self, records: Sequence[GroupRecord]) -> int:
        """Appends records; returns the partition's end when they are on disk here."""
        packed = [each.packed() for each in records]
        put = self._node.in_thread(
            append, self._node.store, self.own, packed, timeout_s=APPEND_TIMEOUT_S
        )
        offsets = await put
        for offset, record in zip(offsets, records, strict=True):
            self.offsets.take(self.own.partition, record, offset)
        if self._read.get(self.own.partition) == offsets.start:
            self._read[self.own.partition] = offsets.stop
        return offsets.stop

    def _answer(self, end: int, futures: Sequence[asyncio.Future[None]]) -> None:
        """Tells who waits when the other stores have the records, too; the next ones go on."""
        task = asyncio.get_running_loop().create_task(self._wait_for_others(end, futures))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _wait_for_others(self, end: int, futures: Sequence[asyncio.Future[None]]) -> None:
        if await self._replication.wait({self.own: end}, REPLICATE_S):
            _end(futures)
        else:
            _end(futures, TimeoutError(f"other stores lack what is before offset {end}"))

    async def _repeat(self, end: int) -> None:
        """Writes again what counts, now and then, and gives up what is before it."""
        if end < self._repeat_at:
            return
        self.offsets.forget(self._begins | {self.own.partition: end})
        records = self.offsets.repeated(self.own.partition)
        self._repeat_at = end + max(LEAST_REPEATED, 4 * len(records))
        try:
            for start in range(0, len(records), MAX_BATCH):
                await self._put(records[start : start + MAX_BATCH])
            await self._put([GroupRecord(repeats=end)])
            await self._node.in_thread(self._log.trim, self.own, end)
        except (DafkaError, TimeoutError) as error:
            _log.warning("committed offsets could not be written again: %s", error)


def _end(futures: Sequence[asyncio.Future[None]], error: BaseException | None = None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

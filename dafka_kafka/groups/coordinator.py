"""The coordinator of consumer groups: their timers, and the log of committed offsets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import closing
from typing import Any, Final

from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import Epoch, epoch_at
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_core.nodes.store import Store
from dafka_core.security.throttles import LogThrottle
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.gateways import GatewayInfo
from dafka_kafka.groups.group import Group
from dafka_kafka.groups.offsets import (
    DELETED,
    OFFSETS_TOPIC,
    Committed,
    GroupRecord,
    Offsets,
    records_of,
)

MAX_BATCH: Final = 1_000  # records in one append; a single call may write more
MAX_READ_BYTES: Final = 4 << 20  # read size; the loop serves other clients between reads

LEAST_REPEATED: Final = 10_000
"""The log is compacted when it has grown by this many records, or by four times those that
count."""

REPLICATE_S: Final = 5.0  # time for other stores, as Kafka's ``offsets.commit.timeout.ms``
APPEND_TIMEOUT_S: Final = 30.0  # time for this store's disk

_log: Final = logging.getLogger("dafka.kafka")


class OffsetLog:
    """The durable log of all groups' commits; used in the gateway's loop.

    Attributes:
        offsets: what this gateway has written, and what it has read of other gateways.
        taken_over: groups of which another gateway has stored the newest generation, with its
            store's address.
    """

    def __init__(self, node: GatewayNode) -> None:
        self.offsets = Offsets()
        self.taken_over: dict[str, str] = {}
        self.own = TopicPartition(OFFSETS_TOPIC, node.store.address)
        self._node = node
        self._log = node.store.log
        self._replication = node.replication
        self._read: dict[str, int] = {}  # by gateway, the offset up to which its records are read
        self._epochs: dict[str, Epoch | None] = {}  # by gateway, the epoch of the last one
        self._begins: dict[str, int] = {}  # by gateway, the first offset at that time
        self._changes = -1  # the log's change number at the last read
        self._reading = asyncio.Lock()
        self._batch: list[GroupRecord] | None = None  # the next append
        self._writing: asyncio.Task[None]  # of the last batch
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._end = 0  # of this partition, after the last append
        self._repeat_at = LEAST_REPEATED  # this partition's length at the next compaction

    async def catch_up(self) -> None:
        """Read what gateways have written since the last call.

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
        """Write records; return when they are on disk here and at the other stores.

        Raises:
            InvalidRequestError: a record exceeds the stores' limit.
            TimeoutError: a reachable store does not have them in time.
            DafkaError: the store has ended.
        """
        limit_bytes, store = self._node.store.append_queue.limit
        for record in records:  # here, as it fails all records that are appended together
            if (size_bytes := len(record.packed())) > limit_bytes:
                why = f"a record has at most {limit_bytes} bytes at {store}"
                raise InvalidRequestError("offsets", f"{size_bytes} bytes", why)
        if self._batch is None or len(self._batch) >= MAX_BATCH:
            self._batch = []
            self._writing = asyncio.create_task(self._write(self._batch))
            self._tasks.add(self._writing)
            self._writing.add_done_callback(self._tasks.discard)
        self._batch += records
        await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Wait for unfinished writes."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- reading -----------------------------------------------------------------------------------

    async def _catch_up(self, info: PartitionInfo) -> None:
        lives = self._log.lives(info.tp)
        start, end, trim_to = self._read.get(info.partition, 0), lives.end, 0
        is_same = self._epochs.get(info.partition) == epoch_at(lives.history, start - 1)
        if start > end or not (is_same or info.tp == self.own):
            start = 0  # another history has won: the records read so far are the same, or older
        while (start := max(start, info.earliest)) < end:
            found, start, repeats = await self._node.in_thread(self._parsed, info.tp, start, end)
            for offset, record in found:
                if self.offsets.take(info.partition, record, offset) and info.tp != self.own:
                    self.taken_over[record.group] = info.partition
            trim_to = max(trim_to, repeats)
        self._read[info.partition] = end
        self._epochs[info.partition] = epoch_at(lives.history, end - 1)
        self._begins[info.partition] = max(info.earliest, min(trim_to, end))
        if info.tp == self.own:
            self._repeat_at = max(self._repeat_at, info.earliest + LEAST_REPEATED)
        if info.earliest < trim_to <= end:
            await self._node.in_thread(self._log.trim, info.tp, trim_to)

    def _parsed(
        self, tp: TopicPartition, start: int, end: int
    ) -> tuple[list[tuple[int, GroupRecord]], int, int]:
        """Return some records with their offsets, the next offset, and the compacted offset."""
        found, repeats, at = [], 0, start
        for batch in self._log.read(tp, start, end, max_bytes=MAX_READ_BYTES):
            for offset, value in enumerate(batch.values, batch.offset):
                if (record := GroupRecord.parse_or_none(bytes(value))) is None:
                    continue
                found.append((offset, record))
                if record.repeats <= offset:
                    repeats = max(repeats, record.repeats)
            start = batch.end
        return found, start if start > at else end, repeats

    # -- writing -----------------------------------------------------------------------------------

    async def _write(self, batch: list[GroupRecord]) -> None:
        async with self._turn:
            if self._batch is batch:
                self._batch = None
            if self._end >= self._repeat_at:
                await self._repeat(self._end)
            self._end = end = await self._put(batch)
        if not await self._replication.wait({self.own: end}, REPLICATE_S):
            raise TimeoutError(f"other stores lack what is before offset {end}")

    async def _put(self, records: Sequence[GroupRecord]) -> int:
        """Append records; return the partition's end once they are on disk."""
        packed = [each.packed() for each in records]
        append = self._node.store.append_queue.append
        offsets = await self._node.in_thread(append, self.own, packed, timeout_s=APPEND_TIMEOUT_S)
        for offset, record in zip(offsets, records, strict=True):
            if self.offsets.take(self.own.partition, record, offset):
                self.taken_over.pop(record.group, None)
        if self._read.get(self.own.partition) == offsets.start:
            self._read[self.own.partition] = offsets.stop
        return offsets.stop

    async def _repeat(self, end: int) -> None:
        """Compact the partition: write current state again, and trim the records before it."""
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


ASK_S: Final = 2.0  # time for another store's answer

WAIT_S: Final = 20.0
"""Time to receive other stores' records; after it the gateway continues with what it has."""

MEET_S: Final = 5.0
"""Time for a store to tell its Flight location, which C stores don't have; when the gateway starts,
also for known stores to appear."""

STEP_S: Final = 0.05


def wait_for_others(store: Store, *, is_start: bool = False) -> None:
    """Wait until a store has the offsets topic as far as the reachable stores have it.

    At the start of its gateway (``is_start``) other stores may not have been heard of yet.

    Raises:
        DafkaError: the store has ended.
    """
    deadline = time.monotonic() + WAIT_S
    for tp, end in ends_at_others(store, is_start=is_start).items():
        while store.log.end(tp) < end:
            if time.monotonic() > deadline:
                _log.warning("%s: other stores have more, which does not come", tp)
                break
            time.sleep(STEP_S)


def ends_at_others(store: Store, *, is_start: bool) -> dict[TopicPartition, int]:
    """Return the ends of the offsets topic at the reachable stores."""
    known, until = store.known, time.monotonic() + MEET_S

    def are_met() -> bool:
        return known.endpoints.keys() >= {*(known.names if is_start else known.here)}

    while not are_met() and time.monotonic() <= until:
        time.sleep(STEP_S)
    found = []
    for address, locations in known.endpoints.items():
        try:
            location = StoreLocation(address, locations)
            with closing(StoreClient(location, store.options.keys)) as client:
                found += client.heads([OFFSETS_TOPIC], timeout_s=ASK_S)
        except DafkaError as error:
            _log.info("store %s is not asked for committed offsets: %s", address, error)
    return {tp: info.end for tp, info in merge_heads(found).items()}


MAX_GROUPS: Final = 10_000
"""Groups in memory, or with commits: some megabytes with one partition each."""

LOOK_S: Final = 0.25  # interval of the check for gateways that have come or gone
EXPIRE_S: Final = 60.0  # interval of the check for expired groups

EMPTY_MS: Final = 600_000
"""Retention of a group without members and commits, as a broker's default interval between checks:
clients may describe and delete a group that they have just left."""


Begin = Callable[[Coroutine[Any, Any, None]], object]
"""Works in the background, until the gateway closes."""


class Coordinator:
    """Coordinates the groups that rendezvous hashing assigns to this gateway.

    All gateways share the committed offsets. A gateway that gets groups, at its start or when
    another one ends, first reads what the others have written; until then it answers
    COORDINATOR_LOAD_IN_PROGRESS. Runs in the gateway's loop.
    """

    def __init__(self, node: GatewayNode, log: OffsetLog, begin: Begin) -> None:
        self.log = log
        self._begin = begin
        self.offsets = log.offsets
        self._node = node
        self._gateways = node.gateways
        self._groups: dict[str, Group] = {}
        self._due: dict[str, float] = {}  # by group, the time of its next check, or earlier
        self._live: frozenset[str] = frozenset()  # the gateways whose records are read
        self._woken = asyncio.Event()
        self._said = LogThrottle()

    def start(self) -> None:
        """Start the timers."""
        for work in (self._load_now_and_then(), self._run(), self._expire_now_and_then()):
            self._begin(work)

    async def close(self) -> None:
        """Close, after its work has ended; waiting clients are told to find another coordinator."""
        for group in [*self._groups.values()]:
            self._end(group, KafkaError.COORDINATOR_NOT_AVAILABLE)
        await self.log.close()

    def place(self, group_id: str) -> GatewayInfo:
        """Return the gateway that coordinates a group."""
        return self._gateways.chosen(f"group {group_id}")

    def error(self, group_id: str) -> KafkaError | None:
        """Return why this gateway can't answer for a group."""
        if self.place(group_id).address != self._gateways.own.address:
            group = self._groups.get(group_id)
            if group is not None:
                self._end(group, KafkaError.NOT_COORDINATOR)
            return KafkaError.NOT_COORDINATOR
        return None if group_id in self._groups else self.loading()

    def loading(self) -> KafkaError | None:
        """Return an error while groups are still being loaded."""
        is_read = self._live == self._live_now()
        return None if is_read else KafkaError.COORDINATOR_LOAD_IN_PROGRESS

    def is_known(self, group: Group) -> bool:
        """Return whether a group exists: it has members or commits, or had members lately."""
        return not group.is_unused or self.offsets.is_there(group.group_id)

    def group(self, group_id: str) -> Group | KafkaError:
        """Return a group, created if necessary, or why this gateway can't."""
        error = self.error(group_id)
        if error is not None:
            return error
        found = self._groups.get(group_id)
        if found is None:
            found = Group(group_id, self._node.options)
            if (kept := self.offsets.generation(group_id)) is not None:
                found.restore(self.now(), kept)
            self.log.taken_over.pop(group_id, None)
            self._groups[group_id] = found
            self._due[group_id] = found.deadline()
        return found

    def is_one_too_many(self, group: Group) -> bool:
        """Return whether a group is new, and must not begin."""
        is_new = not self.is_known(group)
        return is_new and len({*self.offsets.groups(), *self._groups}) > MAX_GROUPS

    def groups(self) -> list[Group]:
        """Return all existing groups of this gateway."""
        names = {*self.offsets.groups(), *self._groups}
        found = [self.group(each) for each in sorted(names)]
        there = [each for each in found if isinstance(each, Group)]
        for each in there:
            self._forget_unused(each)
        return [each for each in there if self.is_known(each)]

    def now(self) -> float:
        """The groups' time, in seconds."""
        return asyncio.get_running_loop().time()

    def settle(self, group: Group) -> None:
        """Send a group's answers to their requests, and store its new state."""
        for ticket, answer in group.take_answers():
            if not ticket.done():  # its client has disconnected
                ticket.set_result(answer)
        group_id = group.group_id
        if self._groups.get(group_id) is not group:
            return
        self._due[group_id] = group.deadline()
        if self._due[group_id] < self.now() + LOOK_S:
            self._woken.set()
        if group.is_unsaved:
            group.is_unsaved = False
            kept = group.kept(self._node.store.log.now_us() // 1_000)
            record = GroupRecord(group_id, self.offsets.next_counter(), generation=kept)
            self._begin(self._keep(group, record))
        self._forget_unused(group)

    async def delete(self, group: Group) -> None:
        """Delete a group and its commits; raises as ``OffsetLog.write``."""
        counter = self.offsets.next_counter()
        await self.log.write([GroupRecord(group.group_id, counter, deleted=True)])
        self._end_unused(group)

    async def forget_topic(self, topic: str) -> None:
        """Delete all groups' commits of a topic; raises as ``OffsetLog.write``."""
        await self.log.catch_up()
        records: list[GroupRecord] = []
        for group_id in [*self.offsets.groups()]:
            gone = [
                Committed(topic, number, DELETED)
                for name, number in self.offsets.committed(group_id)
                if name == topic
            ]
            if gone:
                records += records_of(group_id, self.offsets.next_counter(), gone)
        for start in range(0, len(records), MAX_BATCH):
            await self.log.write(records[start : start + MAX_BATCH])

    # -- internal ----------------------------------------------------------------------------------

    async def _load_now_and_then(self) -> None:
        while True:
            await self._load()
            await asyncio.sleep(LOOK_S)

    async def _run(self) -> None:
        while True:
            now = self.now()
            for group_id in [name for name, due in self._due.items() if due <= now]:
                group = self._groups[group_id]
                group.on_time(now)
                self.settle(group)
            wait_s = min([LOOK_S, *(due - now for due in self._due.values())])
            self._woken.clear()
            try:
                await asyncio.wait_for(self._woken.wait(), max(wait_s, 0.001))
            except TimeoutError:
                continue

    async def _expire_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_S)
            try:
                await self._expire()
            except (DafkaError, TimeoutError) as error:
                _log.warning("groups that are not used could not be deleted: %s", error)

    async def _expire(self) -> None:
        log = self._node.store.log
        if log.clock.doubt() or self.loading() or not self._unused():
            return
        # Commits from here on are newer than the deletion; unfinished ones come first.
        counter = self.offsets.next_counter()
        await self.log.write([GroupRecord(counter=counter)])
        unused = self._unused()[:MAX_BATCH]
        if not unused:
            return
        await self.log.write([GroupRecord(each.group_id, counter, deleted=True) for each in unused])
        _log.info("deleted %d groups that have not been used for long", len(unused))
        for group in unused:
            self._end_unused(group)

    def _unused(self) -> list[Group]:
        """Return this gateway's groups without members whose retention is over."""
        now_ms, offsets = self._node.store.log.now_us() // 1_000, self.offsets
        with_commits_ms = self._node.options.offsets_retention_minutes * 60_000

        def is_over(name: str) -> bool:
            kept_ms = with_commits_ms if offsets.has_commits(name) else EMPTY_MS
            return 0 < offsets.used_ms(name) < now_ms - kept_ms

        names = [each for each in offsets.groups() if is_over(each)]
        found = [self.group(each) for each in names]
        return [each for each in found if isinstance(each, Group) and self._is_kept_unused(each)]

    async def _load(self) -> None:
        """Read other gateways' records; all of them when gateways have come or gone."""
        live = self._live_now()
        try:
            if live != self._live:
                for group_id in [*self._groups]:
                    self.error(group_id)  # end groups that have moved
                is_start = not self._live
                await self._node.in_thread(wait_for_others, self._node.store, is_start=is_start)
            await self.log.catch_up()
        except DafkaError as error:
            if self._said.is_new(str(error)):
                _log.warning("committed offsets cannot be read: %s", error)
        else:
            self._live = live
        self._end_taken_over(live)

    def _end_taken_over(self, live: Collection[str]) -> None:
        """End groups that a live gateway coordinated while this one was cut off.

        The next request continues from what that gateway has stored.
        """
        for group_id, writer in [*self.log.taken_over.items()]:
            if writer in live:
                del self.log.taken_over[group_id]
                if group := self._groups.get(group_id):
                    self._end(group, KafkaError.NOT_COORDINATOR)

    def _live_now(self) -> frozenset[str]:
        return frozenset(each.address for each in self._gateways.live())

    def _end(self, group: Group, error: KafkaError) -> None:
        group.end(error)
        if self._groups.get(group.group_id) is group:  # not one that began meanwhile
            self._drop(group.group_id)
        self.settle(group)

    def _end_unused(self, group: Group) -> None:
        """End a deleted group, unless members have joined meanwhile: it continues with them."""
        if not group.members:
            self._end(group, KafkaError.GROUP_ID_NOT_FOUND)

    def _forget_unused(self, group: Group) -> None:
        if self._is_kept_unused(group) and self._groups.get(group.group_id) is group:
            self._drop(group.group_id)

    def _is_kept_unused(self, group: Group) -> bool:
        """Drop an empty group once that is stored: until then, its former members must be known."""
        kept = self.offsets.generation(group.group_id)
        return group.is_unused and group.generation == (kept.number if kept else 0)

    def _drop(self, group_id: str) -> None:
        self._groups.pop(group_id, None)
        self._due.pop(group_id, None)

    async def _keep(self, group: Group, record: GroupRecord) -> None:
        try:
            await self.log.write([record])
        except (DafkaError, TimeoutError) as error:
            # No loss: its members would join again at another gateway.
            _log.warning("the members of group %r could not be kept: %s", group.group_id, error)
        self._forget_unused(group)

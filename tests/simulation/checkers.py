"""Invariants that are checked after every step.  Each method's docstring states one.

They know what was published (``publish``) and nothing of how production works, but for its
limits, and the names of what it holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from dafka_core.errors import RecordTooLargeError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.log_entries import Stage
from dafka_core.model.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.model.timestamps import MAX_AHEAD_US
from dafka_core.nodes import store_loop
from dafka_core.protocol import messages as m
from dafka_core.protocol import partition_fetcher, store_requests
from dafka_core.protocol.consumer_role import ConsumerRole, Loss, ReaderRole
from dafka_core.protocol.producer_role import MAX_ACKING_STORES, ProducerRole
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.protocol.store_role import StoreRole
from tests.simulation.clocks import SKEW_US, right_us
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tests.simulation.disk import Disk
    from tests.simulation.mesh import SimulatedMesh

LOST = "lost:"
DOUBLED = "doubled:"
"""Failures of these kinds begin so."""

MAX_OVERDUE = 5
"""Ticks, one after the other, that may leave something due: what comes between may add to it."""


class Checkers:
    """The truth, and every claim about it."""

    def __init__(self, world: World, *, one_time: bool = False) -> None:
        self._world = world
        self._one_time = one_time  # every node sends the time of publication
        self._stamps: dict[tuple[TopicPartition, EpochId, int], int] = {}
        self.disks: dict[str, Disk] = {}  # by the store's address
        self.published: dict[TopicPartition, list[bytes]] = {}  # the records published until now
        self.acknowledged: dict[str, dict[TopicPartition, int]] = {}
        """By the store's address: up to where it has acknowledged."""
        self._epochs: dict[tuple[str, TopicPartition], tuple[Epoch, int]] = {}
        self._seen: dict[tuple[object, ...], int] = {}
        self._transactions: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        self._latest: dict[tuple[int, TopicPartition], int] = {}
        self._of_life = defaultdict[tuple[TopicPartition, EpochId], dict[int, bytes]](dict)
        self._anybodys = defaultdict[tuple[TopicPartition, int], set[bytes]](set)
        self.set_aside = Counter[TopicPartition]()
        """Number of times that stores have set a partition's records aside for a newer history."""
        self._lost_disks = 0
        self._safe: dict[TopicPartition, list[bytes]] = {}
        self._epoch_starts = defaultdict[TopicPartition, set[int]](set)
        self.delivered_records = 0
        self.liars: set[str] = set()  # partitions of byzantine peers, of which the truth is unknown

    # -- what is true ----------------------------------------------------------------------------

    def publish(
        self, tp: TopicPartition, offset: int, values: list[bytes], life: EpochId = NO_LIFE
    ) -> None:
        """Note published records; a later life may publish others."""
        truth = self.published.setdefault(tp, [])
        if offset > len(truth):
            self._world.fail(tp.partition[:4], f"publishes {offset} after {len(truth)}")
        truth[offset : offset + len(values)] = values
        of_life = self._of_life[tp, life]
        for at, value in enumerate(values, offset):
            if of_life.setdefault(at, value) != value:
                self._world.fail(tp.partition[:4], f"publishes another record at {at}")
            self._anybodys[tp, at].add(value)

    def is_true(self, batch: RecordBatch) -> bool:
        """Return True if the records were published at their offsets, by their life."""
        epoch, tp = batch.epoch, batch.tp
        of_life = self._of_life.get((tp, epoch.life), {}) if epoch else {}
        for at, value in enumerate(batch.values, batch.offset):
            # Records that clients write have no life before a store accepts them.
            said = {of_life[at]} if at in of_life else self._anybodys.get((tp, at), ())
            if value not in said:
                return False
        return True

    def on_stamped(
        self, who: str, tp: TopicPartition, start: int, times: list[int], life: EpochId
    ) -> None:
        """A store keeps records with the timestamps that every other one has."""
        lies = tp.partition in self.liars
        latest_us = right_us(self._world) + SKEW_US + lies * MAX_AHEAD_US
        for at, time_us in enumerate(times, start):
            same_us = self._stamps.setdefault((tp, life, at), time_us)
            if self._one_time and not lies and time_us != same_us:
                self._world.fail(who, f"{tp} at {at}: two timestamps, {same_us} and {time_us}")
            if time_us > latest_us:
                self._world.fail(who, f"{tp} at {at}: a timestamp {time_us - latest_us} us ahead")

    # -- delivery --------------------------------------------------------------------------------

    def on_delivered(self, who: str, batch: RecordBatch, expected: int | None) -> None:
        """Delivered records are a prefix of the published ones, each once and in order.

        ``expected`` is the next offset; None where any may come first.
        """
        if expected is not None and batch.offset != expected:
            kind = DOUBLED if batch.offset < expected else LOST
            self._world.fail(who, f"{kind} was delivered {_name(batch)} where {expected} was next")
        if batch.tp.partition in self.liars:
            return
        if not self.is_true(batch):
            self._world.fail(who, f"was delivered {_name(batch)}, which were never published")
        self._check_history(who, batch)
        self.delivered_records += len(batch.values)

    def begins(self, who: str) -> None:
        """A consumer or a reader starts anew, and knows nothing of what it was delivered before."""
        for key in [key for key in self._epochs if key[0] == who]:
            del self._epochs[key]

    def _check_history(self, who: str, batch: RecordBatch) -> None:
        """Delivered records have one history: a newer life continues the older one."""
        epoch, key = batch.epoch, (who, batch.tp)
        if epoch is None:
            return
        last, end = self._epochs.get(key, (epoch, batch.offset))
        if epoch != last and not (epoch.life > last.life and epoch.start >= end):
            self._world.fail(who, f"was delivered a mixture: {last} up to {end}, then {epoch}")
        self._epochs[key] = epoch, batch.end

    def record_of(
        self, who: str, error: RecordBatch | RecordTooLargeError, limit_bytes: int
    ) -> RecordBatch:
        """Return the record in place of an error: it must be larger than its reader accepts."""
        if isinstance(error, RecordBatch):
            return error
        tp = TopicPartition(error.topic, error.partition)
        if tp.partition in self.liars:
            return RecordBatch.of(tp, error.offset, [b""])
        value = self.published[tp][error.offset]
        # The report may be about the record of an older life.
        sizes = set(map(len, self._anybodys[tp, error.offset]))
        if error.size_bytes not in sizes or len(value) <= limit_bytes:
            self._world.fail(who, f"{LOST} passes over {len(value)} octets: {error}")
        self._world.fault("passed over", who)
        return RecordBatch.of(tp, error.offset, [value])

    def on_lost(self, who: str, loss: Loss, stores: Collection[str]) -> None:
        """Records that a consumer takes for lost are on no disk of a store that it knows."""
        self._world.fault("records that nobody has", who, f"{loss}")
        # A byzantine peer may have greeted the consumer as a store.
        known = [self.disks[store] for store in stores if store in self.disks]
        for disk in () if loss.tp.partition in self.liars else known:
            if max(loss.start, disk.earliest(loss.tp)) < min(loss.end, disk.end(loss.tp)):
                self._world.fail(who, f"{LOST} {loss}, which {disk.name} has")

    def on_changed(self, who: str, tp: TopicPartition, start: int) -> None:
        """A consumer goes back to where what it was delivered is not the partition's any more."""
        self._world.note(who, f"goes back to {start} of {tp.partition[:4]}")
        self._epochs.pop((who, tp), None)
        for seen in [each for each in self._seen if "head" in each and tp in each]:
            del self._seen[seen]
        held = (epoch for disk in self.disks.values() for epoch in disk.lives(tp).history)
        if tp.partition not in self.liars and start not in self._epoch_starts[tp].union(
            epoch.start for epoch in held
        ):
            self._world.fail(who, f"goes back to {start}, where nothing has changed")

    def on_told(self, mesh: SimulatedMesh, message: m.Message | RecordBatch) -> None:
        """A consumer hears of a partition; of some, it is where "latest" is."""
        if isinstance(mesh.role, ConsumerRole):
            for tp, latest in told_of(message):
                if tp.topic in mesh.role.topics:
                    self._latest.setdefault((mesh.number, tp), latest)

    def on_latest(self, mesh: SimulatedMesh, batch: RecordBatch) -> None:
        """A consumer that begins at the latest receives no record before the first known end."""
        latest = self._latest[mesh.number, batch.tp]
        if batch.offset < latest and batch.tp.partition not in self.liars:
            self._world.fail(mesh.name, f"begins with {_name(batch)}, and the latest was {latest}")

    # -- durability ------------------------------------------------------------------------------

    def on_disk(self, store: str, batch: RecordBatch) -> None:
        """A store keeps at an offset the record that was published there."""
        if batch.tp.partition not in self.liars and not self.is_true(batch):
            self._world.fail(store, f"stores {_name(batch)}, which were never published")

    def on_committed(self, store: str, transaction: StagedTransaction, values: list[bytes]) -> None:
        """A committed transaction has its writer's records, and is committed at one place."""
        start, end, number = transaction.start, transaction.end, transaction.version
        place = self._transactions.setdefault((transaction.tp, number), (start, end))
        if place != (start, end):
            self._world.fail(
                store, f"{DOUBLED} transaction {number} at {place}, and at {(start, end)}"
            )
        self.publish(transaction.tp, start, values)

    def on_written(
        self, who: str, disk: Disk, tp: TopicPartition, number: int, rows: list[bytes]
    ) -> None:
        """A transaction that a writer takes for committed is complete, without further records."""
        start, end = self._transactions.get((tp, number), (0, 0))
        found = self.published.get(tp, [])[start:end]
        if sorted(found) != sorted(rows) or disk.end(tp) < end:
            self._world.fail(who, f"{LOST} transaction {number} is not what was written")

    def on_sent(self, mesh: SimulatedMesh, message: m.Message | OutgoingBatch) -> None:
        """No node sends what was never published, or acknowledges what is not on its disk."""
        match message:
            case OutgoingBatch(batch):
                self._on_records(mesh, batch)
            case m.DirectRecordBatches():
                for batch in message.batches():
                    self._on_records(mesh, batch)
            case m.Head() if message.partition not in self.liars:
                if message.end > len(self.published.get(message.tp, ())):
                    self._world.fail(mesh.name, f"sends a head of {message.end}, which is none")
            case m.Ack(store=store) | m.EpochAck(store=store):
                self._on_ack(mesh, message.tp, message.end, store)

    def _on_records(self, mesh: SimulatedMesh, batch: RecordBatch) -> None:
        if batch.epoch is not None:
            self._epoch_starts[batch.tp].add(batch.epoch.start)
        if batch.tp.partition not in self.liars and not self.is_true(batch):
            self._world.fail(mesh.name, f"sends {_name(batch)}, which is not what it was")

    def _on_ack(self, mesh: SimulatedMesh, tp: TopicPartition, end: int, store: str) -> None:
        on_disk = self.disks[store].end(tp)
        if end > on_disk:
            what = f"acknowledges {end} of {tp.partition[:4]}, and {on_disk} are on its disk"
            self._world.fail(mesh.name, what)
        acknowledged = self.acknowledged.setdefault(store, {})
        acknowledged[tp] = max(end, acknowledged.get(tp, 0))

    def on_set_aside(self, name: str, tp: TopicPartition, start: int) -> None:
        """A store sets records aside: none that is reported as safe."""
        self.set_aside[tp] += 1
        self._world.fault("records set aside", name, f"{tp.partition[:4]} from {start}")
        store = next(address for address, disk in self.disks.items() if disk.name == name)
        acknowledged = self.acknowledged.get(store, {})
        if tp in acknowledged:
            acknowledged[tp] = min(start, acknowledged[tp])
        for seen in [each for each in self._seen if tp in each]:
            del self._seen[seen]

    def forget(self, store: str) -> None:
        """Note that a store has lost its disk, with the records that it acknowledged."""
        self.acknowledged.pop(store, None)
        pending = ("ahead", "pending")  # what other stores receive has nothing to do with it
        self._seen = {key: seen for key, seen in self._seen.items() if key[1] in pending}
        self._lost_disks += 1

    def after_crash(self, store: str) -> None:
        """Records that a store has acknowledged are on its disk after a crash."""
        for tp, end in self.acknowledged.get(store, {}).items():
            on_disk = self.disks[store].end(tp)
            if on_disk < end:
                self._world.fail(
                    self.disks[store].name, f"{LOST} {on_disk} to {end} of {tp}, acknowledged"
                )

    def on_durable(
        self, who: str, tp: TopicPartition, end: int, acks: int, life: EpochId = NO_LIFE
    ) -> None:
        """A producer takes records for safe only when ``acks`` disks have them.

        Only records of its own ``life`` count.
        """
        found = [disk.records(tp, end) for disk in self.disks.values() if disk.end(tp) >= end]
        safe = self._safe.setdefault(tp, [])
        said = self._of_life.get((tp, life), {})
        meant = [at for at in range(len(safe), end) if at in said]
        same = [
            records
            for records in found
            if records[: len(safe)] == safe[:end] and all(records[at] == said[at] for at in meant)
        ]
        # Some may have been there before their disk was lost.
        if len(same) < max(acks - self._lost_disks, 1):
            self._world.fail(
                who, f"{LOST} takes {end} for safe, {len(same)} stores have it on disk"
            )
        safe[:end] = max(same, key=lambda records: sum(each == records for each in same))

    def others(self) -> Iterator[str]:
        """Yield the disks with others than the records that producers took for safe.

        The next heads of another store, after ``sync_s``, tell a store that its history has lost.
        """
        for tp, safe in self._safe.items():
            for disk in self.disks.values():
                held = disk.records(tp, len(safe))
                if held != safe[: len(held)]:
                    at = next(i for i, each in enumerate(held) if each != safe[i])
                    yield f"{disk.name} has {held[at]!r} at {at} of {tp}, not {safe[at]!r}"

    def on_resumed(self, who: str, end: int, asked_end: int | None) -> None:
        """A producer resumes after the end that any reachable store had when it asked."""
        if asked_end is not None and end < asked_end:
            self._world.fail(who, f"resumes at {end}, and stores that it reaches have {asked_end}")

    # -- offsets and memory ----------------------------------------------------------------------

    def never_backwards(self, who: str, what: tuple[object, ...], value: int) -> None:
        before = self._seen.get(what, value)
        if value < before:
            self._world.fail(who, f"{what[1:]} went back from {before} to {value}")
        self._seen[what] = value

    def after_round(self, mesh: SimulatedMesh) -> None:
        """A node's contents are within its limits, and its offsets never go back."""
        role = mesh.role
        # A tick does the work that is due, else the loop would run without a pause.
        due = role.deadline(self._world.now)
        mesh.overdue = mesh.overdue + 1 if due <= self._world.now else 0
        self.most(mesh, "rounds in which nothing that was due was done", mesh.overdue, MAX_OVERDUE)
        counted, came = mesh.invalid_count, mesh.expected_invalid_count
        if counted != came and (counted > came or not mesh.inbox):
            self._world.fail(mesh.name, f"counts {counted} invalid messages, and {came} came")
        match role:
            case StoreRole():
                self._store(mesh, role)
            case ConsumerRole():
                self._kept(mesh, role.scheduler.budget, list(role.partitions.values()))
                for tp, (position, head) in role.positions().items():
                    self.never_backwards(mesh.name, (mesh.number, "head", tp), head)
                    if position > head:
                        self._world.fail(mesh.name, f"is at {position} beyond its head {head}")
                self.most(mesh, "missing", len(role.scheduler), len(role.partitions))
            case ReaderRole():
                self._kept(mesh, role.reorder_budget, role.reads)
            case ProducerRole():
                self.never_backwards(mesh.name, (mesh.number, "durable"), role.acknowledged)
                self.most(mesh, "durable", role.acknowledged, role.next_offset)
                acking = role.acknowledgements.by_store
                self.most(mesh, "acking stores", len(acking), MAX_ACKING_STORES)
                kept = sum(len(batch.values) for batch in role.retained)
                partly = len(role.retained[0].values) if role.retained else 0
                self.most(mesh, "kept records", kept, role.unacknowledged + partly)

    def most(self, mesh: SimulatedMesh, what: str, value: int, limit: int) -> None:
        if value > limit:
            self._world.fail(mesh.name, f"{what}: {value}, at most {limit} are allowed")

    def _store(self, mesh: SimulatedMesh, role: StoreRole) -> None:
        partitions = role.partitions
        self._kept(mesh, role.scheduler.budget, [*partitions.values()])
        self.most(mesh, "requests", len(role.requests), 2 * store_requests.MAX_PENDING_REQUESTS + 1)
        for tp, partition in partitions.items():
            if partition.pending_replacements:  # another history has won
                for what in ("durable", "head"):
                    self._seen.pop((mesh.number, what, tp), None)
                continue
            self.never_backwards(mesh.name, (mesh.number, "durable", tp), partition.durable)
            self.never_backwards(mesh.name, (mesh.number, "head", tp), partition.head)
            on_disk = self.disks[role.address].end(tp)
            self.most(mesh, f"durable {tp}", partition.durable, on_disk)
        # It stops receiving in time: one read of the queue may exceed the limit, with
        # records that waited behind a gap that it filled, and no second one.
        ahead, before = (mesh.number, "ahead"), (mesh.number, "pending")
        limit = max(store_loop.MAX_PENDING_BYTES, self._seen.get(before, 0))
        limit += self._seen.get(ahead, 0) + mesh.taken_bytes + mesh.put_bytes
        # Commits, promises and the like count one byte each.
        limit += sum(not isinstance(each, RecordBatch | Stage) for each in role.pending)
        self.most(mesh, "pending bytes", role.pending_bytes, limit)
        if self._seen.get(before, 0) >= store_loop.MAX_PENDING_BYTES:
            self.most(mesh, "bytes received while its disk is behind", mesh.taken_bytes, 0)
        self._seen[ahead] = role.scheduler.budget.size_bytes + role.scheduler.budget.records
        self._seen[before] = role.pending_bytes

    def _kept(
        self, mesh: SimulatedMesh, budget: partition_fetcher.ReorderBudget, fetchers: list[Any]
    ) -> None:
        kept = [batch for fetcher in fetchers for batch in fetcher.kept]
        records = sum(len(batch.values) for batch in kept)
        if budget.records != records:
            self._world.fail(mesh.name, f"counts {budget.records} records ahead, holds {records}")
        self.most(mesh, "records ahead", records, partition_fetcher.MAX_REORDER_RECORDS)
        size_bytes = sum(batch.values.size_bytes for batch in kept)
        self.most(mesh, "bytes ahead", size_bytes, partition_fetcher.MAX_REORDER_BYTES)


def _name(batch: RecordBatch) -> str:
    return f"{batch.tp.topic} {batch.tp.partition[:4]} [{batch.offset}, {batch.end})"


def told_of(message: m.Message | RecordBatch) -> list[tuple[TopicPartition, int]]:
    """Return the partitions in a message, each with its next offset."""
    match message:
        case RecordBatch():
            return [(message.tp, message.offset)]
        case m.Head() | m.DirectHead():
            return [(message.tp, message.end)]
        case m.HeadsReply():
            return [(info.tp, info.end) for info in message.entries]
    return []

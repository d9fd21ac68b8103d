"""Produce and InitProducerId, and the rounds in which batches are written to the store.

Requests are pipelined: a connection's next request starts before the previous one is on disk. The
batches of a partition pass through its ``PartitionWriter`` in order of arrival. A response is sent
when all of its partitions are on disk, with ``acks=all`` at all reachable stores and a majority.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, Final, NamedTuple

from dafka_core.errors import ProtocolError
from dafka_core.model.names import INTERNAL, printable
from dafka_core.model.records import TopicPartition
from dafka_kafka import schemas
from dafka_kafka.api import (
    WHY,
    Answer,
    Api,
    Client,
    Feature,
    Response,
    on_cluster,
    on_topics,
    serves,
)
from dafka_kafka.configs import MAX_BATCH
from dafka_kafka.errors import KafkaError, RefusedError, invalid_record, too_large
from dafka_kafka.gateway_node import MIN_STORES, GatewayNode
from dafka_kafka.partition_writer import (
    BATCH_VERSION,
    NO_TRANSACTIONS,
    PartitionWriter,
    ProducedRecords,
    Put,
    Written,
    failed,
    produced_together,
)
from dafka_kafka.producer_states import NOTES, ProducerStates
from dafka_kafka.records.formats import is_uncompressed, largest_batch
from dafka_kafka.registry_table import Lead
from dafka_kafka.users import Operation

_log: Final = logging.getLogger("dafka.kafka")

# -- rounds ----------------------------------------------------------------------------------------

# A small batch costs as much to decode, hand over and write as one several times its size. So all
# waiting batches, of any partition, form one round; while it is on its way to the disk, the next
# one collects.

ROUND_BYTES: Final = 2 << 20
"""Bytes of requests in a round: small requests share a sync, large ones should not make others wait
for a thread."""

WRITE_BYTES: Final = 8 << 20
"""Values decoded in a round, unless a single batch has more: compressed batches can grow many
times."""

TINY_BYTES: Final = 4 << 10
"""Bytes of a round that the loop decodes itself, if none of it is compressed: a few records."""

ROUND_PUTS: Final = 1_000  # batches in a round; each has one or more notes

PATIENCE: Final = 0.5
"""Producers have a few requests in flight, and send the next ones when those are answered. So a
round waits until it has the previous round's number of batches, for at most this fraction of that
round's duration: then twice the number share a sync, and no batch waits longer than without."""

MAX_PATIENCE_S: Final = 0.005  # longest such wait after a round has ended, for slow disks

MAX_WAIT_S: Final = 0.05
"""Longest time a round waits for the previous one, which may be large or have a slow disk."""

MAX_THREADS: Final = 2
"""Rounds decoded at a time, of different partitions. The second one is for large rounds only; small
ones would compete for the CPU."""

MANY_WRITERS: Final = 100
"""Number of writers at which those of deleted topics are dropped; then twice the number left."""

TRY_AGAIN_S: Final = 0.05  # pause before lost records are written for the third time, and later
SETTLE_S: Final = 0.005  # polling interval for writes in flight

_Round = list[tuple[PartitionWriter, list[Put]]]


class ProduceRounds:
    """Writes batches in rounds, each partition's in order; runs in the gateway's loop.

    Args:
        states: the idempotent producers of all partitions.
    """

    def __init__(self, node: GatewayNode, states: ProducerStates) -> None:
        self._node = node
        self._states = states
        self._writers: dict[TopicPartition, PartitionWriter] = {}
        self._most_writers = MANY_WRITERS
        self._waiting: dict[PartitionWriter, None] = {}  # those that are ready, in order of arrival
        self._threads = 0
        self._under_way = 0  # rounds
        self._is_called = False
        self._count = 0  # puts in the last round
        self._expected = 0  # puts waiting once the producers of the last round have sent again
        self._began = self._ended = 0.0
        self._until: float | None = 0.0  # start of the next round; None while nothing waits
        self._timer: asyncio.TimerHandle | None = None

    def put(self, put: Put) -> None:
        """Queue a batch behind the others of its partition."""
        writer = self._writers.get(put.tp)
        if writer is None:
            if len(self._writers) >= self._most_writers:
                self._forget_deleted()
            owner = put.partition.gateway
            writer = PartitionWriter(self._node, put.tp, owner, self._states)
            self._writers[put.tp] = writer
        writer.put(put)
        if not writer.again:
            self._check(writer)

    def _forget_deleted(self) -> None:
        number = self._node.registry.table.number
        self._writers = {
            tp: each
            for tp, each in self._writers.items()
            if each.waiting or each.under_way or each.again or number(tp) is not None
        }
        self._most_writers = max(MANY_WRITERS, 2 * len(self._writers))

    async def settle(self, topic: str) -> None:
        """Wait until no write of a deleted topic is in flight.

        Its queued batches are not written: the topic's numbers are gone.
        """
        while any(each.under_way for tp, each in self._writers.items() if tp.topic == topic):
            await asyncio.sleep(SETTLE_S)

    def _check(self, *writers: PartitionWriter) -> None:
        """Decide later on the next round: more puts may come in this loop iteration."""
        self._waiting.update((each, None) for each in writers if each.is_ready)
        for each in writers:
            if each.again and not (each.is_taken or each.under_way):
                is_again = any(put.tries > 1 for put in each.again)
                asyncio.get_running_loop().call_later(TRY_AGAIN_S * is_again, self._restart, each)
        if self._waiting and not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _restart(self, writer: PartitionWriter) -> None:
        writer.restart()
        self._check(writer)

    def _begin(self) -> None:
        self._is_called = False
        loop = asyncio.get_running_loop()
        if self._threads >= MAX_THREADS or not self._waiting:
            return
        if self._until is None:
            latest = self._ended + MAX_PATIENCE_S
            self._until = min(loop.time() + (self._ended - self._began) * PATIENCE, latest)
        is_enough = not self._under_way and self._waiting_count >= self._expected
        if is_enough or loop.time() >= self._until:
            self._start(self._take([*self._waiting]))
        elif self._under_way:
            self._start(self._take([each for each in self._waiting if each.has_much]))
        if self._waiting and (self._timer is None or self._timer.when() > self._until):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self._until, self._on_timer)

    @property
    def _waiting_count(self) -> int:
        return sum(len(writer.waiting) for writer in self._waiting)

    def _on_timer(self) -> None:
        self._timer = None
        self._begin()

    def _take(self, writers: Sequence[PartitionWriter]) -> _Round:
        taken: _Round = []
        puts, size_bytes = ROUND_PUTS, ROUND_BYTES
        for writer in writers:
            if puts <= 0 or size_bytes <= 0:
                break
            del self._waiting[writer]
            if group := writer.take(puts, size_bytes):
                taken.append((writer, group))
                puts -= len(group)
                size_bytes -= sum(len(put.octets) for put in group)
        return taken

    def _start(self, taken: _Round) -> None:
        if not taken:
            return
        loop = asyncio.get_running_loop()
        self._threads += 1
        self._under_way += 1
        self._count, self._began = sum(len(group) for _, group in taken), loop.time()
        self._until = self._began + MAX_WAIT_S
        if self._is_tiny(taken):
            self._on_given(taken, self._write(taken, loop))
            return
        given = loop.run_in_executor(self._node.threads, self._write, taken, loop)
        given.add_done_callback(
            lambda done: self._on_given(taken, 0 if done.cancelled() else done.result())
        )

    def _is_tiny(self, taken: _Round) -> bool:
        """Return True if decoding a round takes less time than a thread takes to start."""
        octets = [put.octets for _, group in taken for put in group]
        is_small = sum(map(len, octets)) <= TINY_BYTES and all(map(is_uncompressed, octets))
        return is_small and self._node.store.append_queue.is_free

    def _on_given(self, taken: _Round, count: int) -> None:
        """Note that ``count`` puts are on their way to the disk; requeue the others."""
        self._threads -= 1
        for writer, group in taken:
            writer.give_back(group, min(count, len(group)))
            count = max(0, count - len(group))
        self._check(*(writer for writer, _ in taken))

    def _on_written(self, groups: _Round, futures: Sequence[Future[int]]) -> None:
        unknown = [future.exception() for future in futures[len(groups) :]]  # the journal's
        for (writer, group), future in zip(groups, futures, strict=False):
            writer.on_written(group, next(filter(None, (future.exception(), *unknown)), None))
        self._under_way -= 1
        if not self._under_way:
            self._ended, self._until = asyncio.get_running_loop().time(), None
            self._expected = self._count + self._waiting_count
        self._check(*(writer for writer, _ in groups))

    # -- in a thread -----------------------------------------------------------------------------

    def _write(self, taken: _Round, loop: asyncio.AbstractEventLoop) -> int:
        """Decode puts, at least one, and hand them to the store; return their number."""
        decoded = left = self._decode([put for _, group in taken for put in group])
        groups: _Round = []
        for writer, group in taken:
            if left > 0:
                groups.append((writer, group[:left]))
            left -= len(group)
        try:
            entries = self._node.leaders.entries()
            additions = [writer.addition(group, entries) for writer, group in groups]
            if entries is not None:  # behind the records that it describes
                additions.append(self._node.leaders.addition(entries))
            futures = self._node.store.append_queue.put_next(additions)
        except Exception as error:  # noqa: BLE001 -- the requests fail with it
            futures = [failed(error) for _ in groups]
        ended = count(1)

        def on_each(each: Future[int]) -> None:
            # One wakeup of the loop for all groups: it is expensive.
            if next(ended) == len(futures):
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._on_written, groups, futures)

        for each in futures:
            each.add_done_callback(on_each)
        return decoded

    def _decode(self, puts: Sequence[Put]) -> int:
        limit_bytes = self._node.store.append_queue.limit[0]
        requests = [(put.octets, put.version) for put in puts]
        found = produced_together(requests, limit_bytes, WRITE_BYTES)
        for put, records in zip(puts, found, strict=False):
            if isinstance(records, ProducedRecords):
                put.records = records
            else:
                put.result = records
        return len(found)


# -- requests --------------------------------------------------------------------------------------

ALL: Final = -1  # ``acks``: all reachable stores

ROUTINE: Final = (
    KafkaError.NOT_LEADER_OR_FOLLOWER,
    KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)
"""Errors that need no log line: those of clients with old metadata, which retry, and those of
permissions, which have a line of their own."""

_WRITE: Final = on_topics(Operation.WRITE)

MAX_TIMEOUT_S: Final = 600.0  # upper bound for a client's timeout

ASK_AGAIN_S: Final = 10.0
"""A topic for which no partition could be created is refused with the same reason for this time:
clients retry, and each attempt would write to the registry."""

ELSEWHERE: Final = -1
"""Base offset of records that were written to another partition than the requested one."""


TOO_FEW: Final = RefusedError(KafkaError.REQUEST_TIMED_OUT, "too few stores have it in time")
MOVED: Final = RefusedError(KafkaError.NOT_LEADER_OR_FOLLOWER, "another gateway has become leader")


_Needs = tuple[int, Lead | None]
"""The number of stores that must confirm an outcome, and the leader that they must confirm."""


class _Part(NamedTuple):
    """One partition of a request, and its result; None if it has no records."""

    topic: str
    number: int
    put: Put | RefusedError | None

    @property
    def outcome(self) -> Written | RefusedError | None:
        if not isinstance(self.put, Put):
            return self.put
        if self.put.outcome.cancelled() or not self.put.outcome.done():
            return RefusedError(KafkaError.REQUEST_TIMED_OUT, "it is not on disk in time")
        return self.put.outcome.result()


class Produce(Feature):
    """Writes the records of Kafka's producers."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self._states = ProducerStates()
        self._rounds = ProduceRounds(node, self._states)
        self._replication = node.replication
        self._hosting: set[str] = set()  # topics to which partitions are being added
        self._not_hosted: dict[str, tuple[float, RefusedError]] = {}  # time and reason

    async def start(self) -> None:
        """Load the states of idempotent producers."""
        self._states.restore(await self._node.in_thread(self._node.store.log.notes, NOTES))

    async def settle(self, topic: str) -> None:
        """Wait until no write of a deleted topic is in flight."""
        await self._rounds.settle(topic)

    @serves(Api.PRODUCE, range(13))
    async def _produce(self, request: Any, client: Client) -> Response:
        timeout_s = MAX_TIMEOUT_S
        if request.acks == ALL:  # with other acks Kafka appends whatever the timeout
            timeout_s = min(max(request.timeout_ms, 0) / 1000, timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        # No await before everything is queued: the next request must come behind it.
        refusal, acks = _refusal(request), request.acks
        parts = [
            _Part(topic.name, part.index, refusal or self._begin(client, topic.name, part, acks))
            for topic in request.topic_data
            for part in topic.partition_data
        ]
        waiting = [each.put.outcome for each in parts if isinstance(each.put, Put)]
        if waiting:
            await self._wait(waiting, timeout_s, is_awaited=request.acks != 0)
        if request.acks == 0:
            failed = [each.outcome for each in parts if isinstance(each.outcome, RefusedError)]
            if failed:
                # As Kafka does: with acks=0 a closed connection is the client's only error
                # report.
                raise ProtocolError(f"a Produce request with acks=0 has failed: {failed[0].why}")
            return None
        outcomes = [each.outcome for each in parts]
        if request.acks == ALL:
            outcomes = await self._replicated(parts, outcomes, deadline)
        for part, outcome in zip(parts, outcomes, strict=True):
            if isinstance(outcome, RefusedError) and outcome.code not in ROUTINE:
                kind = f"records refused with {KafkaError(outcome.code).name}"
                why = f"topic {printable(part.topic)!r}: {outcome.why}"
                self._node.complaints.note(kind, client.host, why)
        answers = map(_answer, parts, outcomes)
        return encoded_answers(answers, client.version)

    async def _wait(
        self, waiting: Sequence[asyncio.Future[Any]], timeout_s: float, *, is_awaited: bool
    ) -> None:
        """Wait for outcomes; cancel late ones, and all if the client has disconnected.

        With acks=0 the client may have disconnected: its records are written all the same.
        """
        try:
            await asyncio.wait(waiting, timeout=timeout_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not is_awaited and task is not None:
                self.hold(task)
                await asyncio.wait(waiting, timeout=timeout_s)
            raise
        finally:
            for each in waiting:
                each.cancel()

    def _begin(self, client: Client, topic: str, part: Any, acks: int) -> Put | RefusedError | None:
        if error := client.refusal(_WRITE, topic):
            return RefusedError(error, WHY)
        version = client.version
        if not part.records:
            if version < BATCH_VERSION:
                return None
            return invalid_record("no record batch was sent")
        partition = self._node.registry.table.get(topic, part.index)
        if partition is None or topic.startswith(INTERNAL):
            error = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            if topic.startswith(INTERNAL):
                error = KafkaError.INVALID_TOPIC_EXCEPTION
            return RefusedError(error, f"partition {part.index} does not exist")
        try:
            term = self._node.leaders.term(partition.gateway)
        except RefusedError as refused:
            return refused
        lead = term.lead if term else None
        if refusal := self._refused_by_configs(topic, part.records, acks, lead):
            return refusal
        tp = self._node.registry.written(partition)
        if tp is None:
            return self._host(topic, partition.gateway)
        put = Put(partition, tp, memoryview(part.records), version)
        self._rounds.put(put)
        return put

    def _refused_by_configs(
        self, topic: str, records: bytes, acks: int, lead: Lead | None
    ) -> RefusedError | None:
        configs = self._node.registry.table.configs(topic)
        most = configs.get(MAX_BATCH)
        if most is not None and (size_bytes := largest_batch(records)) > most:
            why = f"a batch has {size_bytes} bytes; {MAX_BATCH} of {topic!r} is {most}"
            return too_large(why)
        if lead is None and acks != ALL:
            return None
        known, copies = self._node.store.known, self._node.copies(topic)
        here = {self._node.store.address, *known.endpoints}
        is_cut_off = lead is not None and len(here & set(lead.stores)) < lead.majority
        if is_cut_off or (acks == ALL and len(here) < copies):
            needed = max(copies, lead.majority if lead else 1)
            why = f"{needed} stores must have records of {topic!r} ({MIN_STORES}), and "
            if away := ", ".join(sorted(set(known.names) - known.endpoints.keys())):
                why += (
                    f"these are away, or have no Arrow Flight: {away}; start them, or if they are "
                    "gone for ever, say so by 'dafka store forget'"
                )
            else:  # others were forgotten
                why += f"this gateway knows {len(here)} in all: start more, or lower the config"
            return RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)
        return None

    def _host(self, topic: str, owner: str) -> RefusedError:
        """Host partitions of a topic that only Dafka producers have written; the client retries."""
        if not self._node.options.auto_create_topics:
            why = "it is a Dafka producer's, and this gateway hosts no other one of the topic"
            return RefusedError(KafkaError.POLICY_VIOLATION, why)
        tried = self._not_hosted.get(topic)
        if tried is not None and time.monotonic() < tried[0] + ASK_AGAIN_S:
            return tried[1]
        if topic not in self._hosting:
            self._hosting.add(topic)
            self.begin(self._extend(topic, owner))
        why = "it is a Dafka producer's, and one is made beside it to which clients write"
        return RefusedError(KafkaError.NOT_LEADER_OR_FOLLOWER, why)

    async def _extend(self, topic: str, owner: str) -> None:
        registry = self._node.registry
        count = len(registry.table.partitions(topic)) + self._node.options.num_partitions
        try:
            await registry.extend(topic, count, gateways=[owner])
            self._not_hosted.pop(topic, None)
        except RefusedError as refused:
            self._not_hosted[topic] = time.monotonic(), refused
            _log.warning("no partition of %r is made for Kafka clients: %s", topic, refused.why)
        finally:
            self._hosting.discard(topic)

    async def _replicated(
        self, parts: list[_Part], outcomes: list[Written | RefusedError | None], deadline: float
    ) -> list[Written | RefusedError | None]:
        """Replace outcomes by a timeout if the other stores do not confirm them in time.

        Stores confirm records that they have on disk; a majority confirms that a leader, which
        wrote them or refused them by their sequence, has no successor.
        """
        needs = [self._needs(part, outcome) for part, outcome in zip(parts, outcomes, strict=True)]
        journal = self._node.leaders.journal
        pairs = zip(needs, outcomes, strict=True)
        if any(needed and isinstance(outcome, RefusedError) for needed, outcome in pairs):
            # Earlier reports of stores, such as those before a pause, do not confirm a refusal.
            await self._node.in_thread(journal.append)
        ends: dict[_Needs, dict[TopicPartition, int]] = {}
        for part, outcome, needed in zip(parts, outcomes, needs, strict=True):
            if needed is None:
                continue
            wanted = ends.setdefault(needed, {})
            if isinstance(part.put, Put) and isinstance(outcome, Written):
                wanted[part.put.tp] = max(wanted.get(part.put.tp, 0), outcome.end)
            if needed[1] is not None:
                wanted[journal.tp] = journal.end
        late: dict[_Needs, RefusedError] = {}
        for each, wanted in ends.items():
            left_s = deadline - asyncio.get_running_loop().time()
            if not await self._replication.wait(wanted, left_s, *each):
                late[each] = TOO_FEW if self._replication.is_current(each[1]) else MOVED
        return [
            outcome if needed is None else late.get(needed, outcome)
            for needed, outcome in zip(needs, outcomes, strict=True)
        ]

    def _needs(self, part: _Part, outcome: Written | RefusedError | None) -> _Needs | None:
        """Return how many stores must confirm an outcome, and its leader; None if none must."""
        if isinstance(outcome, Written):
            copies, lead = self._node.copies(part.topic), outcome.lead
            return max(copies, lead.majority) if lead else copies, lead
        lead = part.put.refused_by if isinstance(part.put, Put) else None
        return (lead.majority, lead) if lead else None

    @serves(Api.INIT_PRODUCER_ID, range(6), on_cluster(Operation.IDEMPOTENT_WRITE))
    async def _init_producer_id(self, request: Any, client: Client) -> Answer:
        """Return a producer id; ids are random, so that gateways need not agree."""
        if request.transactional_id is not None:
            error = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return {"error_code": error, "producer_epoch": -1}
        return {"producer_id": secrets.randbits(63)}


def _refusal(request: Any) -> RefusedError | None:
    """Return the refusal for the whole request, or None."""
    if request.acks not in (ALL, 0, 1):
        why = f"acks are -1 (all), 0 or 1, not {request.acks}"
        return RefusedError(KafkaError.INVALID_REQUIRED_ACKS, why)
    if request.transactional_id is not None:
        return RefusedError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    return None


def _answer(part: _Part, outcome: Written | RefusedError | None) -> PartitionAnswer:
    if isinstance(outcome, RefusedError):
        return PartitionAnswer(part.topic, part.number, outcome.code, ELSEWHERE, outcome.why)
    offset = log_start = ELSEWHERE
    is_there = isinstance(part.put, Put) and part.put.tp == part.put.partition.tp
    if is_there and outcome is not None:
        offset, log_start = outcome.offset, outcome.log_start
    return PartitionAnswer(part.topic, part.number, 0, offset, None, log_start)


# -- encoded responses -----------------------------------------------------------------------------

_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_FIRST_FLEXIBLE: Final = 9

_ANSWER: Final = struct.Struct(">ihqqq")
_ANSWER_BYTES: Final = (14, 14, 22, 22, 22, 30, 30, 30, 30)
"""The layout of a partition's response by version up to 8, which later ones share: it has two,
three or all of the last three fields."""

_FIRST_WITH_THROTTLING: Final = 1
_FIRST_WITH_REASONS: Final = 8


class PartitionAnswer(NamedTuple):
    """The result for one partition of a Produce request: its offsets, or an error."""

    topic: str
    number: int
    error: int
    base_offset: int
    why: str | None = None
    log_start: int = -1


def encoded_answers(answers: Iterable[PartitionAnswer], version: int) -> bytes:
    """Encode the body of a Produce response."""
    flexible = version >= _FIRST_FLEXIBLE
    size, tags = (_compact_size, b"\0") if flexible else (_COUNT.pack, b"")
    topics: dict[str, list[PartitionAnswer]] = {}
    for each in answers:
        topics.setdefault(each.topic, []).append(each)
    pieces = [size(len(topics))]
    for topic, parts in topics.items():
        pieces += _text(topic, flexible), size(len(parts))
        for each in parts:
            append_time = -1
            offsets = each.base_offset, append_time, each.log_start
            fields = _ANSWER.pack(each.number, each.error, *offsets)
            pieces.append(fields[: _ANSWER_BYTES[min(version, _FIRST_WITH_REASONS)]])
            if version >= _FIRST_WITH_REASONS:
                pieces += size(0), _text(each.why, flexible), tags
        pieces.append(tags)
    if version >= _FIRST_WITH_THROTTLING:
        pieces += _COUNT.pack(0), tags
    return b"".join(pieces)


def _compact_size(size: int) -> bytes:
    return schemas.encoded_varint(size + 1)


def _text(text: str | None, flexible: bool) -> bytes:
    size = _compact_size if flexible else _LENGTH.pack
    octets = b"" if text is None else text.encode()
    return size(-1 if text is None else len(octets)) + octets

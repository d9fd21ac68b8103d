"""The writer of one partition: it validates batches, and writes each of them once, in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, repeat, starmap
from typing import Final, NamedTuple

import numpy as np

from dafka_core.config.node_options import StoreLimitError
from dafka_core.errors import DafkaError, InvalidRequestError, OffsetConflictError
from dafka_core.model.epochs import last_life
from dafka_core.model.log_entries import NotedBatch
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Longs, Values
from dafka_core.nodes.append_queue import Addition
from dafka_kafka.errors import KafkaError, RefusedError, invalid_record, too_large
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.leaders import Entry, Term, has_failed
from dafka_kafka.producer_states import (
    LAST_OFFSET,
    ProducerKey,
    ProducerStates,
    Sequenced,
    WrittenBatch,
    notes_of,
)
from dafka_kafka.records.compression import Codec
from dafka_kafka.records.formats import (
    MAGIC_V2,
    MAX_FEW,
    BatchHead,
    KafkaBatch,
    OpenedBatch,
    contents_of,
    decode_batches,
    decode_few,
    open_record_batch,
    times_of,
)
from dafka_kafka.records.record_columns import decode_together
from dafka_kafka.registry_table import Lead, NumberedPartition

_log: Final = logging.getLogger("dafka.kafka")

BATCH_VERSION: Final = 3
"""From this version of Produce on, clients send one record batch; before, a message set."""

ZSTD_VERSION: Final = 7  # from this version on, batches may be compressed with zstd (KIP-110)


SMALL_BYTES: Final = 64 << 10
"""Batches up to this size are decoded together; Java's producers send 16 KiB by default. Larger
ones gain little."""

CHUNK_BYTES: Final = 256 << 10  # bytes decoded together; more gains nothing, and takes much memory


class DecodedRecords(NamedTuple):
    """Records decoded together, with their contents in envelopes where needed."""

    contents: Values
    stamps_ms: Longs


class ProducedRecords(NamedTuple):
    """Records written together: row ranges of records that were decoded together.

    ``latest_ms`` is their greatest timestamp. With an idempotent producer's id they are
    ``sequenced``.
    """

    decoded: DecodedRecords
    start: int
    stop: int
    latest_ms: int
    producer_id: int = -1
    sequenced: Sequenced | None = None

    @property
    def record_count(self) -> int:
        """The number of records."""
        return self.stop - self.start


Columns = tuple[Values, Longs | None]  # the contents and times of records, as in ``RecordBatch``


def joined(parts: Sequence[ProducedRecords]) -> Columns:
    """Concatenate the contents and times of all parts.

    Adjacent parts of one decoded array are not copied.
    """
    runs = [parts[0]]
    for each in parts[1:]:
        last = runs[-1]
        if each.decoded is last.decoded and each.start == last.stop:
            runs[-1] = last._replace(stop=each.stop)
        else:
            runs.append(each)
    contents = [each.decoded.contents[each.start : each.stop] for each in runs]
    stamps_ms = [each.decoded.stamps_ms[each.start : each.stop] for each in runs]
    return Values.concat(contents), times_of(np.concatenate(stamps_ms))


def produced_together(
    requests: Sequence[tuple[memoryview, int]], limit_bytes: int, max_bytes: int
) -> list[ProducedRecords | RefusedError]:
    """Return the result or error of ``produced_records`` for the first requests, at least for one.

    Small batches, the usual kind, are decoded together; one by one takes far longer.

    Args:
        requests: bytes, and the API version of their request.
        max_bytes: stop once the decoded values are larger.
    """
    found: list[ProducedRecords | RefusedError | OpenedBatch] = []
    size_bytes = 0
    for octets, version in requests:
        small = _opened(octets, version)
        each = small or _alone(octets, version, limit_bytes)
        found.append(each)
        if small is not None:
            size_bytes += len(small.records)
        elif isinstance(each, ProducedRecords):
            size_bytes += each.decoded.contents.size_bytes
        if size_bytes >= max_bytes:
            break
    chunks = _chunks([each for each in found if isinstance(each, OpenedBatch)])
    decoded = (each for chunk in chunks for each in _together(chunk, limit_bytes))
    return [
        (next(decoded) if isinstance(each, OpenedBatch) else each) or _alone(*request, limit_bytes)
        for each, request in zip(found, requests, strict=False)
    ]


def _chunks(batches: Sequence[OpenedBatch]) -> Iterator[Sequence[OpenedBatch]]:
    first = size_bytes = 0
    for at, batch in enumerate(batches):
        size_bytes += len(batch.records)
        if size_bytes > CHUNK_BYTES and at > first:
            yield batches[first:at]
            first, size_bytes = at, len(batch.records)
    if batches:
        yield batches[first:]


def _alone(octets: memoryview, version: int, limit_bytes: int) -> ProducedRecords | RefusedError:
    try:
        return produced_records(octets, version, limit_bytes)
    except RefusedError as error:
        return error
    except Exception as error:  # noqa: BLE001 -- a defect concerns these records alone
        _log.exception("Kafka: records cannot be decoded")
        return RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, repr(error))


def _opened(octets: memoryview, version: int) -> OpenedBatch | None:
    """Return a batch that may be decoded together with others, else None."""
    if version < BATCH_VERSION or len(octets) > SMALL_BYTES:
        return None
    try:
        opened = open_record_batch(octets, SMALL_BYTES)
        _check(opened.head, version)
    except Exception:  # noqa: BLE001 -- ``produced_records`` reports what is wrong
        return None
    return opened


def _together(batches: Sequence[OpenedBatch], limit_bytes: int) -> Iterator[ProducedRecords | None]:
    """Return the records of each batch; None if any is invalid."""
    counts = [each.record_count for each in batches]
    few = None
    try:
        if sum(counts) <= MAX_FEW:
            few = _decoded_few(batches)
        if few is not None:
            contents, deltas = few
        else:
            columns = decode_together([each.records for each in batches], counts)
            contents = contents_of(columns.values, columns.keys, columns.headers)
            deltas = columns.deltas
    except Exception:  # noqa: BLE001 -- likewise, each of them
        return repeat(None, len(batches))
    if contents.largest_bytes > limit_bytes:
        return repeat(None, len(batches))
    stamps_ms = deltas + np.repeat([each.base_ms for each in batches], counts)
    decoded = DecodedRecords(contents, stamps_ms)
    bounds = [*accumulate(counts, initial=0)]
    latest = np.maximum.reduceat(stamps_ms, bounds[:-1]).tolist()
    heads = [each.head for each in batches]
    each = zip(heads, repeat(decoded), bounds[:-1], bounds[1:], latest, strict=False)
    return starmap(_produced, each)


def _decoded_few(batches: Sequence[OpenedBatch]) -> tuple[Values, Longs] | None:
    found = [decode_few(each.records, each.record_count) for each in batches]
    if None in found:
        return None
    contents = [value for each in found if each for value in each[0]]
    deltas = [delta for each in found if each for delta in each[1]]
    return Values.of(contents), np.array(deltas, np.int64)


def produced_records(octets: memoryview, version: int, limit_bytes: int) -> ProducedRecords:
    """Return the records of one partition of a Produce request.

    Args:
        limit_bytes: the largest content that stores accept.

    Raises:
        RefusedError: they are invalid, with the Kafka error.
    """
    batches = _batches(octets, version)
    contents = Values.concat([each.contents() for each in batches])
    if contents.largest_bytes > limit_bytes:
        why = (
            f"a record has {contents.largest_bytes} bytes with its key and headers; stores take "
            f"{limit_bytes} at most (option max_record_bytes)"
        )
        raise too_large(why)
    stamps_ms = np.concatenate([each.timestamps_ms for each in batches])
    decoded = DecodedRecords(contents, stamps_ms)
    return _produced(batches[0].head, decoded, 0, len(contents), int(stamps_ms.max()))


def _produced(
    head: BatchHead, decoded: DecodedRecords, start: int, stop: int, latest_ms: int
) -> ProducedRecords:
    if head.producer_id < 0:
        return ProducedRecords(decoded, start, stop, latest_ms)
    sequenced = Sequenced(head.producer_epoch, head.base_sequence, stop - start)
    return ProducedRecords(decoded, start, stop, latest_ms, head.producer_id, sequenced)


def _batches(octets: memoryview, version: int) -> list[KafkaBatch]:
    """Decode the batches of one partition: one record batch, or message sets in old versions."""
    is_new = version >= BATCH_VERSION
    found: list[KafkaBatch] = []
    for batch in decode_batches(octets):
        if (batch.head.magic == MAGIC_V2) is not is_new or (found and is_new):
            has = "one record batch for a partition" if is_new else "message sets"
            why = f"a Produce request of version {version} has {has}, and nothing else"
            raise invalid_record(why)
        _check(batch.head, version)
        found.append(batch)
    if not found:
        raise invalid_record("the batch has no records")
    return found


def _check(head: BatchHead, version: int) -> None:
    """Raise as ``produced_records`` does unless a client may send such a batch."""
    if head.codec == Codec.ZSTD and version < ZSTD_VERSION:
        why = f"Produce of version {version} does not know zstd"
        raise RefusedError(KafkaError.UNSUPPORTED_COMPRESSION_TYPE, why)
    if head.is_control:
        raise invalid_record("a client writes no control records")
    if head.is_transactional:
        raise RefusedError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    if head.is_append_time:
        why = "a client gives records their create time, not an append time"
        raise RefusedError(KafkaError.INVALID_TIMESTAMP, why)
    if head.producer_id >= 0 and min(head.producer_epoch, head.base_sequence) < 0:
        why = "a batch with a producer's id has an epoch and a sequence"
        raise invalid_record(why)


NO_TRANSACTIONS: Final = (
    "this gateway knows no transactions of Kafka: write without a transactional id; an idempotent "
    "producer writes each record once"
)


MUCH_BYTES: Final = 1 << 20
"""Bytes of waiting requests from which a round need not wait for others to share its sync."""

MAX_UNDER_WAY: Final = 8
"""Groups in flight under load: the disk has the next one when it has written one, and memory stays
bounded."""

MAX_TRIES: Final = 40
"""How often a batch is written again after its records were lost to another history."""


class Written(NamedTuple):
    """A batch that is synced to disk, with its offsets and the partition's first one.

    ``lead`` is the leader that has written it, if its partitions can move.
    """

    offset: int
    end: int
    log_start: int = 0
    lead: Lead | None = None


@dataclass(slots=True, eq=False)
class Put:
    """A batch to write, and the future of its request.

    ``octets`` are the bytes from a Produce request of ``version`` for the numbered ``partition``;
    they are written to ``tp``. ``result`` is the outcome if everything in flight reaches the disk.
    ``refused_by`` is the leader that has refused the batch by its sequence: it does not know what
    a successor has written.
    """

    partition: NumberedPartition
    tp: TopicPartition
    octets: memoryview
    version: int
    outcome: asyncio.Future[Written | RefusedError] = field(default_factory=asyncio.Future)
    records: ProducedRecords | None = None
    result: Written | RefusedError | None = None
    refused_by: Lead | None = None
    tries: int = 0

    def end(self, failure: BaseException | None) -> None:
        """Set the outcome, unless the request was cancelled."""
        if not self.outcome.done():
            failed = failure is not None and not isinstance(self.result, RefusedError)
            self.outcome.set_result(_refusal(failure) if failed or not self.result else self.result)


class PartitionWriter:
    """Writes one partition that this gateway's store hosts, under any numbers.

    ``ProduceRounds`` takes groups of waiting puts, in order of arrival, in the gateway's loop. The
    store's loop assigns offsets to a group, and decides which of its batches are written already.

    Args:
        owner: of the partition, which writes it unless it has another leader.
        states: the idempotent producers of all partitions.
    """

    def __init__(
        self, node: GatewayNode, tp: TopicPartition, owner: str, states: ProducerStates
    ) -> None:
        self.tp = tp
        self._owner = owner
        self.waiting: deque[Put] = deque()
        self.is_taken = False  # a group is being decoded
        self.under_way = 0  # groups that are taken and not on disk
        self.again: list[Put] = []
        """Puts with lost records; nothing is taken before they are queued again."""
        self._waiting_bytes = 0
        self._generation = 0  # of groups; the next one begins when none is under way
        self._node = node
        self._states = states
        # The following are used by the store's loop.
        self._placed = 0  # the generation of the last group
        self._chain: list[Future[int]] = []  # its groups that are in flight, or have failed
        self._losses = -1
        self._term: Term | None = None
        self._begin: int | None = None  # where the term's life begins, until it has
        # Partitions that idempotent producers have written, and those to reload from the log.
        self._used: set[NumberedPartition] = set()
        self._stale: set[NumberedPartition] = set()

    # -- in the gateway's loop -------------------------------------------------------------------

    def put(self, put: Put) -> None:
        """Queue a batch."""
        self.waiting.append(put)
        self._waiting_bytes += len(put.octets)

    @property
    def is_ready(self) -> bool:
        """True if a group can be taken."""
        is_free = not (self.is_taken or self.again) and self.under_way < MAX_UNDER_WAY
        return is_free and bool(self.waiting)

    @property
    def has_much(self) -> bool:
        """True if much waits."""
        return self._waiting_bytes >= MUCH_BYTES

    def take(self, max_puts: int, max_bytes: int) -> list[Put]:
        """Take the next puts that are not cancelled; ``give_back`` must follow.

        They exceed ``max_bytes`` by at most one put.
        """
        group: list[Put] = []
        size_bytes = 0
        while self.waiting and size_bytes < max_bytes and len(group) < max_puts:
            put = self.waiting.popleft()
            self._waiting_bytes -= len(put.octets)
            if not put.outcome.done():
                group.append(put)
                size_bytes += len(put.octets)
        self.is_taken = bool(group)
        self._generation += self.is_taken and not self.under_way
        self.under_way += self.is_taken
        return group

    def give_back(self, group: Sequence[Put], count: int) -> None:
        """Requeue all but the first ``count`` puts of the group that was taken."""
        self.is_taken = False
        self.under_way -= not count
        self._put_back(group[count:])

    def on_written(self, group: Sequence[Put], failure: BaseException | None) -> None:
        """Finish a group: without ``failure`` it is on disk."""
        self.under_way -= 1
        is_lost = isinstance(failure, OffsetConflictError | InvalidRequestError)
        for put in group:
            if is_lost and put.tries < MAX_TRIES and not isinstance(put.result, RefusedError):
                put.tries, put.result = put.tries + 1, None
                self.again.append(put)
            else:
                put.end(failure)

    def restart(self) -> None:
        """Queue lost puts again, before all others."""
        again, self.again = self.again, []
        self._put_back(again)

    def _put_back(self, puts: Sequence[Put]) -> None:
        self.waiting.extendleft(reversed(puts))
        self._waiting_bytes += sum(len(put.octets) for put in puts)

    # -- in a thread -----------------------------------------------------------------------------

    def addition(self, group: Sequence[Put], entries: list[Entry] | None) -> Addition:
        """Return what the store's loop appends for puts that are decoded, or have errors.

        ``entries`` receives the journal's record about them.
        """
        parts = [put.records for put in group if put.records is not None]
        columns = joined(parts) if parts else (Values(), None)
        place = partial(self._place, self._generation, group, len(parts), columns, entries)
        return Addition(self.tp, columns[0].size_bytes, place)

    # -- in the store's loop ---------------------------------------------------------------------

    def _place(
        self,
        generation: int,
        group: Sequence[Put],
        count: int,
        columns: Columns,
        entries: list[Entry] | None,
        start: int,
        losses: int,
        written: Future[int],
    ) -> RecordBatch | Future[int]:
        try:
            self._recover(generation, losses, start)
            if self._begin is not None:
                start = min(start, self._begin)  # other gateways may have written behind it
            parts, notes = self._new(group, start)
            if not parts:
                # Batches that are written already may still be in flight.
                return self._chain[-1] if self._chain else _done()
            contents, times = columns if len(parts) == count else joined(parts)
            epoch = None
            if (term := self._term) is not None:
                end = start + len(contents)
                _needed(entries).extend(term.entries(self.tp, end, notes, written))
                epoch = term.epoch(start)
            batch = NotedBatch(self.tp, start, contents, None, times, epoch, notes)
        except Exception as error:  # noqa: BLE001 -- the puts fail with it
            self._chain.append(failed(error))
            return self._chain[-1]
        self._begin = None
        self._chain.append(written)
        return batch

    def _recover(self, generation: int, losses: int, start: int) -> None:
        """Continue from the log after a failure or in a new term, with the next generation.

        The groups that were under way with the one that failed come after its batches.
        """
        is_first, self._placed = generation != self._placed, generation
        self._chain = [each for each in self._chain if has_failed(each) or not each.done()]
        term = self._node.leaders.term(self._owner)
        is_stale = term is not self._term or losses != self._losses
        if not (is_stale or any(map(has_failed, self._chain))):
            return
        if not is_first:
            raise OffsetConflictError(*self.tp, start, start)
        self._chain, self._losses = [], losses
        self._stale |= self._used
        if term is not self._term:
            self._term, self._stale, self._used = term, set(), set()
        last = last_life(self._node.store.log.lives(self.tp).history)
        self._begin = None if term is None or last == term.lead.life else term.start(self.tp)

    def _new(
        self, group: Sequence[Put], start: int
    ) -> tuple[list[ProducedRecords], dict[str, bytes | None]]:
        """Return the records that are not written yet, with their notes; set the puts' results."""
        if self._node.registry.table.number(self.tp) is None:
            why = f"topic {self.tp.topic!r} was deleted"
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, why)
        log = self._node.store.log
        earliest = held.earliest if (held := log.info(self.tp)) else 0
        now_ms, latest_ms = log.now_us() // 1000, log.latest_us() // 1000
        age_ms = 0 if log.clock.doubt() else now_ms  # producers expire by age
        notes: dict[str, bytes | None] = {}
        parts: list[ProducedRecords] = []
        lead = self._term.lead if self._term else None
        end = start
        for put in group:
            records = put.records
            if records is None:
                continue
            if records.latest_ms > latest_ms:
                ahead_s = (records.latest_ms - now_ms) // 1000
                why = f"a record is of a time {ahead_s} s ahead of the store's clock"
                put.result = RefusedError(KafkaError.INVALID_TIMESTAMP, why)
                continue
            if records.sequenced is not None:
                self._refresh(put.partition, start)
                name = self._node.registry.state_name(put.partition)
                key = ProducerKey(put.partition.topic, name, records.producer_id)
                verdict = self._states.verdict(key, records.sequenced, age_ms)
                if isinstance(verdict, WrittenBatch):
                    put.result = Written(verdict.offset, verdict.end, earliest, lead)
                    continue
                if verdict is not None:
                    put.result, put.refused_by = RefusedError(verdict, _why(verdict, records)), lead
                    continue
                notes |= self._states.append(key, records.sequenced, end, now_ms, age_ms)
            put.result = Written(end, end + records.record_count, earliest, lead)
            parts.append(records)
            end += records.record_count
        return parts, notes

    def _refresh(self, partition: NumberedPartition, end: int) -> None:
        """Reload a partition's producer states from the log if they may be stale."""
        is_new = self._term is not None and partition not in self._used
        self._used.add(partition)
        if is_new or partition in self._stale:
            self._stale.discard(partition)
            end = end if partition.hosted else LAST_OFFSET
            name = self._node.registry.state_name(partition)
            notes = self._node.store.log.notes(notes_of(partition.topic, name))
            self._states.reset(partition.topic, name, end, notes)


def _needed(entries: list[Entry] | None) -> list[Entry]:
    if entries is None:  # the term has begun since the round was taken
        raise RefusedError(KafkaError.NOT_LEADER_OR_FOLLOWER, "the leader has just changed")
    return entries


def _done() -> Future[int]:
    done: Future[int] = Future()
    done.set_result(0)
    return done


def failed(error: Exception) -> Future[int]:
    """Return a future that has failed."""
    made: Future[int] = Future()
    made.set_exception(error)
    return made


def _why(error: KafkaError, records: ProducedRecords) -> str:
    assert records.sequenced is not None
    epoch, first, _ = records.sequenced
    return (
        f"{error.name.lower().replace('_', ' ')}: sequence {first} of epoch {epoch}, "
        f"producer {records.producer_id}"
    )


def _refusal(error: BaseException | None) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, OffsetConflictError | InvalidRequestError):
        return RefusedError(KafkaError.NOT_LEADER_OR_FOLLOWER, str(error))
    if isinstance(error, StoreLimitError):
        return RefusedError(KafkaError.POLICY_VIOLATION, str(error))
    if isinstance(error, DafkaError):
        return RefusedError(KafkaError.KAFKA_STORAGE_ERROR, str(error))
    return RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, repr(error))

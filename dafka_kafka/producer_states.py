"""States of idempotent producers, so that a batch that is sent twice is written once.

Kafka's rules (``ProducerStateManager``, KIP-98, KIP-360): a producer has an id and an epoch, and
numbers its records in each partition. A batch continues where the last one ended, or begins at 0
with a newer epoch. A repetition of one of the last five batches, after a lost answer, is answered
with its offset. Any batch of an unknown producer is accepted.

The state of each producer and partition is a note in the store's log, written atomically with the
records (``log_entries.NotedBatch``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Self

from dafka_kafka.errors import KafkaError

LAST_SEQUENCE: Final = 2**31 - 1  # after it, sequences wrap to 0
LAST_OFFSET: Final = 2**63
KEPT_BATCHES: Final = 5  # Java's producers have at most this many batches in flight

EXPIRES_MS: Final = 86_400_000
"""Expiry of an inactive producer; Kafka's ``producer.id.expiration.ms``."""

MAX_STATES: Final = 100_000
"""Producers of all partitions at one gateway, about 60 MB. Beyond it the least recently active one
is forgotten."""

FORGOTTEN_AT_ONCE: Final = 4  # producers forgotten with each batch, which adds at most one
NOTES: Final = "kafka producer/"  # prefix of the notes' names

_HEAD: Final = struct.Struct(">BhqB")
_BATCH: Final = struct.Struct(">iiq")
_FORMAT: Final = 1


class ProducerKey(NamedTuple):
    """A producer of one numbered partition.

    ``partition`` is unique in the topic, also among deleted topics of the same name.
    """

    topic: str
    partition: str
    producer_id: int

    @property
    def note(self) -> str:
        """The name of its note."""
        return f"{notes_of(self.topic, self.partition)}{self.producer_id:x}"

    @classmethod
    def parse(cls, note: str) -> Self:
        """Parse a note's name; raise ValueError if it isn't one of a producer."""
        partition, _, rest = note.removeprefix(NOTES).partition("/")
        topic, _, producer_id = rest.rpartition("\0")
        return cls(topic, partition, int(producer_id, 16))


def notes_of(topic: str, partition: str) -> str:
    """Return the prefix of the names of all notes of a numbered partition."""
    return f"{NOTES}{partition}/{topic}\0"


class Sequenced(NamedTuple):
    """A batch's position in its producer's sequence: the number of its first record."""

    epoch: int
    first: int
    record_count: int

    @property
    def last(self) -> int:
        """The number of its last record."""
        return (self.first + self.record_count - 1) & LAST_SEQUENCE


class WrittenBatch(NamedTuple):
    """A written batch: the numbers of its first and last record, and its first offset."""

    first: int
    last: int
    offset: int

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.offset + ((self.last - self.first) & LAST_SEQUENCE) + 1


class ProducerState(NamedTuple):
    """A producer of one partition: its epoch, its last batches, and the time of the last one."""

    epoch: int
    batches: tuple[WrittenBatch, ...]
    used_ms: int

    def packed(self) -> bytes:
        """Encode the note."""
        head = _HEAD.pack(_FORMAT, self.epoch, self.used_ms, len(self.batches))
        return head + b"".join(_BATCH.pack(*each) for each in self.batches)

    @classmethod
    def unpack(cls, octets: bytes) -> Self:
        """Decode a note.

        Raises:
            ValueError: it is invalid, or of a later version.
        """
        if len(octets) < _HEAD.size:
            raise ValueError("a note of a producer that is too short")
        form, epoch, used_ms, count = _HEAD.unpack_from(octets)
        if form != _FORMAT or not count or len(octets) != _HEAD.size + count * _BATCH.size:
            raise ValueError(f"a note of a producer in a form that is not known, {form}")
        batches = _BATCH.iter_unpack(octets[_HEAD.size :])
        return cls(epoch, tuple(WrittenBatch._make(each) for each in batches), used_ms)

    def with_batch(self, batch: Sequenced, offset: int, now_ms: int) -> ProducerState:
        """Return the state after the batch is written at an offset."""
        kept = self.batches[1 - KEPT_BATCHES :] if batch.epoch == self.epoch else ()
        written = WrittenBatch(batch.first, batch.last, offset)
        return ProducerState(batch.epoch, (*kept, written), now_ms)

    def until(self, end: int) -> ProducerState | None:
        """Return the state without batches beyond an offset; None without any."""
        batches = tuple(each for each in self.batches if each.end <= end)
        return self._replace(batches=batches) if batches else None

    def verdict(self, batch: Sequenced) -> WrittenBatch | KafkaError | None:
        """The decision on a batch; see ``ProducerStates.verdict``."""
        if batch.epoch < self.epoch:
            return KafkaError.INVALID_PRODUCER_EPOCH
        expected = 0
        if batch.epoch == self.epoch:
            for each in self.batches:
                if (each.first, each.last) == (batch.first, batch.last):
                    return each
            expected = (self.batches[-1].last + 1) & LAST_SEQUENCE
        return None if batch.first == expected else KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER


class ProducerStates:
    """The idempotent producers of all partitions that this gateway writes.

    Ordered by last use, oldest first; those that were read again come last. The store's loop uses
    it, so nothing visits all of them.
    """

    def __init__(self, max_states: int = MAX_STATES) -> None:
        self._max_states = max_states
        self._states: dict[ProducerKey, ProducerState] = {}
        self._keys: dict[tuple[str, str], set[ProducerKey]] = {}  # by partition
        self._lost_ms = -EXPIRES_MS  # last use of the newest producer that was forgotten early

    def __len__(self) -> int:
        return len(self._states)

    def restore(self, notes: Mapping[str, bytes], end: int = LAST_OFFSET) -> None:
        """Add states from the log, without batches beyond an offset.

        An unreadable note is of a later version, and is left alone.
        """
        for key, state in sorted(_parsed(notes), key=lambda item: item[1].used_ms):
            if (known := state.until(end)) is not None:
                self._keep(key, known)

    def reset(self, topic: str, partition: str, end: int, notes: Mapping[str, bytes]) -> None:
        """Replace a partition's states by those of the log.

        Batches beyond ``end``, the partition's end, were lost to another history; those before them
        exist, and may be repeated.
        """
        for key in self._keys.pop((topic, partition), ()):
            del self._states[key]
        self.restore(notes, end)

    def verdict(
        self, key: ProducerKey, batch: Sequenced, now_ms: int
    ) -> WrittenBatch | KafkaError | None:
        """Decide on a batch: None to write it, its offset if it is written already, or an error.

        A producer that was forgotten early may repeat what it has written: after that, an unknown
        producer is accepted only with a first batch, and clients get a new id.
        """
        state = self._states.get(key)
        if state is not None and now_ms - state.used_ms < EXPIRES_MS:
            return state.verdict(batch)
        if batch.first and now_ms - self._lost_ms < EXPIRES_MS:
            return KafkaError.UNKNOWN_PRODUCER_ID
        return None

    def append(
        self, key: ProducerKey, batch: Sequenced, offset: int, now_ms: int, age_ms: int = 0
    ) -> dict[str, bytes | None]:
        """Record a batch written at an offset; return the notes to write with it.

        Producers not used for a day before ``age_ms`` are forgotten.
        """
        state = self._states.pop(key, None)
        if state is None or age_ms - state.used_ms >= EXPIRES_MS:
            state = ProducerState(batch.epoch, (), now_ms)
        state = state.with_batch(batch, offset, now_ms)
        self._keep(key, state)
        return {**dict.fromkeys(self._expired(age_ms)), key.note: state.packed()}

    def _expired(self, age_ms: int) -> Iterator[str]:
        """Return the notes of some forgotten producers, a few per batch."""
        for _ in range(min(FORGOTTEN_AT_ONCE, len(self._states))):
            key, state = next(iter(self._states.items()))
            is_old = age_ms - state.used_ms >= EXPIRES_MS
            if not is_old and len(self._states) <= self._max_states:
                return
            if not is_old:
                self._lost_ms = max(self._lost_ms, state.used_ms)
            del self._states[key]
            self._keys[key[:2]].discard(key)
            yield key.note

    def _keep(self, key: ProducerKey, state: ProducerState) -> None:
        self._states[key] = state
        self._keys.setdefault(key[:2], set()).add(key)


def _parsed(notes: Mapping[str, bytes]) -> Iterator[tuple[ProducerKey, ProducerState]]:
    for name, octets in notes.items():
        try:
            yield ProducerKey.parse(name), ProducerState.unpack(octets)
        except ValueError:
            continue

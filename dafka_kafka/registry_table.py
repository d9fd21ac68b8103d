"""The table of partition numbers, read from the registry's records.

Kafka numbers a topic's partitions 0, 1, 2, ...; Dafka names them by producers' addresses.  The list
of which is which only grows, but for topics that clients delete.  Its records are JSON objects, in
the one partition of internal topic ``__dafka.kafka.partitions``::

    {"v": 1, "turn": "8C1F..."}
    {"v": 1, "topic": "flights", "first": 0, "partitions": [["EB0A...", "77D2...", true], ...]}
    {"v": 1, "topic": "flights", "deleted": [["EB0A...", 5000], ...]}
    {"v": 1, "agreed": 2}

``partitions`` get the numbers from ``first`` on: each has its address, the address of the gateway
that takes what Kafka clients write to it, and whether that gateway hosts it (otherwise it is a
Dafka producer's).  ``deleted`` takes all numbers of a topic away: these partitions get new ones
only when they have records from these offsets on, and those that a gateway hosted never do.
Whoever writes begins its ``turn`` with a random text.  ``agreed`` says that a majority of the
stores has all records before that offset: these are never lost, and they alone count.  Anybody may
write there, so a record that is none, or does not fit what stands before it, is passed over;
everybody passes over the same ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar, Final, NamedTuple

from dafka_core.errors import InvalidRequestError, ProtocolError
from dafka_core.model.epochs import MAX_END, NO_LIFE, EpochId, History, divergence, last_life
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.name_limits import check_address, check_node_address, check_topic
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import TopicPartition
from dafka_core.security.permissions import SHARED_BY_STORES
from dafka_core.storage import Log

MAX_NUMBERS: Final = 200_000
"""Of all topics together: so many take some 60 MB, and seconds to tell a client.  Kafka's own
clusters had as many before KRaft."""

MAX_RECORD_BYTES: Final = 1 << 20
"""A longer record is none."""

NUMBERS_PER_RECORD: Final = 1_000
"""Some 100 KB: ``number_records`` makes several records of more."""


class NumbersRecord(JsonMessage, frozen=True, omit_defaults=True):
    """One record; see the module's documentation."""

    what: ClassVar[str] = "record of partitions' numbers"

    turn: str = ""
    agreed: Natural = 0
    topic: str = ""
    first: Natural = 0
    partitions: tuple[tuple[str, str, bool], ...] = ()
    deleted: tuple[tuple[str, Natural], ...] = ()


class NumberedPartition(NamedTuple):
    """A partition under its number: ``address`` is its name in Dafka.

    ``gateway`` is the address of the gateway that takes what Kafka clients write to it.  That one
    hosts it, or else it is a Dafka producer's, and only read by Kafka clients.
    """

    topic: str
    number: int
    address: str
    gateway: str
    hosted: bool = True

    @property
    def tp(self) -> TopicPartition:
        """The partition as Dafka names it."""
        return TopicPartition(self.topic, self.address)


def is_numbered(topic: str) -> bool:
    """Whether a topic's partitions get numbers: Kafka clients can name it, and it is not internal.

    Kafka's names are UTF-8; others than those that Kafka itself allows are fine with its clients.
    """
    return (
        topic.isprintable()  # which surrogates are not
        and not topic.startswith(INTERNAL)
        and _is_valid(check_topic, topic)
    )


def number_records(topic: str, added: Iterable[NumberedPartition]) -> list[NumbersRecord]:
    """The records that give a topic's next partitions their numbers."""
    rows = [(each.number, (each.address, each.gateway, each.hosted)) for each in added]
    parts = (rows[at : at + NUMBERS_PER_RECORD] for at in range(0, len(rows), NUMBERS_PER_RECORD))
    return [
        NumbersRecord(topic=topic, first=part[0][0], partitions=tuple(row for _, row in part))
        for part in parts
    ]


def deletion_records(topic: str, ends: Mapping[str, int]) -> list[NumbersRecord]:
    """The records that take a topic's numbers away, by where its partitions end."""
    rows = [*ends.items()]
    parts = (rows[at : at + NUMBERS_PER_RECORD] for at in range(0, len(rows), NUMBERS_PER_RECORD))
    return [NumbersRecord(topic=topic, deleted=tuple(part)) for part in parts]


class NumberTable:
    """What the list says, up to where it has been agreed on.

    Attributes:
        applied: the offset of the next record that has not been applied.
        skipped: how many records, and partitions in them, did not fit and were passed over.
        cluster_id: what was drawn when the list began; None before.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.skipped = 0
        self.cluster_id: str | None = None
        # A list only grows, so who reads it in another thread sees a part of it at worst.
        self._topics: dict[str, list[NumberedPartition]] = {}
        self._numbers: dict[TopicPartition, int] = {}
        self._ended: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def topics(self) -> Collection[str]:
        """The topics that have numbers."""
        return tuple(self._topics)

    def partitions(self, topic: str) -> tuple[NumberedPartition, ...]:
        """A topic's partitions in the order of their numbers."""
        return tuple(self._topics.get(topic, ()))

    def get(self, topic: str, number: int) -> NumberedPartition | None:
        """The partition of this number."""
        known = self._topics.get(topic, ())
        return known[number] if 0 <= number < len(known) else None

    def number(self, tp: TopicPartition) -> int | None:
        """The number of a Dafka partition."""
        return self._numbers.get(tp)

    def ended(self, tp: TopicPartition) -> int:
        """Up to where a partition was of a topic that was deleted; 0 where it never was.

        Of one that a gateway hosted all is, for ever: nobody writes to it but for that topic.
        """
        return self._ended.get(tp, 0)

    def hosted_once(self, topic: str) -> set[TopicPartition]:
        """What gateways hosted of a topic until it was deleted."""
        ended = self._ended.items()
        return {tp for tp, end in ended if tp.topic == topic and end == MAX_END}

    def apply(self, record: NumbersRecord | None) -> None:
        """Takes the next record; None for one that is none."""
        self.applied += 1
        if record is None:
            self.skipped += 1
            return
        if self.cluster_id is None and record.turn:
            self.cluster_id = record.turn[:32]
        if record.deleted:
            known = self._topics.get(record.topic, ())
            ends = [(TopicPartition(record.topic, name), end) for name, end in record.deleted]
            ends += ((each.tp, MAX_END) for each in known if each.hosted)
            # First: who reads this meanwhile is not to take it for a new partition.
            self._ended.update((tp, max(end, self.ended(tp))) for tp, end in ends)
            for each in self._topics.pop(record.topic, ()):
                del self._numbers[each.tp]
        for number, row in enumerate(record.partitions, record.first):
            if not self._add(NumberedPartition(record.topic, number, *row)):
                self.skipped += 1

    def _add(self, new: NumberedPartition) -> bool:
        known = self._topics.get(new.topic, [])
        if len(known) != new.number or new.tp in self._numbers or len(self) >= MAX_NUMBERS:
            return False
        if not known and not is_numbered(new.topic):
            return False
        if not (
            _is_valid(check_address, new.address) and _is_valid(check_node_address, new.gateway)
        ):
            return False
        self._numbers[new.tp] = new.number
        known.append(new)
        self._topics.setdefault(new.topic, known)
        return True


def parsed(content: bytes) -> NumbersRecord | None:
    """The record; None where the octets are none."""
    if len(content) > MAX_RECORD_BYTES:
        return None
    try:
        return NumbersRecord.parse(content)
    except InvalidRequestError:
        return None


def agreed(record: NumbersRecord | None, offset: int) -> int:
    """Up to where the record at ``offset`` says that there is a majority; it knows of no later."""
    return record.agreed if record is not None and record.agreed <= offset else 0


def _is_valid(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except ProtocolError:
        return False
    return True


LIST: Final = TopicPartition(f"{INTERNAL}kafka.partitions", SHARED_BY_STORES)
"""The one partition with the list.  Its address says "dafka kafka list"."""


class NumberList:
    """Reads the list, as far as it has been agreed on.  Thread-safe.

    Attributes:
        table: what it says.
        open_since: when it was seen that somebody's turn had begun; None where it has ended.
    """

    def __init__(self, log: Log) -> None:
        self.table = NumberTable()
        self.open_since: float | None = None
        self._log = log
        self._lock = threading.Lock()
        self._scanned = self._agreed = 0
        self._history: History = ()
        self._promised = NO_LIFE

    def is_agreed_by(self, majority: int) -> bool:
        """Whether the last turn was acknowledged by so many stores, and no other has begun."""
        last = last_life(self._history)
        return last.acks == majority and self._promised[:2] <= last[:2]

    def is_of(self, life: EpochId) -> bool:
        """Whether a life has written to it last, and no other has begun."""
        return life[:2] == last_life(self._history)[:2] >= self._promised[:2]

    def read(self, agreed_end: int = 0) -> NumberTable:
        """Takes what has come; up to ``agreed_end`` it has been agreed on at least."""
        with self._lock:
            lives = self._log.lives(LIST)
            parted = divergence(self._history, lives.history)
            if lives.end < self._scanned or (parted is not None and parted < self._scanned):
                # What was agreed on stays, unless somebody has had stores that lack it begin
                # without those that have it.  All of it is read again.
                self.table, self._scanned, self._agreed = NumberTable(), 0, 0
            self._history, self._promised = lives.history, lives.promised
            self._agreed = max(self._agreed, agreed_end)
            for offset, record in self._records(self._scanned, lives.end):
                self._scanned = offset + 1
                self._agreed = max(self._agreed, agreed(record, offset))
                has_ended = record is not None and record.agreed > 0
                self.open_since = None if has_ended else time.monotonic()
            table = self.table
            for offset, record in self._records(table.applied, min(self._agreed, self._scanned)):
                if offset == table.applied:  # else the list has lost its beginning
                    table.apply(record)
            return table

    def _records(self, start: int, end: int) -> list[tuple[int, NumbersRecord | None]]:
        found: list[tuple[int, NumbersRecord | None]] = []
        while start < end and (batches := self._log.read(LIST, start, end)):
            for batch in batches:
                found += enumerate(map(parsed, batch.values), batch.offset)
            start = batches[-1].end
        return found

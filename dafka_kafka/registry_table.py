"""The table of numbered partitions, read from the registry's records.

Kafka numbers a topic's partitions 0, 1, 2, ...; Dafka names them by producers' addresses. The
registry maps numbers to addresses. It only grows, except when clients delete topics. Its records
are JSON objects in the single partition of internal topic ``__dafka.kafka.partitions``::

    {"v": 1, "lease": "8C1F..."}
    {"v": 1, "topic": "flights", "first": 0, "partitions": [["EB0A...", "77D2...", true], ...]}
    {"v": 1, "topic": "flights", "configs": {"max.message.bytes": 200000}}
    {"v": 1, "topic": "flights", "deleted": [["EB0A...", 5000], ...]}
    {"v": 1, "owner": "77D2...", "leader": "91B0...", "life": [...], "stores": ["77D2...", ...]}
    {"v": 1, "committed": 2}

``lease``: a gateway has become the registry's producer, and others should wait for its commit. The
value is random. ``partitions`` get the numbers from ``first`` on; each row is the partition's
address, the address of its owner (the gateway that takes the writes of Kafka clients), and whether
the owner hosts it (otherwise a Dafka producer does). ``configs`` replaces the configs of a topic.
``deleted`` removes them and all numbers of a topic: its partitions get new ones only for records
from these offsets on, and those that a gateway hosted never do. ``leader`` writes the partitions of
``owner`` in this life, and a majority of ``stores`` acknowledges them (``leaders``). ``committed``:
a majority of the stores has all records before that offset, so they can't be lost; only committed
records count. Any producer can write to the topic, so records that are invalid, or don't fit the
previous ones, are skipped deterministically: all gateways skip the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import ClassVar, Final, NamedTuple

from dafka_core.errors import ProtocolError
from dafka_core.flight.limits import parts
from dafka_core.model.epochs import (
    LIFE_ID_BITS,
    MAX_ACKS,
    MAX_END,
    MAX_NUMBER,
    NO_LIFE,
    EpochId,
    History,
    divergence,
    known_until,
    last_life,
)
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.name_limits import check_address, check_node_address, check_topic
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.security.permissions import SHARED_BY_STORES
from dafka_core.storage import Log

MAX_PARTITIONS: Final = 200_000
"""In all topics together: about 60 MB, and seconds to describe to a client. Kafka's own clusters
had as many before KRaft."""

MAX_RECORD_BYTES: Final = 1 << 20  # longer records are invalid
PARTITIONS_PER_RECORD: Final = 1_000  # about 100 KB; ``assignment_records`` splits larger changes


class RegistryRecord(JsonMessage, frozen=True, omit_defaults=True):
    """One record; see the module's docstring."""

    what: ClassVar[str] = "record of partitions' numbers"

    lease: str = ""
    committed: Natural = 0
    topic: str = ""
    first: Natural = 0
    partitions: tuple[tuple[str, str, bool], ...] = ()
    configs: dict[str, Natural] | None = None
    deleted: tuple[tuple[str, Natural], ...] = ()
    owner: str = ""
    leader: str = ""
    life: EpochId = NO_LIFE
    stores: tuple[str, ...] = ()


class NumberedPartition(NamedTuple):
    """A partition under its number; ``address`` is its name in Dafka.

    ``gateway`` is the address of its owner, the gateway that takes the writes of Kafka clients. It
    hosts the partition; otherwise the partition is a Dafka producer's, and read-only for Kafka
    clients.
    """

    topic: str
    number: int
    address: str
    gateway: str
    hosted: bool = True

    @property
    def tp(self) -> TopicPartition:
        """The partition's name in Dafka."""
        return TopicPartition(self.topic, self.address)


LEAST_STORES: Final = 3  # of two stores none can tell whether it has the majority


class Lead(NamedTuple):
    """A leader record: the gateway that writes an owner's partitions, usually the owner itself.

    It writes in ``life``, and a majority of ``stores`` acknowledges. ``offset`` is the record's.
    """

    owner: str
    leader: str
    life: EpochId
    stores: tuple[str, ...]
    offset: int = -1

    @property
    def majority(self) -> int:
        """The number of stores that must have each record."""
        return len(self.stores) // 2 + 1

    @property
    def is_movable(self) -> bool:
        """True if another gateway may become the leader."""
        return len(self.stores) >= LEAST_STORES

    @classmethod
    def parse(cls, record: RegistryRecord, offset: int) -> Lead | None:
        """Return the leader record at an offset of the registry; None if it has no valid one."""
        owner, leader, life, stores = record.owner, record.leader, record.life, record.stores
        is_valid = (
            all(_is_valid(check_node_address, each) for each in (owner, leader, *stores))
            and 0 < life.number < MAX_NUMBER
            and 0 <= life.id < 2**LIFE_ID_BITS
            and 0 <= life.acks <= MAX_ACKS
        )
        return cls(owner, leader, life, stores, offset) if is_valid else None


def is_numbered(topic: str) -> bool:
    """Return whether a topic's partitions get numbers.

    Kafka clients must be able to name it (in UTF-8; they accept more names than Kafka), and it must
    not be internal.
    """
    return (
        topic.isprintable()  # surrogates aren't
        and not topic.startswith(INTERNAL)
        and _is_valid(check_topic, topic)
    )


def assignment_records(topic: str, added: Sequence[NumberedPartition]) -> list[RegistryRecord]:
    """Return the records that assign the next numbers of a topic."""
    return [
        RegistryRecord(
            topic=topic,
            first=some[0].number,
            partitions=tuple((each.address, each.gateway, each.hosted) for each in some),
        )
        for some in parts(added, PARTITIONS_PER_RECORD)
    ]


def deletion_records(topic: str, ends: Mapping[str, int]) -> list[RegistryRecord]:
    """Return the records that delete a topic's numbers; ``ends`` are its partitions' ends."""
    some = parts([*ends.items()], PARTITIONS_PER_RECORD)
    return [RegistryRecord(topic=topic, deleted=each) for each in some]


class RegistryTable:
    """The content of the registry, as far as it is committed.

    Attributes:
        applied: the offset of the next record to apply.
        skipped: the number of invalid records, and of invalid partitions in records.
        cluster_id: a random id from the first lease; None before it.
        leads: the leaders by owner; an owner that is missing writes its partitions itself.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.skipped = 0
        self.cluster_id: str | None = None
        self.leads: Mapping[str, Lead] = {}
        self._topics: dict[str, tuple[NumberedPartition, ...]] = {}
        self._numbers: dict[TopicPartition, int] = {}
        self._configs: dict[str, Mapping[str, int]] = {}
        self._ended: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def copy(self) -> RegistryTable:
        """Return an independent copy."""
        made = copy(self)
        for name, each in vars(self).items():
            if isinstance(each, dict):
                setattr(made, name, each.copy())
        return made

    @property
    def topics(self) -> Collection[str]:
        """The topics with numbers."""
        return tuple(self._topics)

    def partitions(self, topic: str) -> tuple[NumberedPartition, ...]:
        """Return a topic's partitions by number."""
        return self._topics.get(topic, ())

    def get(self, topic: str, number: int) -> NumberedPartition | None:
        """Return the partition with this number."""
        known = self._topics.get(topic, ())
        return known[number] if 0 <= number < len(known) else None

    def configs(self, topic: str) -> Mapping[str, int]:
        """Return the configs that were set for a topic."""
        return self._configs.get(topic, {})

    def number(self, tp: TopicPartition) -> int | None:
        """Return the number of a Dafka partition."""
        return self._numbers.get(tp)

    def deleted_end(self, tp: TopicPartition) -> int:
        """Return the end of a partition in a deleted topic of this name, or 0.

        A partition that a gateway hosted is deleted for ever: nothing else is written to it.
        """
        return self._ended.get(tp, 0)

    def hosted_once(self, topic: str) -> set[TopicPartition]:
        """Return the partitions that gateways hosted of a deleted topic."""
        ended = self._ended.items()
        return {tp for tp, end in ended if tp.topic == topic and end == MAX_END}

    def apply(self, record: RegistryRecord | None) -> None:
        """Apply the next record; None stands for an invalid one."""
        self.applied += 1
        if record is None:
            self.skipped += 1
            return
        if self.cluster_id is None and record.lease:
            self.cluster_id = record.lease[:32]
        if record.deleted:
            known = self._topics.get(record.topic, ())
            ends = [(TopicPartition(record.topic, name), end) for name, end in record.deleted]
            ends += ((each.tp, MAX_END) for each in known if each.hosted)
            # First, so that a concurrent reader does not take it for a new partition.
            self._ended.update((tp, max(end, self.deleted_end(tp))) for tp, end in ends)
            for each in self._topics.pop(record.topic, ()):
                del self._numbers[each.tp]
            self._configs.pop(record.topic, None)
        if record.configs is not None and record.topic in self._topics:
            self._configs[record.topic] = record.configs
        if record.owner:
            lead = Lead.parse(record, self.applied - 1)
            previous = self.leads.get(record.owner)
            if lead is not None and (previous is None or lead.life > previous.life):
                self.leads = {**self.leads, lead.owner: lead}  # other threads read it
            else:
                self.skipped += 1
        known, added = self._topics.get(record.topic, ()), list[NumberedPartition]()
        for number, row in enumerate(record.partitions, record.first):
            new = NumberedPartition(record.topic, number, *row)
            if number == len(known) + len(added) and self._may_have(new):
                self._numbers[new.tp] = number
                added.append(new)
            else:
                self.skipped += 1
        if added:
            self._topics[record.topic] = (*known, *added)

    def _may_have(self, new: NumberedPartition) -> bool:
        return (
            new.tp not in self._numbers
            and len(self) < MAX_PARTITIONS
            and (new.number > 0 or is_numbered(new.topic))
            and _is_valid(check_address, new.address)
            and _is_valid(check_node_address, new.gateway)
        )


def parse_record(content: bytes) -> RegistryRecord | None:
    """Parse a record; return None if it is invalid."""
    return RegistryRecord.parse_or_none(content) if len(content) <= MAX_RECORD_BYTES else None


def committed_end(record: RegistryRecord | None, offset: int) -> int:
    """Return the offset up to which this record commits; it can't commit later records."""
    return record.committed if record is not None and record.committed <= offset else 0


def _is_valid(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except ProtocolError:
        return False
    return True


REGISTRY: Final = TopicPartition(f"{INTERNAL}kafka.partitions", SHARED_BY_STORES)
"""The registry's partition; its address is "dafka kafka list" in hexadecimal."""


class RegistryLog:
    """Reads the registry's committed records; thread-safe.

    Args:
        clock: a monotonic time in seconds.

    Attributes:
        table: their content.
        unsettled_since: when a gateway's election or uncommitted record was last seen; None if
            everything is committed.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self.table = RegistryTable()
        self.unsettled_since: float | None = None
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._scanned = self._committed = 0
        self._history: History = ()
        self._promised = NO_LIFE
        self._ends_committed = True
        self._lives: dict[str, EpochId] = {}  # the newest of each owner's leaders, uncommitted, too

    def is_committed_by(self, majority: int) -> bool:
        """Return whether everything is committed, by ``majority`` stores."""
        return last_life(self._history).acks == majority and self.unsettled_since is None

    def has(self, life: EpochId, end: int) -> bool:
        """Return whether the store has the records before ``end`` of the producer's life."""
        lives = self._log.lives(REGISTRY)
        return lives.end >= end and last_life(lives.history)[:2] == life[:2]

    def is_fenced(self, life: EpochId) -> bool:
        """Return whether the store knows a newer producer."""
        lives = self._log.lives(REGISTRY)
        return max(lives.promised, last_life(lives.history))[:2] > life[:2]

    def life(self, owner: str) -> EpochId:
        """Return the life of an owner's newest leader, which need not be committed."""
        return self._lives.get(owner, NO_LIFE)

    def confirms(self, lead: Lead, head: PartitionInfo | None) -> bool:
        """Return whether neither this store nor another knows a newer leader.

        ``head`` is the other store's registry. If this store's is behind, nothing is confirmed.
        """
        self.read()
        with self._lock:
            is_newest = self.life(lead.owner) == lead.life
            return is_newest and (head is None or head.end <= self._same(head))

    def is_at(self, lead: Lead, head: PartitionInfo | None) -> bool:
        """Return whether a store with this registry knows a leader."""
        with self._lock:
            return head is not None and min(head.end, self._same(head)) > lead.offset

    def _same(self, head: PartitionInfo) -> int:
        """Return the end of the records that are this store's, too."""
        return min(self._scanned, known_until(self._history, head.life) or 0)

    def read(self, committed: int = 0) -> RegistryTable:
        """Read new records; those before ``committed`` are known to be committed."""
        with self._lock:
            table, leads, lives = self.table, self._lives, self._log.lives(REGISTRY)
            parted = divergence(self._history, lives.history)
            if lives.end < self._scanned or (parted is not None and parted < self._scanned):
                # Committed records stay, unless an operator started stores that lack them without
                # the stores that have them. Read everything again.
                table, leads, self._scanned, self._committed = RegistryTable(), {}, 0, 0
            is_changed = lives.promised != self._promised
            self._history, self._promised = lives.history, lives.promised
            self._committed = max(self._committed, committed)
            for offset, record in self._records(self._scanned, lives.end):
                self._scanned = offset + 1
                self._committed = max(self._committed, committed_end(record, offset))
                self._ends_committed = record is not None and record.committed > 0
                if record is not None and (lead := Lead.parse(record, offset)):
                    leads[lead.owner] = max(lead.life, leads.get(lead.owner, NO_LIFE))
                is_changed = True
            if self._ends_committed and lives.promised[:2] <= last_life(lives.history)[:2]:
                self.unsettled_since = None
            elif is_changed:
                self.unsettled_since = self._clock()
            for offset, record in self._records(table.applied, min(self._committed, self._scanned)):
                if offset == table.applied:  # otherwise the registry has lost its beginning
                    table.apply(record)
            # Complete: without a leader's record its owner would write.
            self._lives, self.table = leads, table
            return table

    def _records(self, start: int, end: int) -> list[tuple[int, RegistryRecord | None]]:
        found: list[tuple[int, RegistryRecord | None]] = []
        while start < end and (batches := self._log.read(REGISTRY, start, end)):
            for batch in batches:
                found += enumerate(map(parse_record, batch.values), batch.offset)
            start = batches[-1].end
        return found

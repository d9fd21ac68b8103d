"""What the messages of the protocol share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_type_hints

from dafka_core.epochs import Epoch
from dafka_core.errors import ProtocolError
from dafka_core.protocol import fields as f
from dafka_core.protocol.packed_records import unpack_batch
from dafka_core.protocol.validation import check_batch
from dafka_core.records import TopicPartition, Transaction


@dataclass(frozen=True, slots=True)
class Message:
    """A message is checked when it is made, field by field and as a whole."""

    kinds: ClassVar[dict[str, f.FieldKind]]
    """The kind of each field by its name; content has none."""

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.kinds = {
            name: hint.__metadata__[0]
            for name, hint in hints.items()
            if hasattr(hint, "__metadata__")
        }

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            kind.check(getattr(self, name))
        self.check()

    def check(self) -> None:
        """Raises ProtocolError unless the fields, each valid in itself, are valid together."""


class OfPartition(Message):
    """A message about one partition."""

    __slots__ = ()
    topic: str
    partition: str

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class UpTo(OfPartition):
    """A message that says how far a partition goes: up to ``sequence``, inclusive."""

    __slots__ = ()
    sequence: int

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.sequence + 1


class Packed(OfPartition):
    """Extension: consecutive records in one message, all of one ``epoch`` and ``transaction``.

    ``value`` is the timestamps of the records as ``runs`` runs, none if they are not known: first
    the timestamps, eight octets each, then the count of each one's records, four octets each.
    Then come the lengths of the records, four octets each, and the records themselves.  All is
    little endian, as columns are.
    """

    __slots__ = ()
    sequence: int
    count: int
    value: bytes
    transaction: Transaction | None
    epoch: Epoch | None
    runs: int

    def check(self) -> None:
        """Raises ProtocolError unless these are records of one transaction and epoch."""
        check_batch(self.sequence, self.count, self.transaction, self.epoch)
        unpack_batch(self.count, self.value, self.runs)


@dataclass(frozen=True, slots=True)
class Reply(Message):
    """Extension: part ``part`` of ``parts``, from 0 on, of a store's answer to a query."""

    requestor: f.Address
    query: f.QueryId
    store: f.Address
    part: f.Number
    parts: f.Number

    def check(self) -> None:
        """Raises ProtocolError unless the part is one of the parts."""
        if not 0 <= self.part < self.parts < 2**32:
            raise ProtocolError("a part must be below the number of parts, which has 32 bits")

"""Epochs: the lives of a partition's producer, and what two stores' records have in common.

Offsets alone do not say which record is meant: a producer that is started again may write another
record at an offset than its earlier life did.  So each life is an epoch, as in Kafka's leader-epoch
cache (KIP-101), and an epoch and an offset name one record for ever.  A partition's *history* is
its epochs in ascending order; each holds from its ``start`` to that of the next one.

An epoch has the digest of the history that it goes on from.  So one that two histories have in
common says that all before it is the same, too; but not one that began where only C stores had
answered, and has no parent.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Self

import xxhash

MAX_EPOCHS: Final = 1_000
"""Of a history that is kept.  The oldest are forgotten; the digests of the others know them."""

MAX_END: Final = 2**63
"""Higher than any offset."""

LIFE_ID_BITS: Final = 64
"""So many that no two lives draw the same."""

_LIFE: Final = struct.Struct(">IQB")
LIFE_BYTES: Final = _LIFE.size

_EPOCH: Final = struct.Struct(">IQBQQ")
EPOCH_BYTES: Final = _EPOCH.size

_START: Final = attrgetter("start")


class EpochId(NamedTuple):
    """What orders epochs: ``number`` is one more than that of any earlier life it could learn of.

    ``id`` is drawn at random, so that two lives that began at once are told apart.  ``acks`` is
    how many stores had to have a record before the life's producer called it acknowledged.
    """

    number: int
    id: int
    acks: int

    def packed(self) -> bytes:
        """As it lies on disk and in messages, ``LIFE_BYTES`` long."""
        return _LIFE.pack(*self)

    @classmethod
    def unpack(cls, octets: bytes) -> Self:
        """The inverse of ``packed``; checks nothing but the length (struct.error)."""
        return cls._make(_LIFE.unpack(octets))


MAX_LIFE: Final = EpochId(2**32 - 1, 2**64 - 1, 2**8 - 1)
"""After any other one."""


class Epoch(NamedTuple):
    """One life: its records begin at offset ``start``, after a history with digest ``parent``."""

    number: int
    id: int
    acks: int
    start: int
    parent: int

    @classmethod
    def first(cls, life: EpochId) -> Self:
        """The epoch of a partition that begins."""
        return cls(*life, 0, 0)

    @property
    def life(self) -> EpochId:
        """What orders it among other epochs."""
        return EpochId(*self[:3])

    def continues(self, history: Sequence[Epoch]) -> bool:
        """Whether it goes on from a history; or from records of which nobody could tell whose.

        C stores know no lives: where only they have answered, an epoch has no parent.
        """
        if self.parent or not self.start:
            return self.parent == digest(history)
        return self.life > last_life(history)

    @property
    def digest(self) -> int:
        """That of the history up to and with this epoch."""
        return xxhash.xxh3_64_intdigest(self.packed())

    def packed(self) -> bytes:
        """As it lies on disk and in messages, ``EPOCH_BYTES`` long."""
        return _EPOCH.pack(*self)

    @classmethod
    def unpack(cls, octets: bytes) -> Self:
        """The inverse of ``packed``; checks nothing but the length (struct.error)."""
        return cls._make(_EPOCH.unpack(octets))


NO_LIFE: Final = EpochId(0, 0, 0)
"""Of records without an epoch: C nodes', and those that stores wrote before there were epochs."""

History = tuple[Epoch, ...]


def last_life(history: Sequence[Epoch]) -> EpochId:
    """The newest one."""
    return history[-1].life if history else NO_LIFE


def digest(history: Sequence[Epoch]) -> int:
    """The digest that an epoch after this history has as its parent."""
    return history[-1].digest if history else 0


def epoch_at(history: Sequence[Epoch], offset: int) -> Epoch | None:
    """The epoch of the record at an offset; None where that is not known."""
    index = bisect_right(history, offset, key=_START)
    return history[index - 1] if index else None


def with_epoch(history: History, epoch: Epoch) -> History:
    """The history when it goes on with an epoch."""
    return (*history, epoch)[-MAX_EPOCHS:]


def before(history: History, end: int) -> History:
    """The history of the records before an offset."""
    return history[: bisect_right(history, end - 1, key=_START)]


def _start_after(history: Sequence[Epoch], index: int) -> int:
    """Where the epoch after one begins; higher than any offset if that is the last."""
    return history[index + 1].start if index + 1 < len(history) else MAX_END


def follows(history: Sequence[Epoch], epoch: Epoch, offset: int) -> bool:
    """Whether the record at ``offset`` of an epoch can follow those of a history, which end there.

    Records without an epoch can be followed by any: nobody knows whose they are.
    """
    if not history:
        return offset > 0 or not epoch.start
    if epoch == history[-1]:
        return True
    return epoch.start == offset and epoch.continues(history)


def parting(one: Sequence[Epoch], other: Sequence[Epoch]) -> int | None:
    """The first offset at which two histories differ; None if one only goes on where one ends.

    Where one has records beyond it, and the other has its next epoch there, they have parted.
    """
    known = {epoch: index for index, epoch in enumerate(other)}
    common = next((index for index in reversed(range(len(one))) if one[index] in known), None)
    if common is None:
        return min(each[0].start for each in (one, other)) if one and other else None
    start = min(_start_after(one, common), _start_after(other, known[one[common]]))
    return start if start < MAX_END else None


def known_until(history: Sequence[Epoch], life: EpochId) -> int | None:
    """Up to which offset (exclusive) the records are those of who goes on from ``life``.

    0 where newer lives have taken its place; None where the history does not go so far yet.
    ``history`` is a store's, ``life`` the newest that somebody has seen elsewhere.
    """
    if not history or life == NO_LIFE:
        return MAX_END  # records without an epoch go with any
    lives = [epoch.life for epoch in history]
    if life in lives:
        return _start_after(history, lives.index(life))
    return 0 if lives[-1] > life else None


def parted_by(history: History, epoch: Epoch, end: int) -> int | None:
    """From where on a newer epoch replaces records before ``end`` of a history; None if it none.

    Who has missed epochs between may be told an offset that is too low, and never one too high.
    """
    if not history or epoch.life <= last_life(history) or epoch.start >= end:
        return None
    for index, known in enumerate(history):
        if known.digest == epoch.parent:
            return min(epoch.start, _start_after(history, index))
    return history[0].start if epoch.parent else epoch.start

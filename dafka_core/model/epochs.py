"""Epochs: the lives of a partition's producer, and the common records of two histories.

An offset alone does not identify a record: a restarted producer may write another record at an
offset that its earlier life has used.  So each life is an epoch, as in Kafka's leader-epoch cache
(KIP-101), and an epoch with an offset identifies one record for ever.  A partition's *history* is
its epochs in ascending order; each lasts from its ``start`` to that of the next one.

An epoch contains the digest of the history that it continues.  An epoch shared by two histories
therefore proves that their earlier records are equal, too, unless it has no parent: it began where
only C stores had answered.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Self

import xxhash

MAX_EPOCHS: Final = 1_000  # in a stored history; older ones are dropped, later digests include them
MAX_END: Final = 2**63  # greater than any offset
LIFE_ID_BITS: Final = 64  # enough random bits that no two lives share an id
MAX_NUMBER: Final = 2**31
"""Limit of a life's number in received messages: later lives have greater ones, in 32 bits."""

LATEST_NUMBER: Final = MAX_NUMBER - 2**24
"""The greatest number by a clock, in 2037: a wrong clock leaves numbers to later lives."""

MAX_ACKS: Final = 255  # of an epoch's field; more required acknowledgements are encoded as this

_LIFE: Final = struct.Struct(">IQB")
LIFE_BYTES: Final = _LIFE.size
_EPOCH: Final = struct.Struct(">IQBQQ")
EPOCH_BYTES: Final = _EPOCH.size
_START: Final = attrgetter("start")


class EpochId(NamedTuple):
    """The sort key of epochs.

    ``number`` is greater than that of any life known at the start, the random ``id`` distinguishes
    lives that began at the same time, and ``acks`` stores have each acknowledged record.
    """

    number: int
    id: int
    acks: int

    def packed(self) -> bytes:
        """Encode for disk and messages, in ``LIFE_BYTES`` bytes."""
        return _LIFE.pack(*self)

    @classmethod
    def unpack(cls, octets: bytes) -> Self:
        """Decode ``packed``; raise struct.error for another length."""
        return cls._make(_LIFE.unpack(octets))


def number_at(time_s: float) -> int:
    """Return the least number of a life that begins at a time.

    It is above those of earlier lives, also of lives that only consumers still know.
    """
    return min(int(time_s), LATEST_NUMBER)


MAX_LIFE: Final = EpochId(2**32 - 1, 2**64 - 1, 2**8 - 1)  # sorts after any other


class Epoch(NamedTuple):
    """One life: its records begin at offset ``start``, after a history with digest ``parent``."""

    number: int
    id: int
    acks: int
    start: int
    parent: int

    @classmethod
    def first(cls, life: EpochId) -> Self:
        """Return the epoch of a new partition."""
        return cls(*life, 0, 0)

    @property
    def life(self) -> EpochId:
        """Return the sort key."""
        return EpochId(*self[:3])

    def continues(self, history: Sequence[Epoch]) -> bool:
        """Return True if the epoch continues this history, or records of unknown producers.

        C stores know no lives: where only they have answered, an epoch has no parent.
        """
        if self.parent or not self.start:
            return self.parent == digest(history)
        return self.life > last_life(history)

    @property
    def digest(self) -> int:
        """Return the digest of the history up to and including this epoch."""
        return xxhash.xxh3_64_intdigest(self.packed())

    def packed(self) -> bytes:
        """Encode for disk and messages, in ``EPOCH_BYTES`` bytes."""
        return _EPOCH.pack(*self)

    @classmethod
    def unpack(cls, octets: bytes) -> Self:
        """Decode ``packed``; raise struct.error for another length."""
        return cls._make(_EPOCH.unpack(octets))


NO_LIFE: Final = EpochId(0, 0, 0)  # life of records without an epoch, written by C nodes
History = tuple[Epoch, ...]


def last_life(history: Sequence[Epoch]) -> EpochId:
    """Return the life of the last epoch."""
    return history[-1].life if history else NO_LIFE


def digest(history: Sequence[Epoch]) -> int:
    """Return the ``parent`` of an epoch that continues this history."""
    return history[-1].digest if history else 0


def epoch_at(history: Sequence[Epoch], offset: int) -> Epoch | None:
    """Return the epoch of the record at an offset; None if unknown."""
    index = bisect_right(history, offset, key=_START)
    return history[index - 1] if index else None


def with_epoch(history: History, epoch: Epoch) -> History:
    """Append an epoch, within ``MAX_EPOCHS``."""
    return (*history, epoch)[-MAX_EPOCHS:]


def prefix(history: History, end: int) -> History:
    """Return the history of the records before an offset."""
    return history[: bisect_right(history, end - 1, key=_START)]


def _start_after(history: Sequence[Epoch], index: int) -> int:
    return history[index + 1].start if index + 1 < len(history) else MAX_END


def follows(history: Sequence[Epoch], epoch: Epoch, offset: int) -> bool:
    """Return True if the record at ``offset`` of an epoch may follow a history that ends there.

    Any record may follow records without an epoch: their producer is unknown.
    """
    if not history:
        return offset > 0 or not epoch.start
    if epoch == history[-1]:
        return True
    return epoch.start == offset and epoch.continues(history)


def divergence(one: Sequence[Epoch], other: Sequence[Epoch]) -> int | None:
    """Return the first offset at which two histories differ; None if one continues the other."""
    known = {epoch: index for index, epoch in enumerate(other)}
    common = next((index for index in reversed(range(len(one))) if one[index] in known), None)
    if common is None:
        return min(each[0].start for each in (one, other)) if one and other else None
    start = min(_start_after(one, common), _start_after(other, known[one[common]]))
    return start if start < MAX_END else None


def known_until(history: Sequence[Epoch], life: EpochId) -> int | None:
    """Return the end of a store's records that are valid for a life.

    0 if newer lives have replaced it; None if the store's history does not include it yet.
    """
    if not history or life == NO_LIFE:
        return MAX_END  # compatible with any life
    lives = [epoch.life for epoch in history]
    if life in lives:
        return _start_after(history, lives.index(life))
    return 0 if lives[-1] > life else None


def diverged_by(history: History, epoch: Epoch, end: int) -> int | None:
    """Return the offset from which a newer epoch replaces records before ``end``, if it does.

    If epochs between are missing, the offset may be too low, but never too high.
    """
    if not history or epoch.life <= last_life(history) or epoch.start >= end:
        return None
    for index, known in enumerate(history):
        if known.digest == epoch.parent:
            return min(epoch.start, _start_after(history, index))
    return history[0].start if epoch.parent else epoch.start

"""Whose records a reader of a partition has got, so that it never goes on with another history."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from dafka_core.epochs import Epoch, History, before, last_life, parted_by, with_epoch
from dafka_core.records import RecordBatch


class FollowedHistory:
    """The epochs of the records that one reader of one partition has got.

    Records without an epoch, C nodes', go with any.
    """

    __slots__ = ("_unknown_from", "asked_s", "epochs")

    def __init__(self) -> None:
        self.epochs: History = ()
        self.asked_s = -inf
        """When stores were last asked for the partition's history."""
        self._unknown_from: int | None = None

    def is_stale(self, batch: RecordBatch) -> bool:
        """Whether a newer life has taken over from the one that has written these records."""
        epoch, known = batch.epoch, self.epochs
        return epoch is not None and epoch.life < last_life(known) and epoch not in known

    def parted_by(self, epoch: Epoch | None, position: int) -> int | None:
        """From where on what was read before ``position`` is not the partition's any more.

        ``epoch`` is that of records which have come; None if they can follow.
        """
        if epoch is None or epoch in self.epochs[-1:]:
            return None
        return parted_by(self.epochs, epoch, self.read_to(position))

    def read_to(self, position: int) -> int:
        """Up to where records were read, by a reader at ``position``: none that was passed over."""
        return position if self._unknown_from is None else min(position, self._unknown_from)

    def pass_over(self, start: int) -> None:
        """The reader goes on without records from ``start`` on, of whatever lives they are."""
        if self._unknown_from is None:
            self._unknown_from = start

    def take(self, taken: Sequence[RecordBatch]) -> tuple[Sequence[RecordBatch], int | None]:
        """Those that follow what was read; and from where on that has parted, if the next do not.

        They are the next ones by their offsets.
        """
        for index, batch in enumerate(taken):
            epoch = batch.epoch
            if epoch is None:
                self.pass_over(batch.offset)
                continue
            if epoch in self.epochs[-1:]:
                self._unknown_from = None  # all before was of this life, too
                continue
            if self.epochs and not self._follows(epoch, batch.offset):
                # The older life's records at its first offsets were next, or came before.
                known = epoch.continues(self.epochs)
                return taken[:index], epoch.start if known else self.epochs[0].start
            self._unknown_from = None
            self.epochs = with_epoch(self.epochs, epoch)
        return taken, None

    def _follows(self, epoch: Epoch, offset: int) -> bool:
        unknown = self._unknown_from
        if unknown is not None and epoch.start >= unknown:
            return epoch.life > last_life(self.epochs)  # lives between may have been passed over
        return epoch.start == offset and epoch.continues(self.epochs)

    def go_back(self, start: int) -> None:
        """The reader goes on at ``start``, where another history has won."""
        self.epochs = before(self.epochs, start)
        self._unknown_from = None

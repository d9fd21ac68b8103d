"""Epochs on disk: the history of each partition's records, and what its store has promised.

A partition's row has its newest epoch (``rows.py``).  Those before it, and what was promised, which
may be to a producer of a partition that has no record yet, lie in the table ``meta``:

    "lives of ", digest of the partition's key  ->  promised life, older epochs, checksum
    "met ", address of another store  ->  when it was heard last, and where it was
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from dafka_core.epochs import (
    EPOCH_BYTES,
    LIFE_BYTES,
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    before,
    with_epoch,
)
from dafka_core.log_entries import Met
from dafka_core.names import octets_of, text_of
from dafka_core.records import PartitionLives, TopicPartition
from dafka_core.storage.counted_transaction import CountedTransaction
from dafka_core.storage.rows import CHECKSUM_BYTES, PartitionRow, checksum, partition_key
from dafka_core.storage.storage_errors import damaged

if TYPE_CHECKING:
    import lmdb

_PREFIX = b"lives of "
_MET = b"met "
HEARD_BYTES: Final = 8


class Lives:
    """The epochs in one transaction of LMDB."""

    def __init__(self, directory: Path, txn: CountedTransaction, meta: lmdb._Database) -> None:
        self._directory = directory
        self._txn = txn
        self._meta = meta

    def of(self, tp: TopicPartition, row: PartitionRow | None) -> PartitionLives:
        """What is known of the lives of a partition's producer.

        Raises:
            StoreError: it is damaged.
        """
        end, last = (row.end, row.last_transaction) if row is not None else (0, None)
        promised, history = self._until(tp, row, end)
        return PartitionLives(end, history, promised, last)

    def history(self, tp: TopicPartition, row: PartitionRow) -> History:
        """The history of a partition's records."""
        newest = row.epoch
        if newest is None or not (newest.parent or newest.start):
            return () if newest is None else (newest,)
        return (*self._older(tp)[1], newest)

    def begin(self, tp: TopicPartition, row: PartitionRow, epoch: Epoch) -> PartitionRow:
        """The row when its partition goes on with an epoch."""
        # One without records was given up: what was staged in it is gone.
        promised, history = self._until(tp, row, row.end)
        history = with_epoch(history, epoch)
        self._put(tp, promised, history[:-1])
        return row._replace(epoch=epoch)

    def promise(self, tp: TopicPartition, life: EpochId) -> None:
        """Keeps a promise, unless a newer life has one."""
        promised, older = self._older(tp)
        self._put(tp, max(promised, life), older)

    def meet(self, met: Met) -> None:
        """Keeps that another store is there."""
        value = met.heard_us.to_bytes(HEARD_BYTES, "big") + met.endpoint.encode()
        self._txn.put(_MET + octets_of(met.store), value, db=self._meta)

    def met(self) -> list[Met]:
        """The stores that were ever met."""
        return [
            Met(
                text_of(name[len(_MET) :]),
                bytes(value[HEARD_BYTES:]).decode(),
                int.from_bytes(value[:HEARD_BYTES], "big"),
            )
            for name, value in self._txn.scan(self._meta, _MET)
        ]

    def forget(self, store: str) -> bool:
        """Forgets another store; False when it was never met."""
        return self._txn.delete(_MET + octets_of(store), db=self._meta)

    def cut(self, tp: TopicPartition, row: PartitionRow, end: int) -> PartitionRow:
        """The row without the epochs that begin at ``end`` or later."""
        promised, history = self._until(tp, row, end)
        self._put(tp, promised, history[:-1])
        return row._replace(epoch=history[-1] if history else None)

    def replace(self, tp: TopicPartition, row: PartitionRow, history: History) -> PartitionRow:
        """The row with another history; what was promised stays."""
        promised, _ = self._older(tp)
        self._put(tp, promised, history[:-1])
        return row._replace(epoch=history[-1] if history else None)

    def _until(
        self, tp: TopicPartition, row: PartitionRow | None, end: int
    ) -> tuple[EpochId, History]:
        """What is promised, and the history of the records before an offset."""
        promised, older = self._older(tp)
        newest = () if row is None or row.epoch is None else (row.epoch,)
        return promised, before((*older, *newest), end)

    def _older(self, tp: TopicPartition) -> tuple[EpochId, History]:
        name = _name(tp)
        found = self._txn.get(name, db=self._meta)
        if found is None:
            return NO_LIFE, ()
        content = bytes(found[:-CHECKSUM_BYTES])
        epochs = content[LIFE_BYTES:]
        if found != content + checksum(name, content) or len(epochs) % EPOCH_BYTES:
            why = "what is known of the lives of a partition does not match its checksum"
            raise damaged(self._directory, why)
        starts = range(0, len(epochs), EPOCH_BYTES)
        promised = EpochId.unpack(content[:LIFE_BYTES])
        return promised, tuple(Epoch.unpack(epochs[at : at + EPOCH_BYTES]) for at in starts)

    def _put(self, tp: TopicPartition, promised: EpochId, older: History) -> None:
        name = _name(tp)
        if promised == NO_LIFE and not older:
            self._txn.delete(name, db=self._meta)
            return
        content = promised.packed() + b"".join(map(Epoch.packed, older))
        self._txn.put(name, content + checksum(name, content), db=self._meta)


def _name(tp: TopicPartition) -> bytes:
    return _PREFIX + xxhash.xxh3_128_digest(partition_key(tp))

"""A store whose records were replaced rejects late ones of the replaced part of an epoch."""

from __future__ import annotations

from dataclasses import replace

from dafka_core.model.epochs import NO_LIFE, Epoch
from dafka_core.model.records import PartitionLives, RecordBatch
from dafka_core.protocol.messages import HistoryReply
from dafka_core.protocol.store_role import StoreRole
from tests.unit.protocol.model import TP, batch_of

ME, WINNER = "0" * 32, "1" * 32
OLD = Epoch(1, 7, 1, 0, 0)
NEW = Epoch(2, 8, 1, 39, OLD.digest)


def of(epoch: Epoch, start: int, end: int) -> RecordBatch:
    return replace(batch_of(start, end), epoch=epoch)


def write(role: StoreRole) -> None:
    entries = role.take_pending()
    role.on_stored(entries, [None] * len(entries))


def test_late_records_of_a_replaced_part_do_not_block_the_newer_ones() -> None:
    role = StoreRole(ME, lambda tp: PartitionLives(0, (), NO_LIFE), sync_interval_s=1.0)
    role.on_batch(0.0, "", of(OLD, 0, 50))
    write(role)
    reply = HistoryReply(ME, 0, WINNER, *TP, 100, NO_LIFE, (OLD, NEW), ())
    role.on_message(1.0, reply, WINNER)
    write(role)
    partition = role.partitions[TP]
    assert partition.fetcher.next_offset == NEW.start
    # From another store that has not given them up yet.
    role.on_batch(1.1, ME, of(OLD, 39, 50))
    write(role)
    role.on_batch(1.2, ME, of(NEW, 39, 100))
    write(role)
    assert (partition.durable, partition.history) == (100, (OLD, NEW))

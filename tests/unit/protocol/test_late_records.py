"""A store whose records were replaced receives the winner's, whatever arrives late."""

from __future__ import annotations

from dataclasses import replace

from dafka_core.model.epochs import NO_LIFE, Epoch
from dafka_core.model.records import PartitionLives, RecordBatch, Transaction
from dafka_core.protocol.messages import HistoryQuery, HistoryReply
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
    assert partition.next_offset == NEW.start
    # From another store that has not given them up yet.
    role.on_batch(1.1, ME, of(OLD, 39, 50))
    write(role)
    role.on_batch(1.2, ME, of(NEW, 39, 100))
    write(role)
    assert (partition.durable, partition.history) == (100, (OLD, NEW))


def test_an_incomplete_transaction_is_given_up_as_a_whole() -> None:
    role = StoreRole(ME, lambda tp: PartitionLives(0, (), NO_LIFE), sync_interval_s=1.0)
    part = replace(of(OLD, 0, 50), transaction=Transaction(1, 0, 60))
    role.on_batch(0.0, "", part)
    write(role)
    reply = HistoryReply(ME, 0, WINNER, *TP, 100, NO_LIFE, (OLD, NEW), ())
    role.on_message(1.0, reply, WINNER)
    write(role)
    # The log has dropped all of it, also the records that the winner has, too.
    assert role.partitions[TP].next_offset == 0


def test_a_store_replaces_a_winner_that_has_lost_itself() -> None:
    """A producer has won, and ended before a store had its records."""
    role = StoreRole(ME, lambda tp: PartitionLives(0, (), NO_LIFE), sync_interval_s=1.0)
    role.on_batch(0.0, "", of(OLD, 0, 5))
    write(role)
    winner = Epoch(3, 9, 1, 0, 0)
    role.on_message(1.0, HistoryReply(ME, 0, TP.partition, *TP, 5, NO_LIFE, (winner,), ()), "")
    role.on_message(1.1, HistoryQuery("2" * 32, 1, *TP, Epoch(9, 5, 1, 0, 0).life), "")
    write(role)
    newer = Epoch(4, 1, 1, 39, OLD.digest)
    reply = HistoryReply(ME, 0, WINNER, *TP, 100, NO_LIFE, (OLD, newer), ())
    role.on_message(1.2, reply, WINNER)
    role.on_batch(1.3, ME, of(OLD, 0, 39))
    write(role)
    assert role.partitions[TP].durable == 39

"""A clock for logs, entries of transactions, and everything that readers receive from a log."""

from collections.abc import Sequence

import pytest

from dafka_core.errors import DafkaError
from dafka_core.model.log_entries import Commit, Stage
from dafka_core.model.records import NO_VERSION, RecordBatch, StagedTransaction, TopicPartition
from dafka_core.storage import Log, append_area, entry_writer
from dafka_core.storage.snapshot import Snapshot

TP = TopicPartition("t", "p")
A, B, C = ("A" * 32, "B" * 32, "C" * 32)
"""Attempts."""


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_us = 1_000

    def __call__(self) -> int:
        return self.now_us


def values(count: int, name: str = "v", size_bytes: int = 0) -> list[bytes]:
    """Return values with their numbers."""
    return [b"%s%d" % (name.encode(), number) + b"." * size_bytes for number in range(count)]


def large(count: int, name: str = "v") -> list[bytes]:
    """Return values of which a hundred make a block that is not extended."""
    return values(count, name, 1000)


def put(store: Log, written: Sequence[bytes], partition: str = "p") -> None:
    """Append at the partition's end."""
    tp = TopicPartition("t", partition)
    store.append([RecordBatch.of(tp, store.end(tp), written)])


def stage(
    written: Sequence[bytes],
    offset: int,
    attempt: str = A,
    partition: str = "p",
    version: int = NO_VERSION,
) -> Stage:
    """Return an entry that stages records."""
    return Stage(RecordBatch.of(TopicPartition("t", partition), offset, written), attempt, version)


def commit(*transactions: tuple[str, str, int, int, int]) -> Commit:
    """Return an entry for these partitions, attempts, starts, ends and versions."""
    return Commit(tuple(StagedTransaction("t", *transaction) for transaction in transactions))


def one(attempt: str, start: int, end: int, version: int) -> Commit:
    """Return an entry that commits one partition."""
    return commit(("p", attempt, start, end, version))


def facts(error: DafkaError | None) -> tuple[object, ...]:
    """Return the class of an error and its fields."""
    assert error is not None
    return (type(error), *vars(error).values())


def held(store: Log | Snapshot, partition: str = "p") -> list[bytes]:
    """Return all values that a reader receives."""
    tp = TopicPartition("t", partition)
    info = store.info(tp)
    if info is None:
        return []
    found: list[bytes] = []
    batches = list(store.read(tp, 0, info.end + 1000))
    for batch in batches:
        assert batch.offset == info.earliest + len(found)
        found += batch.values
    assert len(found) == info.end - info.earliest
    return found


def tiny_area(patch: pytest.MonkeyPatch) -> None:
    """Make the append area so small that few records pass through all its levels."""
    patch.setattr(append_area, "APPENDED_GROUPS", 3)
    patch.setattr(append_area, "FAN_IN", 2)
    patch.setattr(append_area, "MERGED_GROUPS", 4)
    patch.setattr(append_area, "WIDTHS", (2**64, 4, 2))
    patch.setattr(append_area, "MOVED_BYTES", 2_000)
    patch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 4_000)


def clean(store: Log) -> None:
    """Merge until nothing is left to merge."""
    while store.merge_step():
        pass

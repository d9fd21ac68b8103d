"""A child process of the tests: stages, commits and merges units until it is killed.

``committer.py DIRECTORY SEED`` prints the number of each unit when it is staged and when it is
committed.  A unit is one of every partition, and of each a part comes from an attempt that is
given up.
"""

from __future__ import annotations

import random
import sys

from dafka_core.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.storage import Commit, Log, Stage, block_builder, block_writer
from tests.core.storage.appender import BlockMerger

PARTITIONS = ("p", "q", "r")


def unit_values(partition: str, number: int) -> list[bytes]:
    """The records of a unit: another count for each, of other lengths."""
    count = (number * 7919 + ord(partition) * 104_729) % 400 + 1
    size = number * 31 % 97
    return [b"%s.%d.%d" % (partition.encode(), number, each) * size for each in range(count)]


def units_values(partition: str, numbers: int) -> list[bytes]:
    """The records of the first units."""
    return [value for number in range(numbers) for value in unit_values(partition, number)]


def committed(store: Log) -> int:
    """How many units there are."""
    transaction = store.transaction_state(TopicPartition("t", PARTITIONS[0])).transaction
    return transaction.version + 1 if transaction else 0


def write_unit(store: Log, number: int, chance: random.Random) -> Commit:
    """Stages a unit of every partition, in steps; what commits it."""
    transactions = []
    for partition in PARTITIONS:
        tp = TopicPartition("t", partition)
        start = store.end(tp)
        given_up, attempt = (f"{chance.getrandbits(128):032X}" for _ in range(2))
        others = [b"given up"] * chance.choice((1, 100, 2000))
        store.write([Stage(RecordBatch.of(tp, start, others), given_up, number)])
        values = unit_values(partition, number)
        at = chance.randint(1, len(values))
        for part in (slice(0, at), slice(at, None)):
            if values[part]:
                batch = RecordBatch.of(tp, start + (part.start or 0), values[part])
                assert store.write([Stage(batch, attempt, number)]) == [None]
        transactions.append(
            StagedTransaction("t", partition, attempt, start, start + len(values), number)
        )
    return Commit(tuple(transactions))


def main() -> None:
    directory, seed = sys.argv[1:]
    block_builder.MAX_BLOCK_BYTES = 100_000
    block_writer.SMALL_BLOCK_BYTES = 2_000
    chance = random.Random(int(seed))
    with Log(directory) as store:
        merging = BlockMerger(store)
        merging.start()
        print("opened", committed(store), flush=True)
        for number in range(committed(store), 1 << 30):
            commit = write_unit(store, number, chance)
            print("staged", number, flush=True)
            assert store.write([commit]) == [None]
            print("committed", number + 1, flush=True)


if __name__ == "__main__":
    main()

"""A child process that stages, commits and merges transactions until it is killed.

``committer.py DIRECTORY SEED`` prints the version of each transaction when it is staged and when it
is committed. Each covers every partition; first an attempt stages a part of it that is discarded.
"""

from __future__ import annotations

import random
import sys

from dafka_core.model.log_entries import Commit, Stage
from dafka_core.model.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.storage import Log, append_area, block, entry_writer
from tests.integration.storage.appender import BlockMerger

PARTITIONS = ("p", "q", "r")


def transaction_values(partition: str, version: int) -> list[bytes]:
    """Return the records of a transaction, with a count and lengths of its own."""
    count = (version * 7919 + ord(partition) * 104_729) % 400 + 1
    size = version * 31 % 97
    return [b"%s.%d.%d" % (partition.encode(), version, each) * size for each in range(count)]


def all_values(partition: str, versions: int) -> list[bytes]:
    """Return the records of the first transactions."""
    return [
        value for version in range(versions) for value in transaction_values(partition, version)
    ]


def committed(store: Log) -> int:
    """Return the number of transactions."""
    transaction = store.transaction_state(TopicPartition("t", PARTITIONS[0])).transaction
    return transaction.version + 1 if transaction else 0


def write_transaction(store: Log, version: int, chance: random.Random) -> Commit:
    """Stage a transaction of every partition, in steps; return its commit."""
    transactions = []
    for partition in PARTITIONS:
        tp = TopicPartition("t", partition)
        start = store.end(tp)
        given_up, attempt = (f"{chance.getrandbits(128):032X}" for _ in range(2))
        others = [b"given up"] * chance.choice((1, 100, 2000))
        store.write([Stage(RecordBatch.of(tp, start, others), given_up, version)])
        values = transaction_values(partition, version)
        at = chance.randint(1, len(values))
        for part in (slice(0, at), slice(at, None)):
            if values[part]:
                batch = RecordBatch.of(tp, start + (part.start or 0), values[part])
                assert store.write([Stage(batch, attempt, version)]) == [None]
        transactions.append(
            StagedTransaction("t", partition, attempt, start, start + len(values), version)
        )
    return Commit(tuple(transactions))


def main() -> None:
    directory, seed = sys.argv[1:]
    block.MAX_BLOCK_BYTES = 100_000
    entry_writer.SMALL_BLOCK_BYTES = append_area.MOVED_BYTES = 2_000
    append_area.APPENDED_GROUPS, append_area.FAN_IN = 3, 2
    chance = random.Random(int(seed))
    with Log(directory) as store:
        merging = BlockMerger(store)
        merging.start()
        print("opened", committed(store), flush=True)
        for version in range(committed(store), 1 << 30):
            commit = write_transaction(store, version, chance)
            print("staged", version, flush=True)
            assert store.write([commit]) == [None]
            print("committed", version + 1, flush=True)


if __name__ == "__main__":
    main()

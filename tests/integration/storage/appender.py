"""A child process that writes, commits, merges and trims a log until it is killed.

``appender.py DIRECTORY SEED [serve]`` prints, after each append, the end of the partition and the
number of merges. Its blocks are small, so that there are many merges. Some records are committed
together with those of another partition. With ``serve`` it commits nothing: it first prints its
Flight location, trims after each append, and limits leases to 4 MiB, so that its file's size is
bounded.
"""

import random
import sys
import threading

from dafka_core.model.log_entries import Commit, Stage
from dafka_core.model.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.storage import Log, append_area, block, entry_writer, leases

TOPIC, PARTITION = "t", "P"
TP = TopicPartition(TOPIC, PARTITION)
OTHER = TopicPartition(TOPIC, "Q")
"""Has records of the same transactions, and no others."""


def value(offset: int) -> bytes:
    """Return the distinct record of an offset, with a length of its own."""
    return b"%d," % offset * (1 + offset * 7919 % 97)


class BlockMerger(threading.Thread):
    def __init__(self, log: Log) -> None:
        super().__init__(daemon=True)
        self._log = log
        self.merged = 0
        self.closed = threading.Event()

    def run(self) -> None:
        while not self.closed.is_set():
            if self._log.merge_step():
                self.merged += 1
            else:
                self.closed.wait(0.001)

    def close(self) -> None:
        self.closed.set()
        self.join()


def staged(
    log: Log, tp: TopicPartition, count: int, version: int, chance: random.Random
) -> StagedTransaction:
    """Stage records in steps, after an attempt that is given up."""
    start = log.end(tp)
    given_up, attempt = (f"{chance.getrandbits(128):032X}" for _ in range(2))
    others = [b"given up"] * chance.choice((1, 100, 2000))
    log.write([Stage(RecordBatch.of(tp, start, others), given_up, version)])
    values = [value(offset) for offset in range(start, start + count)]
    at = chance.randint(1, count)
    for first, part in ((start, values[:at]), (start + at, values[at:])):
        if part:
            assert log.write([Stage(RecordBatch.of(tp, first, part), attempt, version)]) == [None]
    return StagedTransaction(*tp, attempt, start, start + count, version)


def commit(log: Log, chance: random.Random) -> None:
    last = log.transaction_state(TP).transaction
    version = 1 + (last.version if last else 0)
    counts = [(tp, chance.choice((1, 10, 400))) for tp in (TP, OTHER)]
    whole = Commit(tuple(staged(log, tp, count, version, chance) for tp, count in counts))
    assert log.write([whole]) == [None]


def serving(log: Log) -> str:
    """Serve the log over Flight; return the location."""
    from dafka_core.testing import StoreDouble

    return StoreDouble(log.directory, log=log).location.packed().decode()


def main() -> None:
    directory, seed, *serve = sys.argv[1:]
    block.MAX_BLOCK_BYTES = 400_000
    entry_writer.SMALL_BLOCK_BYTES = append_area.MOVED_BYTES = 5_000
    append_area.APPENDED_GROUPS, append_area.FAN_IN = 3, 2
    chance = random.Random(int(seed))
    with Log(directory) as log:
        merging = BlockMerger(log)
        merging.start()
        if serve:
            leases.LEASE_WRITTEN_BYTES = 4 << 20  # type: ignore[misc]
            print(serving(log), flush=True)
        end = log.end(TP)
        print(end, merging.merged, flush=True)
        while True:
            batches = []
            for _ in range(chance.randint(1, 3)):
                count = chance.choice((1, 1, 1, 2, 10, 200, 3000))
                values = [value(offset) for offset in range(end, end + count)]
                batches.append(RecordBatch.of(TP, end, values))
                end += count
            log.append(batches)
            if not serve and chance.random() < 0.3:
                commit(log, chance)
                end = log.end(TP)
            if serve or chance.random() < 0.05:
                log.trim(TP, end - min(end, 20_000))
            print(end, merging.merged, flush=True)


if __name__ == "__main__":
    main()

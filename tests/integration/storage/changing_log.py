"""A log with random changes of each kind, and its contents for comparisons."""

import random
from typing import Any

import numpy as np

from dafka_core.model.epochs import Epoch
from dafka_core.model.log_entries import Discard, NotedBatch, RestartPartition, SetAside, StoreSeen
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from tests.integration.storage.staged import A, B, commit, stage

PARTITIONS = [TopicPartition("t", name) for name in "pqrs"]


class ChangingLog:
    """Random changes of a log; records have lives, so that some can be set aside."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self._chance = random.Random(seed)
        self._lives = 1000 * seed
        self._version = 0

    def change(self, times: int) -> None:
        kinds = [self._append] * 6 + [self._merge] * 3
        kinds += [self._trim, self._stage, self._discard, self._set_aside, self._note, self._go_on]
        for _ in range(times):
            self._chance.choice(kinds)()

    def _append(self) -> None:
        tp, chance = self._chance.choice(PARTITIONS), self._chance
        size_bytes, count = chance.choice([(20, 3), (20, 40), (900, 40), (2000, 100)])
        written = [chance.randbytes(4) * chance.randrange(size_bytes // 4) for _ in range(count)]
        batch = RecordBatch.of(tp, self.log.end(tp), written)
        history = self.log.lives(tp).history
        epoch = history[-1] if history else Epoch(1, 1, 1, batch.offset, 0)
        # In any order, within 50 minutes.
        stamps = [self.log.now_us() - chance.randrange(3_000_000_000) for _ in written]
        times = np.array([[1, us] for us in stamps], np.int64) if chance.random() < 0.5 else None
        batch = RecordBatch(tp, batch.offset, batch.values, times=times, epoch=epoch)
        self.log.append([batch])

    def _merge(self) -> None:
        for _ in range(self._chance.randrange(1, 40)):
            self.log.merge_step()

    def _trim(self) -> None:
        info = self.log.info(tp := self._chance.choice(PARTITIONS))
        if info is not None:
            self.log.trim(tp, self._chance.randrange(info.earliest, info.end + 1))

    def _stage(self) -> None:
        partition = self._chance.choice("pqrs")
        end = self.log.end(TopicPartition("t", partition))
        self._version += 1
        count = self._chance.choice([3, 200])
        records = [self._chance.randbytes(500) for _ in range(count)]
        attempt = self._chance.choice([A, B])
        self.log.write([stage(records, end, attempt, partition, self._version)])
        if self._chance.random() < 0.7:
            self.log.write([commit((partition, attempt, end, end + count, self._version))])

    def _discard(self) -> None:
        self.log.write([Discard(self._chance.choice(PARTITIONS), self._chance.choice([A, B]))])

    def _set_aside(self) -> None:
        info = self.log.info(tp := self._chance.choice(PARTITIONS))
        if info is None or info.earliest == info.end:
            return
        self._lives += 1
        start = self._chance.randrange(info.earliest, info.end)
        self.log.write([SetAside(tp, start)])
        values = RecordBatch.of(tp, start, [b"won"] * 5).values
        epoch = Epoch(100 + self._lives, self._lives, 1, start, 0)
        self.log.write([RecordBatch(tp, start, values, epoch=epoch)])
        if self._chance.random() < 0.5:
            self.log.discard_aside(self.log.aside()[0].id)

    def _go_on(self) -> None:
        """Restart a partition, as a store does that lacks records which no store has."""
        tp = self._chance.choice(PARTITIONS)
        self._lives += 1
        end, history = self.log.end(tp), self.log.lives(tp).history
        if self._chance.random() < 0.5:
            history = (*history, Epoch(100 + self._lives, self._lives, 1, end, 0))
        self.log.write([RestartPartition(tp, end + self._chance.randrange(1, 90), history)])

    def _note(self) -> None:
        tp = self._chance.choice(PARTITIONS)
        note = {f"n{self._chance.randrange(3)}": self._chance.randbytes(8)}
        batch = RecordBatch.of(tp, self.log.end(tp), [b"noted"])
        self.log.write(
            [NotedBatch(tp, batch.offset, batch.values, notes=note), StoreSeen("S" * 32)]
        )


def told(log: Log) -> dict[str, Any]:
    """Return everything that a log reports."""
    infos = log.partitions()
    return {
        "partitions": infos,
        "records": [
            [value for batch in log.read(each.tp, 0, each.end) for value in batch.values]
            for each in infos
        ],
        "times": [log.times(each.tp, 0, each.end) for each in infos],
        "transactions": [log.transaction_state(tp) for tp in PARTITIONS],
        "lives": [log.lives(tp) for tp in PARTITIONS],
        "staged": [each[:5] for each in log.staged()],
        "aside": [
            (each[:5], [value for batch in log.read_aside(each.id) for value in batch.values])
            for each in log.aside()
        ],
        "notes": log.notes("n"),
        "met": log.met(),
    }

"""Workloads for power cuts, and checks of the disks that cuts leave.

``python -m tests.powerloss.workloads NAME DIRECTORY SEED`` runs one.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final

from dafka_core import Producer
from dafka_core.archive import manifest
from dafka_core.config.topic_rules import parse_compression
from dafka_core.model.log_entries import Commit, LogEntry, NotedBatch, SetAside, Stage
from dafka_core.model.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.nodes import store_backup
from dafka_core.storage import Log, append_area, block, entry_writer
from dafka_core.storage.backup import Backup
from dafka_core.testing import EmbeddedCluster
from tests.integration.archive import records
from tests.integration.storage.processes import values_of
from tests.powerloss.store_pair import StorePair
from tests.powerloss.workload import State, Workload

PARTITIONS: Final = [TopicPartition("t", name) for name in "pqrs"]


def value(tp: TopicPartition, offset: int) -> bytes:
    return b"%s %d," % (tp.partition.encode(), offset) * (1 + offset * 7919 % 97)


def read_log(directory: Path) -> State:
    """Check a log by all its records and ``dafka store verify``; return its offsets."""
    with Log(directory) as log:
        found: dict[str, State] = {}
        for each in log.partitions():
            values = values_of(log, each.tp)
            assert values == [value(each.tp, at) for at in range(each.earliest, each.end)], each
            transaction = log.transaction_state(each.tp).transaction
            version = transaction.version if transaction else -1
            found[each.partition] = [each.earliest, each.end, version]
        found["notes"] = {name: note.decode() for name, note in log.notes("list").items()}
        found["aside"] = [[each.partition, each.start, each.end] for each in log.aside()]
    damage = [each for part in store_backup.verify(str(directory)) for each in part.found]
    assert damage == []
    return found


class LogWork(Workload):
    """Appends with notes, transactions, retention, records set aside, and the work beside them."""

    first: ClassVar[State] = {"aside": [], "notes": {}}

    def run(self) -> None:
        block.MAX_BLOCK_BYTES = 100_000
        entry_writer.SMALL_BLOCK_BYTES = append_area.MOVED_BYTES = 2_000
        append_area.APPENDED_GROUPS, append_area.FAN_IN = 3, 2
        self._state = dict(self.first)
        work = [self._append] * 5 + [self._commit, self._commit, self._trim, self._aside]
        for _ in range(3):
            with Log(self.root / "a" / "store") as self._log:
                self._compressor = self._log.compressor(parse_compression("*=zstd"), 0.0)
                for _ in range(15):
                    self.chance.choice(work)()
                    steps = self._log.merge_step, self._compressor.step, self._log.linker.step
                    for step in steps:
                        if self.chance.random() < 0.4:
                            step()

    def state(self) -> State:
        directory = self.root / "a" / "store"
        found = read_log(directory)
        left = (directory / "data.mdb").read_bytes()
        assert read_log(directory) == found
        assert (directory / "data.mdb").read_bytes() == left, "a second start changes the file"
        with Log(directory) as log:  # pages that are free by mistake are overwritten by this
            for tp in PARTITIONS * 3:
                end = log.end(tp)
                log.append([self._batch(tp, end, 300)])
            while log.merge_step():
                pass
        read_log(directory)
        return found

    def _batch(self, tp: TopicPartition, start: int, count: int) -> RecordBatch:
        return RecordBatch.of(tp, start, [value(tp, at) for at in range(start, start + count)])

    def _row(self, tp: TopicPartition) -> list[int]:
        return list(self._state.get(tp.partition, [0, 0, -1]))

    def _write(self, entries: list[LogEntry], **changed: State) -> None:
        state = {**self._state, **changed}
        with self.step(state):
            assert not any(self._log.write(entries))
        self._state = state

    def _append(self) -> None:
        entries: list[LogEntry] = []
        rows, listed = {}, dict(self._state["notes"])
        for tp in self.chance.sample(PARTITIONS, self.chance.randint(1, 4)):
            row = rows[tp.partition] = self._row(tp)
            count = self.chance.choice((1, 2, 10, 200, 1500))
            batch = self._batch(tp, row[1], count)
            notes = {f"list {tp.partition}": b"%d" % batch.end}  # as the Kafka gateway writes
            entries.append(NotedBatch(batch.tp, batch.offset, batch.values, notes=notes))
            row[1], listed[f"list {tp.partition}"] = batch.end, f"{batch.end}"
        self._write(entries, **rows, notes=listed)

    def _commit(self) -> None:
        rows, commits = {}, []
        version = max(self._row(tp)[2] for tp in PARTITIONS) + 1
        for tp in PARTITIONS[:3]:
            row = rows[tp.partition] = self._row(tp)
            count, start = self.chance.choice((1, 30, 700)), row[1]
            given_up, attempt = (f"{self.chance.getrandbits(128):032X}" for _ in range(2))
            given_up_records = RecordBatch.of(tp, start, [b"given up"] * 50)
            assert not any(self._log.write([Stage(given_up_records, given_up, version)]))
            for first in range(start, start + count, 400):
                part = self._batch(tp, first, min(400, start + count - first))
                assert not any(self._log.write([Stage(part, attempt, version)]))
            commits.append(StagedTransaction(*tp, attempt, start, start + count, version))
            row[1:] = start + count, version
        self._write([Commit(tuple(commits))], **rows)

    def _trim(self) -> None:
        tp = self.chance.choice(PARTITIONS)
        row = self._row(tp)
        if row[0] < row[1]:
            row[0] = self.chance.randint(row[0], row[1])
            state = {**self._state, tp.partition: row}
            with self.step(state):
                assert self._log.trim(tp, row[0]) == row[0]
            self._state = state

    def _aside(self) -> None:
        tp = PARTITIONS[3]  # has no transactions, which may be set aside, too
        row = self._row(tp)
        if row[1] - row[0] > 10:
            start, end = row[1] - 5, row[1]
            row[1] = start
            aside = [*self._state["aside"], [tp.partition, start, end]]
            self._write([SetAside(tp, start)], **{tp.partition: row}, aside=aside)


def dafka(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "dafka_core.cli", *words], check=True, capture_output=True
    )


class BackupWork(Workload):
    """``dafka store backup``, full and incremental, and ``restore``."""

    first: ClassVar[State] = [False] * 3

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self._made = [root / "a" / "b" / "one", root / "a" / "two", root / "c" / "restored"]

    def prepare(self) -> None:
        super().prepare()
        self._append(self.root / "store")
        dafka("store", "restore", str(self.root / "store"))  # gives it an address

    def _append(self, directory: Path) -> None:
        with Log(directory) as log:
            for tp in PARTITIONS:
                end = log.end(tp)
                count = self.chance.randint(1, 3000)
                values = [value(tp, at) for at in range(end, end + count)]
                log.append([RecordBatch.of(tp, end, values)])

    def run(self) -> None:
        store, (one, two, restored) = str(self.root / "store"), map(str, self._made)
        with self.step([True, False, False]):
            dafka("store", "backup", store, one)
        self._append(self.root / "store")
        with self.step([True, True, False]):
            dafka("store", "backup", store, two, "--since", one)
        with self.step([True, True, True]):
            dafka("store", "restore", restored, "--from", two)

    def state(self) -> State:
        found = [each.exists() for each in self._made]
        for backup, exists in zip(self._made[:2], found[:2], strict=True):
            if exists:
                Backup(backup).check_file()
                again = self.root / f"{backup.name}.again"
                store_backup.restore(backup, again)
                assert {*read_log(again)} == {*"pqrs", "aside", "notes"}
        if found[2]:
            assert read_log(self._made[2]) == read_log(self.root / "two.again")
        read_log(self.root / "store")
        return found


class ArchiveWork(Workload):
    """Writers of an archive, of two partitions, with folded commits."""

    first: ClassVar[State] = 0

    def run(self) -> None:
        manifest.FOLD = 2  # type: ignore[misc]
        for end in (30, 50, 60):
            with self.step(end):
                records.archived(self.root / "archive", records.A, end)

    def state(self) -> State:
        manifest.FOLD = 2  # type: ignore[misc]
        directory = self.root / "archive"
        exists = (directory / manifest.MANIFEST).exists()
        found = records.offsets_in_manifest(directory, records.A) if exists else []
        assert found == [*range(len(found))]
        records.archived(directory, records.A, 70)
        for offsets in (records.offsets_in_manifest, records.offsets_in_files):
            assert offsets(directory, records.A) == [*range(70)]
        return len(found)


CONTENT: Final = [b"%d" % number for number in range(3000)]


class CopyWork(Workload):
    """``dafka copy`` to a new file, and in place of one."""

    first: ClassVar[State] = ["", "previous"]

    def prepare(self) -> None:
        super().prepare()
        (self.root / "b.jsonl").write_text("previous")

    def run(self) -> None:
        with EmbeddedCluster() as cluster:
            with Producer("kept", tower=cluster.tower) as producer:
                producer.publish_many(CONTENT)
                producer.flush(60)
            words = "copy", "kept", "--tower", cluster.tower
            with self.step(["whole", "previous"]):
                dafka(*words, str(self.root / "a.jsonl"))
            with self.step(["whole", "whole"]):
                dafka(*words, str(self.root / "b.jsonl"), "--overwrite")

    def state(self) -> State:
        return [*map(self._found, ("a.jsonl", "b.jsonl"))]

    def _found(self, name: str) -> str:
        path = self.root / name
        if not path.exists() or path.read_text() == "previous":
            return path.read_text() if path.exists() else ""
        found = [json.loads(line)["value"] for line in path.read_text().splitlines()]
        assert found == [each.decode() for each in CONTENT], found[:3]
        return "whole"


WORKLOADS: Final[Mapping[str, Callable[[Path, int], Workload]]] = {
    "log": LogWork,
    "backup": BackupWork,
    "archive": ArchiveWork,
    "copy": CopyWork,
    "stores": StorePair,
}

if __name__ == "__main__":
    WORKLOADS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3])).run()

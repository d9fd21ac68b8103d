"""A directory that commit 00ee0b5 has written opens, serves all that it holds, and goes on.

``recorded/store.tar.xz`` is the directory and ``recorded/store.json`` what that version said of it.
Some 50 appends are in it, merged in part, a trimmed partition with large values, odd names, a
transaction that is committed, one that is staged, and one of which another store sent a part.
"""

from __future__ import annotations

import hashlib
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import lmdb
import pytest

from dafka_core.epochs import NO_LIFE, Epoch, PartitionLives
from dafka_core.log_entries import Commit, Met, Promise, SetAside
from dafka_core.records import (
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.storage import Log
from tests.integration.storage.staged import A, B, C, clean

RECORDED = Path(__file__).parent / "recorded"
_chance = random.Random(7)
SMALL, LARGE, _, UNITS, REPLICA, STAGED = [f"{_chance.getrandbits(128):032X}" for _ in range(6)]
SMALL_TP = TopicPartition("small", SMALL)
LARGE_TP = TopicPartition("large", LARGE)
UNITS_TP = TopicPartition("units", UNITS)
REPLICA_TP = TopicPartition("units", REPLICA)
STAGED_TP = TopicPartition("units", STAGED)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(RECORDED / "store.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def facts() -> dict[str, Any]:
    """What was said of each partition in turn: names, records, times, and its transactions."""
    found: dict[str, Any] = json.loads((RECORDED / "store.json").read_text())
    return found


def values_of(log: Log, tp: TopicPartition) -> list[bytes]:
    return [value for batch in log.read(tp, 0, log.end(tp)) for value in batch.values]


def told(log: Log) -> dict[str, Any]:
    """What the log says, as it was recorded."""
    infos = log.partitions()
    return {
        "partitions": [
            [
                *(name.encode("utf-8", "surrogateescape").hex() for name in info.tp),
                info.earliest,
                info.end,
            ]
            for info in infos
        ],
        "records": [
            [
                value.hex() if len(value) < 100 else hashlib.sha256(value).hexdigest()
                for value in values_of(log, info.tp)
            ]
            for info in infos
        ],
        "times": [[list(pair) for pair in log.times(info.tp, 0, info.end)] for info in infos],
        "units": json.loads(json.dumps([log.transaction_state(info.tp) for info in infos])),
    }


def test_it_serves_all_that_it_holds(directory: Path, facts: dict[str, Any]) -> None:
    with Log(directory) as log:
        assert told(log) == facts
        for info, times in zip(log.partitions(), facts["times"], strict=True):
            for offset, time_us in times:
                assert log.offset_for_time(info.tp, time_us) == offset
        with log.snapshot() as snapshot:
            for info in log.partitions():
                batches = snapshot.read(info.tp, 0, info.end)
                found = [value for batch in batches for value in batch.values]
                assert found == values_of(log, info.tp)
        assert log.transaction_state(UNITS_TP) == TransactionState(10, 17, B, Transaction(4, 0, 10))
        assert log.transaction_state(REPLICA_TP) == TransactionState(0, 4, "", None)
        assert log.transaction_state(STAGED_TP) == TransactionState(0, 1, C, None)


def test_it_is_made_the_format_of_today(directory: Path) -> None:
    def form() -> bytes | None:
        with lmdb.Environment(str(directory), max_dbs=3) as env, env.begin() as txn:
            return txn.get(b"format", db=env.open_db(b"meta", txn, create=False))

    assert form() == b"\2\0\0\0"
    Log(directory).close()
    assert form() == b"\3\0\0\0"


def test_it_goes_on(directory: Path) -> None:
    with Log(directory) as log:
        again = Commit((StagedTransaction(*UNITS_TP, A, 0, 10, 4),))
        both = Commit(
            (
                StagedTransaction(*UNITS_TP, B, 10, 17, 5),
                StagedTransaction(*STAGED_TP, C, 0, 1, 0),
            )
        )
        rest = [b"r%d" % number for number in range(4, 8)]
        part = RecordBatch.of(REPLICA_TP, 4, rest, Transaction(3, 0, 8))
        more = RecordBatch.of(SMALL_TP, 150, [b"more"])
        new = RecordBatch.of(TopicPartition("new", SMALL), 0, [b"new"])
        assert log.write([again, both, part, more, new]) == [None] * 5
    with Log(directory) as log:
        units = [b"u%d" % number for number in range(10)] + [b"s%d" % n for n in range(7)]
        assert values_of(log, UNITS_TP) == units
        assert log.transaction_state(UNITS_TP) == TransactionState(
            17, 17, B, Transaction(5, 10, 17)
        )
        assert values_of(log, REPLICA_TP) == [b"r%d" % number for number in range(8)]
        assert log.transaction_state(REPLICA_TP) == TransactionState(8, 8, "", Transaction(3, 0, 8))
        assert values_of(log, STAGED_TP) == [b"never"]
        assert log.transaction_state(STAGED_TP) == TransactionState(1, 1, C, Transaction(0, 0, 1))
        assert values_of(log, SMALL_TP) == [*(b"v%d" % number for number in range(150)), b"more"]
        assert values_of(log, TopicPartition("new", SMALL)) == [b"new"]


def test_nobody_knows_whose_its_records_are_until_a_life_begins(directory: Path) -> None:
    epoch = Epoch(1, 7, 1, 150, 0)
    newer = Epoch(2, 8, 1, 120, 0)
    with Log(directory) as log:
        assert log.met() == []
        assert log.aside() == []
        for info in log.partitions():
            assert log.lives(info.tp)[:3] == (info.end, (), NO_LIFE)
            assert {batch.epoch for batch in log.read(info.tp, 0, info.end)} == {None}
        more = RecordBatch.of(SMALL_TP, 150, [b"more"])
        batch = RecordBatch(SMALL_TP, 150, more.values, epoch=epoch)
        assert log.write([Met("S2"), Promise(SMALL_TP, epoch.life), batch]) == [None] * 3
    with Log(directory) as log:
        assert log.lives(SMALL_TP) == PartitionLives(151, (epoch,), epoch.life)
        assert [each.epoch for each in log.read(SMALL_TP, 0, 151)][-1] == epoch
        # What it had is set aside like everything else.
        assert log.write([SetAside(SMALL_TP, 120)]) == [None]
        won = RecordBatch(
            SMALL_TP, 120, RecordBatch.of(SMALL_TP, 120, [b"won"]).values, epoch=newer
        )
        assert log.write([won]) == [None]
    with Log(directory) as log:
        assert log.lives(SMALL_TP) == PartitionLives(121, (newer,), epoch.life)
        written = [b"v%d" % number for number in range(150)]
        assert values_of(log, SMALL_TP) == [*written[:120], b"won"]
        [aside] = log.aside()
        found = [value for batch in log.read_aside(aside.id) for value in batch.values]
        assert found == [*written[120:], b"more"]


def test_it_is_merged(directory: Path, facts: dict[str, Any]) -> None:
    with Log(directory) as log:
        clean(log)
        assert told(log) == facts
        before = values_of(log, LARGE_TP)
        for offset in range(10, 60):
            log.append([RecordBatch.of(LARGE_TP, offset, [b"x" * 70_000])])
        assert len(offsets_of_blocks(log)) == 52
        clean(log)
        assert offsets_of_blocks(log) == [3]
        assert values_of(log, LARGE_TP) == before + [b"x" * 70_000] * 50


def offsets_of_blocks(log: Log) -> list[int]:
    with log.snapshot() as snapshot:
        return [batch.offset for batch in snapshot.read(LARGE_TP, 0, 1 << 40)]


def test_what_is_staged_is_discarded(directory: Path, facts: dict[str, Any]) -> None:
    with Log(directory) as log:
        assert log.discard_stale(0) == 3
        assert told(log)["records"] == facts["records"]
        assert log.transaction_state(UNITS_TP) == TransactionState(10, 10, A, Transaction(4, 0, 10))
        for tp in (REPLICA_TP, STAGED_TP):
            assert log.transaction_state(tp) == TransactionState(0, 0, "", None)

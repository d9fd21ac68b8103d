"""The registry in a log: its committed records, and when they apply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.log_entries import Promise, SetAside
from dafka_core.model.records import PartitionInfo, RecordBatch
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_kafka.registry_table import REGISTRY, Lead, RegistryLog, RegistryRecord


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path) as opened:
        yield opened


FIRST = Epoch.first(EpochId(1, 1, 1))


def write(log: Log, *records: RegistryRecord, epoch: Epoch = FIRST) -> None:
    values = Values.of([each.packed() for each in records])
    log.append([RecordBatch(REGISTRY, log.end(REGISTRY), values, epoch=epoch)])


def topic(name: str, *names: str) -> RegistryRecord:
    return RegistryRecord(topic=name, partitions=tuple((each, "G", True) for each in names))


def test_what_is_not_agreed_on_does_not_count(log: Log) -> None:
    found = RegistryLog(log)
    write(log, RegistryRecord(lease="AB"), topic("t", "P"))
    assert (len(found.read()), found.unsettled_since is None) == (0, False)
    write(log, RegistryRecord(committed=2))
    assert (len(found.read()), found.unsettled_since) == (1, None)
    write(log, RegistryRecord(lease="CD"), topic("u", "P"))
    assert len(found.read()) == 1
    assert len(found.read(4)) == 1
    assert (
        len(found.read(5)) == 2
    )  # a caller that knows the stores' answers need not wait for the record
    assert len(RegistryLog(log).read()) == 1


def test_what_is_agreed_on_counts_when_it_is_here(log: Log) -> None:
    found = RegistryLog(log)
    assert len(found.read(2)) == 0
    write(log, RegistryRecord(lease="AB"), topic("t", "P"))
    assert len(found.read()) == 1


def test_records_of_an_older_producer_are_not_those_of_a_newer_one(log: Log) -> None:
    found = RegistryLog(log)
    write(log, RegistryRecord(lease="AB"), RegistryRecord(committed=1))
    assert found.has(FIRST.life, 2)
    assert not found.has(FIRST.life, 3)
    assert not found.is_fenced(FIRST.life)
    newer = EpochId(2, 2, 1)
    assert not found.has(newer, 2)
    log.write([Promise(REGISTRY, newer)])
    assert found.is_fenced(FIRST.life)
    assert not found.is_fenced(newer)


def test_another_history_is_read_from_its_beginning(log: Log) -> None:
    write(log, RegistryRecord(lease="AB"), topic("t", "P"), RegistryRecord(committed=2))
    found = RegistryLog(log)
    assert list(found.read().topics) == ["t"]
    log.write([SetAside(REGISTRY, 0)])
    assert list(found.read().topics) == []
    other = Epoch.first(EpochId(2, 2, 1))
    write(
        log, RegistryRecord(lease="EF"), topic("u", "Q"), RegistryRecord(committed=2), epoch=other
    )
    assert list(found.read().topics) == ["u"]
    assert found.table.cluster_id == "EF"


def test_a_list_without_its_beginning_says_nothing_wrong(log: Log) -> None:
    write(log, RegistryRecord(lease="AB"), topic("t", "P"), RegistryRecord(committed=2))
    log.trim(REGISTRY, 2)
    assert len(RegistryLog(log).read()) == 0


def test_a_store_confirms_a_leader_unless_it_knows_a_newer_one(log: Log) -> None:
    lives = [EpochId(number, 7, 2) for number in (5, 6)]
    records = [RegistryRecord(owner="G", leader="G", life=each, stores=("G",)) for each in lives]
    write(log, records[0], RegistryRecord(committed=1))
    found = RegistryLog(log)
    found.read()
    old, new = (Lead("G", "G", life, ("G",), at) for at, life in zip((0, 2), lives, strict=True))
    assert found.table.leads == {"G": old}

    def head(end: int, life: EpochId = FIRST.life) -> PartitionInfo:
        return PartitionInfo(*REGISTRY, 0, end, life)

    assert all(found.confirms(old, each) for each in (None, head(1), head(2)))
    assert not found.confirms(old, head(3))  # it knows something that this store does not
    assert not found.confirms(old, head(2, EpochId(9, 9, 1)))
    assert not found.confirms(new, None)
    assert found.is_at(old, head(1))
    assert not found.is_at(old, head(1, EpochId(9, 9, 1)))
    assert not found.is_at(new, head(2))
    write(log, records[1])  # which is not committed, and counts all the same
    assert not any(found.confirms(old, each) for each in (None, head(1), head(3)))
    assert found.confirms(new, head(3))
    assert (found.table.leads, found.life("G")) == ({"G": old}, new.life)
    assert found.is_at(new, head(3))
    log.write([SetAside(REGISTRY, 2)])
    assert found.confirms(old, head(2))
    assert (found.table.leads, found.life("G")) == ({"G": old}, old.life)
    invalid = RegistryRecord(owner="G", leader="", life=EpochId(9, 9, 2))
    write(log, invalid, RegistryRecord(committed=3))
    assert found.confirms(old, head(2))  # any producer may write there
    assert (found.read().skipped, found.life("H")) == (1, NO_LIFE)

"""The registry in a log: its committed records, and when they apply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import Promise, SetAside
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_kafka.registry_table import REGISTRY, RegistryLog, RegistryRecord


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

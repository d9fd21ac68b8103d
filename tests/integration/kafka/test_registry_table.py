"""The list of partitions' numbers in a log: what of it counts, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_kafka.registry_table import LIST, NumberList, NumbersRecord


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path) as opened:
        yield opened


FIRST = Epoch.first(EpochId(1, 1, 1))


def write(log: Log, *records: NumbersRecord, epoch: Epoch = FIRST) -> None:
    values = Values.of([each.packed() for each in records])
    log.append([RecordBatch(LIST, log.end(LIST), values, epoch=epoch)])


def topic(name: str, *names: str) -> NumbersRecord:
    return NumbersRecord(topic=name, partitions=tuple((each, "G", True) for each in names))


def test_what_is_not_agreed_on_does_not_count(log: Log) -> None:
    found = NumberList(log)
    write(log, NumbersRecord(turn="AB"), topic("t", "P"))
    assert (len(found.read()), found.open_since is None) == (0, False)
    write(log, NumbersRecord(agreed=2))
    assert (len(found.read()), found.open_since) == (1, None)
    write(log, NumbersRecord(turn="CD"), topic("u", "P"))
    assert len(found.read()) == 1
    assert len(found.read(4)) == 1
    assert len(found.read(5)) == 2  # who is told by the stores need not wait for the record
    assert len(NumberList(log).read()) == 1


def test_what_is_agreed_on_counts_when_it_is_here(log: Log) -> None:
    found = NumberList(log)
    assert len(found.read(2)) == 0
    write(log, NumbersRecord(turn="AB"), topic("t", "P"))
    assert len(found.read()) == 1


def test_another_history_is_read_from_its_beginning(log: Log) -> None:
    write(log, NumbersRecord(turn="AB"), topic("t", "P"), NumbersRecord(agreed=2))
    found = NumberList(log)
    assert list(found.read().topics) == ["t"]
    log.write([SetAside(LIST, 0)])
    assert list(found.read().topics) == []
    other = Epoch.first(EpochId(2, 2, 1))
    write(log, NumbersRecord(turn="EF"), topic("u", "Q"), NumbersRecord(agreed=2), epoch=other)
    assert list(found.read().topics) == ["u"]
    assert found.table.cluster_id == "EF"


def test_a_list_without_its_beginning_says_nothing_wrong(log: Log) -> None:
    write(log, NumbersRecord(turn="AB"), topic("t", "P"), NumbersRecord(agreed=2))
    log.trim(LIST, 2)
    assert len(NumberList(log).read()) == 0

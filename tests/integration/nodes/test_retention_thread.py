"""Retention beside a store: it happens by itself, gives way, and survives what the disk does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core import EmbeddedCluster, Producer, Store
from dafka_core.errors import ConfigError, StoreError
from dafka_core.names import DELETIONS_TOPIC
from dafka_core.nodes import retention_thread as module
from dafka_core.nodes.deletions import Deletions
from dafka_core.nodes.retention_thread import RetentionThread
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.retention_rules import parse_rules
from dafka_core.storage import Log, block_writer
from dafka_core.storage.retention_pass import Retention
from dafka_core.testing import wait_until

TP = TopicPartition("t", "A" * 32)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Each append makes a block."""
    monkeypatch.setattr(block_writer, "SMALL_BLOCK_BYTES", 1)
    monkeypatch.setattr(module, "INTERVAL_S", 0.02)
    with Log(tmp_path) as opened:
        yield opened


def put(log: Log) -> None:
    log.append([RecordBatch.of(TP, log.end(TP), [b"x" * 1000] * 10)])


def earliest(log: Log) -> int:
    info = log.info(TP)
    return info.earliest if info else 0


def test_what_rules_say_goes_by_itself(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10):
        put(log)
    retention = Retention(log)
    with caplog.at_level(logging.INFO, "dafka.store"), RetentionThread(log, retention):
        wait_until(lambda: retention.counts.passes == 0)
        retention.rules = parse_rules("t=25kB")
        wait_until(lambda: earliest(log) == 70)
        wait_until(lambda: "gave up 70 records" in caplog.text)
        put(log)
        wait_until(lambda: earliest(log) == 80)


def test_with_other_rules_it_does_not_wait_for_its_time(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 3600)
    for _ in range(10):
        put(log)
    retention = Retention(log, parse_rules("t=95kB"))
    with RetentionThread(log, retention) as thread:
        wait_until(lambda: retention.counts.passes == 1)
        thread.replace(parse_rules("t=25kB"))
        wait_until(lambda: earliest(log) == 70)
        wait_until(lambda: thread.given_up == 70)
        started = time.monotonic()
    assert time.monotonic() - started < 5


def test_rules_that_were_set_are_kept_until_they_are_reset(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    own, other = parse_rules("t=1d"), parse_rules(r"a\x20b=7d,1GiB *=forever")
    with RetentionThread(log, Retention(log, own)) as thread:
        assert (thread.rules, thread.is_set) == (own, False)
        thread.replace(other)
    with RetentionThread(log, Retention(log, own)) as thread:
        assert (thread.rules, thread.is_set) == (other, True)
        thread.replace(None)
        assert (thread.rules, thread.is_set) == (own, False)
    log.retention.keep_rules("t=7parsecs")
    with RetentionThread(log, Retention(log, own)) as thread:
        assert (thread.rules, thread.is_set) == ((), True)
    assert "nothing goes until others are" in caplog.text


def test_a_failing_disk_is_told_and_tried_again(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    for _ in range(10):
        put(log)
    trim_each = log.retention.trim_each
    failures = iter([StoreError(log.directory, "the disk is full")] * 3)

    def fails_at_first(wanted: object) -> object:
        for failure in failures:
            raise failure
        return trim_each(wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(log.retention, "trim_each", fails_at_first)
    retention = Retention(log, parse_rules("t=25kB"))
    with caplog.at_level(logging.ERROR, "dafka.store"), RetentionThread(log, retention):
        wait_until(lambda: earliest(log) == 70)
    assert [record.getMessage() for record in caplog.records] == [
        f"retention: store at {log.directory}: the disk is full"
    ] * 3


def test_rules_are_gone_by_also_where_a_deletion_is_damaged(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        put(log)
    told = b"not what was written"
    log.append([RecordBatch.of(TopicPartition(DELETIONS_TOPIC, "D" * 32), 0, [told])])
    log.close()
    file = tmp_path / "data.mdb"
    file.write_bytes(file.read_bytes().replace(told, told.upper()))
    with Log(tmp_path) as opened, caplog.at_level(logging.ERROR, "dafka.store"):
        retention = Retention(opened, parse_rules("t=25kB"))
        with RetentionThread(opened, retention, Deletions(opened, "S" * 32)):
            wait_until(lambda: earliest(opened) == 70)
    assert "checksum" in caplog.text


def test_it_ends_with_its_log(log: Log) -> None:
    thread = RetentionThread(log, Retention(log, parse_rules("t=25kB")))
    log.close()
    wait_until(lambda: "dafka-retention" not in {each.name for each in threading.enumerate()})
    thread.close()
    thread.close()


def test_a_store_gives_up_what_its_option_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.1)
    with pytest.raises(ConfigError, match=r"'retain' = 't': must be PATTERN="):
        Store(tmp_path / "store", retain="t")
    with EmbeddedCluster(stores=0) as cluster:
        options = {"tower": cluster.tower}
        with Store(tmp_path / "store", retain=["t=100kB", "*=forever"], **options) as store:
            with Producer("t", **options) as producer, Producer("other", **options) as other:
                for number in range(900):
                    producer.publish(b"x" * 1_000)
                    other.publish(b"x" * 1_000)
                    if number % 300 == 299:
                        producer.flush(30)
                        other.flush(30)
                wait_until(lambda: store.retention.counts.passes > 0)
                tp = TopicPartition("t", producer.address)
                wait_until(lambda: (info := store.log.info(tp)) is not None and info.earliest > 0)
                assert store.log.end(tp) == 900
            (info,) = store.log.partitions("other")
            assert (info.earliest, info.end) == (0, 900)

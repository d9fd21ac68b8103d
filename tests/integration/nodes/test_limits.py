"""Disks that are full or broken, and applications that do not read: errors, and bounds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dafka_core import (
    Consumer,
    NotAcknowledgedError,
    Producer,
    Store,
    StoreError,
)
from dafka_core.model.records import TopicPartition
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S

FILE_LIMIT_BYTES = 4 << 20

LIMITED_STORE = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_LIMIT_BYTES}, {FILE_LIMIT_BYTES}))
sys.argv[0] = "dafka"
runpy.run_module("dafka_core.cli", run_name="__main__")
"""
"""A file that must not grow is what a full disk looks like to a store."""


def test_a_full_disk_ends_the_store_and_nothing_is_acknowledged_that_is_not_stored(
    tower: str, produce: Callable[..., Producer], tmp_path: Path
) -> None:
    producer = produce("t")
    command = [sys.executable, "-c", LIMITED_STORE, "store", "--dir", str(tmp_path)]
    process = subprocess.Popen([*command, "--tower", tower], stderr=subprocess.PIPE, text=True)
    try:
        # Random bytes: no compression makes them smaller.
        published = [b"%08d" % n + os.urandom(2_000) for n in range(4)]
        published *= 1_500
        for first in range(0, len(published), 100):
            producer.publish_many(published[first : first + 100])
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith(f"dafka: store at {tmp_path}: the disk is full or fails")
    with pytest.raises(NotAcknowledgedError) as missing:
        producer.flush(0.05)
    with Log(tmp_path) as log:
        acknowledged = len(published) - missing.value.count
        assert acknowledged <= log.end(TopicPartition("t", producer.address)) < len(published)
    # With room again the store continues.
    with Store(tmp_path, tower=tower) as store:
        producer.flush(PATIENCE_S)
        batches = store.log.read(TopicPartition("t", producer.address), 0, len(published))
        assert [v for batch in batches for v in batch.values] == published


def test_a_disk_that_fails_ends_a_store_in_the_application(
    store: Store, produce: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(batches: object) -> None:
        raise StoreError(store.log.directory, "the disk is full")

    monkeypatch.setattr(store.log, "write", refuse)
    producer = produce("t")
    producer.publish(b"0")
    with pytest.raises(StoreError, match="the disk is full"):
        store.wait(PATIENCE_S)
    with pytest.raises(NotAcknowledgedError):
        producer.flush(0.05)


@pytest.mark.parametrize("damage", ["garbage", "header", "foreign"])
def test_a_foreign_file_is_refused(tower: str, tmp_path: Path, damage: str) -> None:
    data = tmp_path / "data.mdb"
    if damage == "foreign":
        data.write_bytes(b"SQLite format 3\0" * 1_000)
    else:
        Store(tmp_path, tower=tower).close()
        whole = data.read_bytes()
        data.write_bytes(b"\xff" * len(whole) if damage == "garbage" else bytes(8_192) + whole)
    with pytest.raises(StoreError, match=str(tmp_path)) as refused:
        Store(tmp_path, tower=tower)
    assert refused.value.directory == str(tmp_path)


def test_an_application_that_does_not_read_costs_bounded_memory(
    tower: str, store: Store, produce: Callable[..., Producer]
) -> None:
    consumer = Consumer(tower=tower, max_queued_records=10_000, max_queued_bytes=1 << 20)
    consumer.subscribe("t")
    producer = produce("t")
    tp = TopicPartition("t", producer.address)

    def knows_end(end: int) -> bool:
        return consumer.positions().get(tp, (0, 0))[1] == end

    most_records = 0
    for first in range(0, 200_000, 20_000):
        for start in range(first, first + 20_000, 1_000):
            producer.publish_many(values(1_000, start))
        producer.flush(PATIENCE_S)
        wait_until(partial(knows_end, first + 20_000))
        most_records = max(most_records, consumer._queue.size[0])
    # One turn of the loop may exceed the limit by what arrived since the one before: at most what
    # was published since the consumer was last seen to have heard of everything.
    assert most_records <= 10_000 + 20_000
    assert consumer._role.scheduler.budget.records == 0
    before = time.monotonic()
    consumer.close()
    assert time.monotonic() - before < 5


def test_a_slow_application_gets_everything_in_the_end(
    tower: str, store: Store, produce: Callable[..., Producer]
) -> None:
    with Consumer(tower=tower, max_queued_records=5_000) as consumer:
        consumer.subscribe("t")
        producer = produce("t")
        producer.publish_many(values(100_000))
        producer.flush(PATIENCE_S)
        found: list[bytes] = []
        begun = time.monotonic()
        for batch in consumer.batches(PATIENCE_S):
            assert batch.offset == len(found)
            found.extend(batch.values)
            if len(found) == 100_000:
                break
        assert found == values(100_000)
        # Records are fetched as soon as there is room, not a second later.
        assert time.monotonic() - begun < 15

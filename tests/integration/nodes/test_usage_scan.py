"""Limits of a store: it refuses what exceeds them, with a reason, and continues with room."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dafka_core import (
    NotAcknowledgedError,
    Producer,
    Store,
    StoreLimitError,
)
from dafka_core.config.topic_rules import parse_rules
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.nodes import maintenance
from dafka_core.nodes.maintenance import UsageScan, usage_at_start
from dafka_core.nodes.sockets import BURST_BYTES
from dafka_core.protocol.store_limits import StoreLimits, Usage
from dafka_core.protocol.store_role import StoreRole
from dafka_core.storage import Log
from dafka_core.storage.tables import Tables
from dafka_core.testing import wait_until
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.peers import PATIENCE_S

A, B = "A" * 32, "B" * 32

Open = Callable[..., Store]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "INTERVAL_S", 0.1)
    monkeypatch.setattr(maintenance, "SHARE", 0.5)


@pytest.fixture
def start(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Open:
    def make(name: str = "store", **options: Any) -> Store:
        return open_nodes.enter_context(Store(tmp_path / name, **{"tower": tower} | options))

    return make


def put(store: Store, topic: str, partition: str, count: int = 1, size: int = 1) -> None:
    tp = TopicPartition(topic, partition)
    batch = RecordBatch.of(tp, store.log.end(tp), [b"x" * size] * count)
    store.append_queue.put(batch).result(PATIENCE_S)


def refused(store: Store, limit: str) -> int:
    return store.role.limits.refused[limit]


def test_a_store_that_is_started_again_knows_what_it_has(start: Open) -> None:
    first = start()
    put(first, "t", A)
    first.close()
    again = start(max_topics=1)
    put(again, "t", B)
    with pytest.raises(StoreLimitError, match="option max_topics = 1") as error:
        put(again, "u", B)
    assert (error.value.option, error.value.owner) == ("max_topics", B)
    put(again, "__dafka.own", B)  # its own notes are no topic of anybody's


def test_a_refused_topic_is_accepted_after_a_deletion(
    start: Open, produce: Callable[..., Producer], caplog: pytest.LogCaptureFixture
) -> None:
    store = start(max_topics=1)
    put(store, "t", A)
    with caplog.at_level(logging.ERROR, "dafka.store"):
        producer = produce("u")
        producer.publish_many(values(100))
        wait_until(lambda: refused(store, "max_topics") > 2)
    with pytest.raises(NotAcknowledgedError):
        producer.flush(0.1)
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 1
    assert f"topic 'u', partition {producer.address}" in said[0]
    assert "max_topics = 1" in said[0]
    store.deletions.delete("t")
    producer.flush(PATIENCE_S)
    assert stored(store, "u", producer.address) == values(100)


def test_an_owner_at_its_limit_waits_until_retention_makes_room(
    start: Open, produce: Callable[..., Producer]
) -> None:
    store = start(max_key_bytes=20_000_000)
    full, other = produce("t", address=A), produce("t", address=B)
    sent = [b"%08d" % number * 1_000 for number in range(5_000)]
    for first in range(0, 5_000, 10):
        full.publish_many(sent[first : first + 10])
    wait_until(lambda: refused(store, "max_key_bytes") > 0)
    other.publish_many(values(100))
    other.flush(PATIENCE_S)
    with pytest.raises(NotAcknowledgedError):
        full.flush(0.5)
    held_bytes = store.log.statistics(TopicPartition("t", A))
    # One burst is accepted completely, but no second one.
    assert held_bytes is not None
    assert 20_000_000 <= held_bytes.size_bytes < 20_000_000 + BURST_BYTES < 40_000_000
    with pytest.raises(StoreLimitError, match="option max_key_bytes = 20000000"):
        put(store, "v", A)
    store.retention_control.replace(parse_rules("t=1MB"))
    full.flush(PATIENCE_S)
    assert store.log.end(TopicPartition("t", A)) == 5_000


def test_over_flight_the_limit_is_named(start: Open) -> None:
    store = start(max_partitions_per_topic=1)
    put(store, "t", A)
    tp = TopicPartition("t", B)
    batch = RecordBatch.of(tp, 0, [b"x"])
    with StoreClient(StoreLocation(store.address, store.locations)) as client:

        def put_over_flight() -> None:
            with client.put(tp, 0, timeout_s=PATIENCE_S) as stream:
                stream.write(batch.values.to_arrow())
                stream.finish(PATIENCE_S)

        with pytest.raises(StoreLimitError, match="max_partitions_per_topic = 1") as error:
            put_over_flight()
        assert (error.value.topic, error.value.limit) == ("t", 1)
    with pytest.raises(StoreLimitError):
        store.append_queue.stage(batch, A).result(PATIENCE_S)
    before = refused(store, "max_partitions_per_topic")
    commit = [StagedTransaction("t", B, A, 0, 1, 1)]
    with pytest.raises(StoreLimitError):
        store.append_queue.commit(commit).result(PATIENCE_S)
    assert refused(store, "max_partitions_per_topic") == before + 1


def at_once(function: Callable[[float], object]) -> None:
    function(0.0)


def scan_of(log: Log, limits: StoreLimits, found: list[Usage]) -> UsageScan:
    role = cast("StoreRole", SimpleNamespace(limits=limits, on_scan=found.append))
    return UsageScan(log, role, log.compressor((), 0), at_once)


def test_a_scan_counts_the_contents_of_the_log(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        tps = [TopicPartition(topic, p) for topic in "tu" for p in (A, B)]
        log.append([RecordBatch.of(tp, 0, [b"x" * 1_000]) for tp in tps])
        limits = StoreLimits({"max_key_bytes": 1_500})
        limits.add(tps[0])
        found: list[Usage] = []
        look = scan_of(log, limits, found)
        assert [len(list(look.steps())) for _ in range(2)] == [5, 0]
        (held,) = found
        assert (held.topics, held.owners) == ({"t": 2, "u": 2}, {A: 2, B: 2})
        assert held.seen == {tps[0]}
        assert all(2_000 < size < 2_500 for size in held.size_bytes.values())
        log.trim(tps[0], 1)
        assert usage_at_start(log, limits).topics == {"t": 1, "u": 2}


def test_a_damaged_block_lifts_no_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, bad, other = (TopicPartition(*each) for each in (("t", A), ("t", B), ("u", A)))

    def damage(tables: Tables) -> None:
        row = tables.row(bad)
        assert row is not None
        *_, first = tables.firsts(row.id, 0)
        tables.put_block(row.id, first, memoryview(b"no block"))

    with Log(tmp_path) as log:
        log.append([RecordBatch.of(tp, 0, [b"x" * 1_000_000]) for tp in (good, bad)])
        found: list[Usage] = []
        limits = StoreLimits({"max_key_bytes": 1_500_000})
        look = scan_of(log, limits, found)
        list(look.steps())
        log.append([RecordBatch.of(tp, 1, [b"x" * 1_000_000]) for tp in (bad, good)])
        log._env.write(damage)
        for offset in range(2):
            look._due = 0.0
            list(look.steps())
            log.append([RecordBatch.of(other, offset, [b"x"])])
    owners = [[held.size_bytes[each] // 1_000_000 for each in (A, B)] for held in found]
    assert owners == [[1, 1], [2, 1], [2, 1]]
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert f"one of them: {bad}: the block at offset 1 " in said

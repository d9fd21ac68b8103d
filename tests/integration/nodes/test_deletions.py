"""A topic that is deleted stays deleted, whoever was away."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Producer, Store, TopicDeletedError
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import packed
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.nodes.deletions import Deletions
from dafka_core.protocol import timing
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.nodes.content import values

Produce = Callable[..., Producer]
Start = Callable[..., Store]
ADDRESS, OTHER = "A" * 32, "B" * 32
TP, OTHER_TP = TopicPartition("t", ADDRESS), TopicPartition("t", OTHER)
DELETIONS = TopicPartition("__dafka.deletions", "C" * 32)


@pytest.fixture
def start(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Start:
    """Starts stores on directories of these names."""
    options: dict[str, Any] = {"tower": tower, "sync_interval_ms": 100, "flight_port": "off"}
    return lambda name: open_nodes.enter_context(Store(tmp_path / name, **options))


def publish(produce: Produce, count: int, address: str = ADDRESS, **options: Any) -> None:
    with produce("t", address=address, resume_missing="ignore", **options) as producer:
        producer.publish_many(values(count))


def held(store: Store, tp: TopicPartition = TP) -> tuple[int, int] | None:
    info = store.log.info(tp)
    return None if info is None else (info.earliest, info.end)


def free_pair() -> int:
    """A port that nobody has, before another one."""
    while True:
        with ExitStack() as stack, suppress(OSError):
            found = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            first: int = found.getsockname()[1]
            stack.enter_context(socket.create_server(("127.0.0.1", first + 1)))
            return first


def test_a_store_that_was_away_deletes_it_when_it_is_back(
    start: Start, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = start("one"), start("other")
    publish(produce, 100, acks=2)
    other.close()
    assert one.deletions.delete("t") == (1, 100)
    assert one.deletions.delete("unknown") == (0, 0)
    with caplog.at_level("INFO", "dafka.store"):
        other = start("other")
        wait_until(lambda: held(other) == (100, 100))
        wait_until(lambda: "topic 't' was deleted" in caplog.text)
    assert "gave up 100 records" in caplog.text
    assert "are kept here" not in caplog.text
    # The topic goes on behind what is gone, also after a restart.
    publish(produce, 20, acks=2, resume_deleted="ignore")
    other.close()
    other = start("other")
    assert held(other) == held(one) == (100, 120)


def test_one_that_had_less_of_it_goes_on_where_it_ends(
    start: Start, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "STORE_LOSS_S", 0.5)
    one, other = start("one"), start("other")
    publish(produce, 80, acks=2)
    other.close()
    publish(produce, 20)
    one.deletions.delete("t")
    other = start("other")
    wait_until(lambda: held(other) == (100, 100))


def test_what_comes_to_a_partition_that_has_ended_goes_too(start: Start) -> None:
    one, other = start("one"), start("other")
    wait_until(lambda: one.address in other.stores_here)

    def write(offset: int, count: int) -> None:
        for tp in (TP, OTHER_TP):
            other.append_queue.put(RecordBatch.of(tp, offset, values(count))).result(30)

    write(0, 10)
    wait_until(lambda: held(one) == held(one, OTHER_TP) == (0, 10))
    empty = TP._replace(partition="D" * 32)
    one.deletions.delete("t", {TP, empty})
    wait_until(lambda: held(other) == held(other, OTHER_TP) == (10, 10))
    write(10, 5)  # it goes on, as a gateway that has not heard of it
    other.append_queue.put(RecordBatch.of(empty, 0, values(5))).result(30)
    wait_until(lambda: one.log.end(TP) == one.log.end(OTHER_TP) == 15 and one.log.end(empty) == 5)
    for each in (one, other):
        each.deletions.apply()
        assert (held(each), held(each, OTHER_TP), held(each, empty)) == ((15, 15), (10, 15), (5, 5))


def test_what_comes_to_a_partition_that_has_ended_goes_though_nothing_was_there(
    start: Start,
) -> None:
    store = start("one")
    store.deletions.delete("t", {TP})
    store.append_queue.put(RecordBatch.of(TP, 0, values(5))).result(30)
    store.deletions.apply()
    assert held(store) == (5, 5)


def test_what_nobody_else_knew_of_is_kept_by_name(
    start: Start, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = start("one"), start("other")
    with produce("t", address=ADDRESS) as producer, produce("t", address=OTHER) as unknown:
        producer.publish_many(values(100))
        wait_until(lambda: held(one) == held(other) == (0, 100))
        one.close()
        producer.publish_many(values(20))
        unknown.publish_many(values(10))
    other.close()
    one = start("one")
    one.deletions.delete("t")
    other = start("other")
    wait_until(lambda: (held(other), held(other, OTHER_TP)) == ((100, 120), (0, 10)))
    kept = [(TP, 100, 120), (OTHER_TP, 0, 10)]
    words = [f"knew of the records from offset {start} to {end} (excl" for _, start, end in kept]
    wait_until(lambda: all(word in caplog.text for word in words))
    wait_until(lambda: (held(one), held(one, OTHER_TP)) == ((100, 120), (0, 10)))
    assert one.deletions.delete("t") == (2, 30)
    wait_until(lambda: (held(other), held(other, OTHER_TP)) == ((120, 120), (10, 10)))


def test_a_producer_that_comes_back_is_told(start: Start, produce: Produce) -> None:
    store = start("one")
    publish(produce, 10, OTHER)
    store.deletions.delete("t")
    publish(produce, 100)
    publish(produce, 100)  # another topic's deletion, or another partition's, is none of its own
    store.deletions.delete("t")
    with pytest.raises(TopicDeletedError, match="all records before offset 200: publish them"):
        publish(produce, 1)
    publish(produce, 5, resume_deleted="ignore")
    assert held(store) == (200, 205)
    publish(produce, 5)
    assert held(store) == (200, 210)


def test_a_producer_that_has_the_last_port_of_its_range_is_told(
    start: Start, produce: Produce, open_nodes: ExitStack
) -> None:
    store = start("one")
    publish(produce, 100)
    store.deletions.delete("t")
    first = free_pair()
    open_nodes.enter_context(socket.create_server(("127.0.0.1", first + 1)))
    with pytest.raises(TopicDeletedError, match="all records before offset 100: publish them"):
        publish(produce, 1, port=f"{first}-{first + 1}")


def test_only_topics_of_which_something_is_new_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Epoch.first(EpochId(1, 1, 1))
    looked: list[str | None] = []
    with Log(tmp_path) as log:
        partitions = log.partitions

        def counted(topic: str | None = None) -> list[PartitionInfo]:
            looked.append(topic)
            return partitions(topic)

        def deleted(start: int, *topics: str) -> None:
            infos = [PartitionInfo(each, ADDRESS, 0, 100, old.life) for each in topics]
            contents = [each for info in infos for each in packed([info], 1, 65_536)]
            log.append([RecordBatch.of(DELETIONS, start, contents)])

        def applied() -> list[str | None]:
            looked.clear()
            deletions.apply()
            return looked[1:]  # behind the topic of deletions

        deletions = Deletions(log, ADDRESS)
        deleted(0, "a", "b", "c")
        deletions.apply()
        monkeypatch.setattr(log, "partitions", counted)
        assert applied() == []
        log.append([replace(RecordBatch.of(TopicPartition("b", ADDRESS), 0, [b""]), epoch=old)])
        assert applied() == ["b"]
        assert applied() == ["b"]  # it has changed by what was given up
        assert applied() == []
        deleted(3, "d")
        assert applied() == ["d", "d"]  # and what of it is kept would be named


def test_what_comes_of_it_later_is_given_up_and_what_is_newer_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = Epoch.first(EpochId(1, 1, 1))
    newer = Epoch(2, 2, 1, 50, old.digest)
    infos = [PartitionInfo(*TP, 0, 100, old.life), PartitionInfo(*OTHER_TP, 0, 5, old.life)]
    with Log(tmp_path) as log:
        log.append([RecordBatch.of(DELETIONS, 0, [b"none", *packed(infos, log.now_us(), 65_536)])])
        deletions = Deletions(log, ADDRESS)
        deletions.apply()
        assert "not a deletion" in caplog.text
        # A store that was away has given the others what it had.
        log.append([replace(RecordBatch.of(TP, 0, values(50)), epoch=old)])
        deletions.apply()
        assert log.info(TP) == PartitionInfo(*TP, 50, 50, old.life)
        log.append([replace(RecordBatch.of(TP, 50, values(100)), epoch=newer)])
        deletions.apply()
        assert log.info(TP) == PartitionInfo(*TP, 50, 150, newer.life)
    with Log(tmp_path) as log:
        deletions = Deletions(log, ADDRESS)
        log.append([replace(RecordBatch.of(OTHER_TP, 0, values(9)), epoch=old)])
        deletions.apply()
        assert log.info(OTHER_TP) == PartitionInfo(*OTHER_TP, 5, 9, old.life)

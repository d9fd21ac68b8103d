"""A deleted topic stays deleted, whichever store was absent."""

import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import packed_deletions
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.nodes.maintenance import Deletions
from tests.simulation.scripts.script import Script, ScriptedStore, tp_of, values

TP, OTHER = tp_of("p"), tp_of("other")
DELETIONS = TopicPartition("__dafka.deletions", "C" * 32)
OLD = Epoch.first(EpochId(1, 1, 1))
ADDRESS = "A" * 32


@pytest.fixture
def stores(world: Script) -> tuple[ScriptedStore, ScriptedStore]:
    """Two stores with 100 records of a topic."""
    one, other = world.store("one"), world.store("other")
    one.append(TP, 0, 100)
    world.until(lambda: other.held(TP) == (0, 100))
    return one, other


def test_a_store_that_was_absent_deletes_the_topic_when_it_returns(
    world: Script, stores: tuple[ScriptedStore, ScriptedStore], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = stores
    other.stop()
    assert one.deletions.delete("t") == (1, 100)
    assert one.deletions.delete("unknown") == (0, 0)
    with caplog.at_level(logging.INFO, "dafka.store"):
        other.start()
        world.until(lambda: other.held(TP) == (100, 100))
    assert "topic 't' was deleted" in caplog.text
    assert "gave up 100 records" in caplog.text
    # The topic continues after what is deleted, also after a restart.
    one.append(TP, 100, 20)
    world.until(lambda: other.held(TP) == (100, 120))
    other.stop()
    other.start()
    other.deletions.apply()
    assert other.held(TP) == one.held(TP) == (100, 120)


def test_a_store_that_has_fewer_of_the_records_continues_at_their_end(
    world: Script, stores: tuple[ScriptedStore, ScriptedStore]
) -> None:
    one, other = stores
    other.stop()
    one.append(TP, 100, 20)
    one.deletions.delete("t")
    other.start()
    world.until(lambda: other.held(TP) == (120, 120))


def test_records_that_no_other_store_had_are_kept(
    world: Script, stores: tuple[ScriptedStore, ScriptedStore]
) -> None:
    one, other = stores
    one.stop()
    other.append(TP, 100, 20)
    other.append(OTHER, 0, 10)
    other.stop()
    one.start()
    one.deletions.delete("t")
    other.start()
    world.until(lambda: (other.held(TP), other.held(OTHER)) == ((100, 120), (0, 10)))
    world.until(lambda: (one.held(TP), one.held(OTHER)) == ((100, 120), (0, 10)))
    assert one.deletions.delete("t") == (2, 30)
    world.until(lambda: (other.held(TP), other.held(OTHER)) == ((120, 120), (10, 10)))


def test_later_records_of_ended_partitions_are_deleted(
    world: Script, stores: tuple[ScriptedStore, ScriptedStore]
) -> None:
    one, other = stores
    other.append(OTHER, 0, 100)
    world.until(lambda: one.held(OTHER) == (0, 100))
    empty = tp_of("empty")
    one.deletions.delete("t", {TP, empty})
    world.until(lambda: other.held(TP) == other.held(OTHER) == (100, 100))
    # A gateway that has not received the deletion continues each of them.
    for tp, start in ((TP, 100), (OTHER, 100), (empty, 0)):
        other.append(tp, start, 5)
        world.until(lambda: one.log.end(tp) == start + 5)  # noqa: B023
    for each in (one, other):
        each.deletions.apply()
        held = [each.held(tp) for tp in (TP, OTHER, empty)]
        assert held == [(105, 105), (100, 105), (5, 5)]


def test_records_of_the_deleted_life_are_deleted_whenever_they_arrive(
    world: Script, caplog: pytest.LogCaptureFixture
) -> None:
    newer = Epoch(2, 2, 1, 50, OLD.digest)
    infos = [PartitionInfo(*TP, 0, 100, OLD.life), PartitionInfo(*OTHER, 0, 5, OLD.life)]
    with world.log("a") as log:
        contents = [b"none", *packed_deletions(infos, log.now_us(), 65_536)]
        log.append([RecordBatch.of(DELETIONS, 0, contents)])
        deletions = Deletions(log, ADDRESS, cast("Any", None))
        deletions.apply()
        assert "not a deletion" in caplog.text
        # A store that was absent has sent the others its records.
        log.append([replace(RecordBatch.of(TP, 0, values(50)), epoch=OLD)])
        deletions.apply()
        assert log.info(TP) == PartitionInfo(*TP, 50, 50, OLD.life)
        log.append([replace(RecordBatch.of(TP, 50, values(100)), epoch=newer)])
        deletions.apply()
        assert log.info(TP) == PartitionInfo(*TP, 50, 150, newer.life)
    with world.log("a") as log:
        deletions = Deletions(log, ADDRESS, cast("Any", None))
        log.append([replace(RecordBatch.of(OTHER, 0, values(9)), epoch=OLD)])
        deletions.apply()
        assert log.info(OTHER) == PartitionInfo(*OTHER, 5, 9, OLD.life)


def test_a_resumed_producer_continues_after_deleted_records(world: Script) -> None:
    store = world.store()
    for life, count in (("", 100), ("again", 5)):
        producer = world.producer("t", life=life, resume=bool(life))
        producer.publish(count)
        producer.flush()
        producer.stop()
        if not life:
            store.deletions.delete("t")
    assert store.held(producer.tp) == (100, 105)


def test_only_topics_with_news_are_checked(world: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str | None] = []
    with world.log("a") as log:
        partitions, deletions = log.partitions, Deletions(log, ADDRESS, cast("Any", None))

        def counted(topic: str | None = None) -> list[PartitionInfo]:
            checked.append(topic)
            return partitions(topic)

        def deleted(start: int, *topics: str) -> None:
            infos = [PartitionInfo(each, ADDRESS, 0, 100, OLD.life) for each in topics]
            contents = [each for info in infos for each in packed_deletions([info], 1, 65_536)]
            log.append([RecordBatch.of(DELETIONS, start, contents)])

        def applied() -> list[str | None]:
            checked.clear()
            deletions.apply()
            return checked[1:]  # after the topic of deletions

        deleted(0, "a", "b", "c")
        deletions.apply()
        monkeypatch.setattr(log, "partitions", counted)
        assert applied() == []
        log.append([replace(RecordBatch.of(TopicPartition("b", ADDRESS), 0, [b""]), epoch=OLD)])
        assert applied() == ["b"]
        assert applied() == ["b"]  # it has changed by the deletion
        assert applied() == []
        deleted(3, "d")
        assert applied() == ["d"]

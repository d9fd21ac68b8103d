"""Queries that name topics, partitions or stores that are missing."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Producer, Store, Tower
from dafka_core.errors import ConfigError
from dafka_core.model.records import KnownStore, TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import wait_until
from dafka_spark.cluster import connections
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from tests.integration.cluster.stores import HeardOf, Serve
from tests.memory_reader import MemoryReader
from tests.unit.dafka_spark.streams import ALL, everything, planned, reader

FLIGHTS = TopicPartition("flights", "AB12")


@pytest.fixture
def source(serve: Serve) -> HeardOf:
    store = serve("one")
    for tp in (FLIGHTS, TopicPartition("bad\udcff", "AB1\n"), TopicPartition("sensors", "CD34")):
        store.add(tp, 5)
    return HeardOf([store])


def sizes(connect: connections.Connect, **given: str) -> dict[str, int]:
    """Return the number of records in the plan of a batch, by topic."""
    options = SourceOptions.of({"fetchtimeoutms": "20000", **given}).for_batch()
    tasks: list[Any] = DafkaBatchReader(full(), options, connect).partitions()
    return {each.topic: each.size for task in tasks for each in task.ranges}


BAD = r"bad\xff"


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("subscribe", "fligths", "no store has topic 'fligths' (did you mean 'flights'?)"),
        (
            "subscribe",
            "flights,x",
            rf"no store has topic 'x' (there are '{BAD}', 'flights', 'sensors')",
        ),
        (
            "assign",
            '{"flights": ["AB13"]}',
            "no store has partition AB13 of topic 'flights' (did you mean 'AB12'?)",
        ),
        ("assign", '{"sensor": ["CD34"]}', "no store has topic 'sensor' (did you mean 'sensors'?)"),
        ("subscribe", r"bda\xff", rf"no store has topic 'bda\xff' (did you mean '{BAD}'?)"),
        (
            "assign",
            json.dumps({BAD: [r"AB1\x0d"]}),
            rf"no store has partition AB1\x0d of topic '{BAD}' (did you mean 'AB1\x0a'?)",
        ),
    ],
)
def test_an_unknown_name_fails_a_batch(
    source: HeardOf, option: str, value: str, error: str
) -> None:
    """The error suggests the nearest name, as users write it."""
    with pytest.raises(ConfigError) as caught:
        sizes(source.connect, **{option: value})
    text = str(caught.value)
    assert error in text
    assert f"option {option!r}" in text
    assert "failOnMissingTopic = false reads it as empty" in text


def test_an_unknown_name_is_wrong_before_its_bounds(source: HeardOf) -> None:
    bounds = '{"fligths": {"AB12": 3}}'
    with pytest.raises(ConfigError, match="did you mean 'flights'"):
        sizes(source.connect, subscribe="fligths", startingOffsets=bounds)


def test_an_unknown_name_may_be_read_as_empty(source: HeardOf) -> None:
    found = sizes(source.connect, subscribe="flights,none", failOnMissingTopic="false")
    assert found == {"flights": 5}
    assert sizes(source.connect, subscribePattern="none.*") == {}


def test_an_error_lists_ten_names(serve: Serve) -> None:
    store = serve("one")
    for number in range(13):
        store.add(TopicPartition(f"{number:02}", "A"), 1)
    with pytest.raises(ConfigError, match=r"there are '00', .*'09' and 3 more\); failOn"):
        sizes(HeardOf([store]).connect, subscribe="flights")


def test_a_stream_waits_and_warns_once(source: HeardOf, caplog: pytest.LogCaptureFixture) -> None:
    stream = reader(source, subscribe="fligths")
    begin = stream.initialOffset()
    for _ in range(3):
        assert stream.latestOffset(begin, ALL) == begin
    assert [record.getMessage() for record in caplog.records] == [
        "no store has topic 'fligths' (did you mean 'flights'?); it is empty until a store has it"
    ]
    source.served[0].add(TopicPartition("fligths", "A"), 2)
    assert planned(stream, begin, stream.latestOffset(begin, ALL)) == {("A", 0, 2)}


@pytest.mark.parametrize(
    ("given", "ends"),
    [({"subscribe": "fligths"}, True), ({"assign": '{"flights": ["AB13"]}'}, False)],
)
def test_a_stream_that_ends_or_names_partitions_fails(
    source: HeardOf, given: dict[str, str], *, ends: bool
) -> None:
    strict, lenient = (
        reader(source, **given, failOnMissingTopic=each) for each in ("true", "false")
    )
    if ends:
        for stream in (strict, lenient):
            stream.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match=r"did you mean .*failOnMissingTopic = false"):
        everything(strict)
    assert everything(lenient)["topics"] == {}


def test_a_checkpointed_topic_may_only_be_away(source: HeardOf) -> None:
    stream = reader(source, subscribe="gone")
    stream.prepareForTriggerAvailableNow()
    begin = SourceOffset({TopicPartition("gone", "A"): 0}).as_json()
    assert stream.latestOffset(begin, ALL) == begin


def test_a_batch_names_the_unreachable_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only it has the last 100 of 400 records."""
    ports = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}
    with ExitStack() as stack:
        tower = stack.enter_context(Tower(**ports)).tower

        def start(name: str) -> Store:
            return stack.enter_context(Store(tmp_path / name, tower=tower))

        def size(**given: str) -> int:
            return sizes(connections.borrow_reader, tower=tower, subscribe="t", **given)["t"]

        first, second = start("1"), start("2")
        producer = stack.enter_context(Producer("t", tower=tower))
        tp = TopicPartition("t", producer.address)
        producer.publish_many([b"x"] * 300)
        wait_until(lambda: first.log.end(tp) == second.log.end(tp) == 300, "both have the records")
        first.close()
        producer.publish_many([b"x"] * 100)
        producer.close()
        second.close()
        start("1")
        assert size() == 300
        assert f"store {second.address} (tcp://127.0.0.1:" in caplog.text
        assert "is away: records that only it has are missing from this result" in caplog.text
        for least in ("all", "2"):
            with pytest.raises(ConfigError, match=f"'minStores' = .*: 1 store.*{second.address}"):
                size(minstores=least)
        assert size(minstores="1") == 300
        start("2")
        wait_until(lambda: size() == 400, "all records are found")
        caplog.clear()
        assert size(minstores="all") == 400
        assert second.address not in caplog.text


def test_a_stream_names_it_once(caplog: pytest.LogCaptureFixture) -> None:
    mesh = MemoryReader()
    mesh.add(TopicPartition("t", "P"), 5)
    mesh.away = [KnownStore("S" * 32, "tcp://h:1", 1)]
    stream = reader(mesh, fetch="mesh")
    start = stream.initialOffset()
    for _ in range(3):
        start = stream.latestOffset(start, ALL)
    assert caplog.text.count(f"store {'S' * 32} (tcp://h:1") == 1
    with pytest.raises(ConfigError, match="away: store SSSS"):
        everything(reader(mesh, fetch="mesh", minStores="all"))

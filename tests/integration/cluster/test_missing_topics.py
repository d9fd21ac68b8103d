"""Queries that name topics, partitions or stores that are missing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
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
from tests.unit.dafka_spark.streams import ALL, everything, reader
from tests.unit.dafka_spark.streams import planned as planned_parts

FLIGHTS = TopicPartition("flights", "AB12")


@pytest.fixture
def source(serve: Serve) -> HeardOf:
    store = serve("one")
    store.add(FLIGHTS, 5)
    store.add(TopicPartition("bad\udcff", "AB1\n"), 5)
    store.add(TopicPartition("sensors", "CD34"), 5)
    return HeardOf([store])


def planned(source: HeardOf, **given: str) -> list[Any]:
    options = SourceOptions.of({"fetchtimeoutms": "20000", **given}).for_batch()
    return DafkaBatchReader(full(), options, source.connect).partitions()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "fligths"}, "no store has topic 'fligths' (did you mean 'flights'?)"),
        (
            {"subscribe": "flights,x"},
            r"no store has topic 'x' (there are 'bad\xff', 'flights', 'sensors')",
        ),
        (
            {"assign": '{"flights": ["AB13"]}'},
            "no store has partition AB13 of topic 'flights' (did you mean 'AB12'?)",
        ),
        (
            {"assign": '{"sensor": ["CD34"]}'},
            "no store has topic 'sensor' (did you mean 'sensors'?)",
        ),
        (
            {"subscribe": r"bda\xff"},
            r"'bda\xff': no store has topic 'bda\xff' (did you mean 'bad\xff'?)",
        ),
        (
            {"assign": json.dumps({r"bad\xff": [r"AB1\x0d"]})},
            r"no store has partition AB1\x0d of topic 'bad\xff' (did you mean 'AB1\x0a'?)",
        ),
    ],
)
def test_an_unknown_name_fails_a_batch(
    source: HeardOf, given: dict[str, str], sentence: str
) -> None:
    """The error suggests the nearest name, as users write it."""
    with pytest.raises(ConfigError) as caught:
        planned(source, **given)
    assert sentence in str(caught.value)
    assert f"option {next(iter(given))!r}" in str(caught.value)
    assert "failOnMissingTopic = false reads it as empty" in str(caught.value)


def test_an_unknown_name_is_wrong_before_its_bounds(source: HeardOf) -> None:
    bounds = '{"fligths": {"AB12": 3}}'
    with pytest.raises(ConfigError, match="did you mean 'flights'"):
        planned(source, subscribe="fligths", startingOffsets=bounds)


def test_an_unknown_name_may_be_read_as_empty(source: HeardOf) -> None:
    assert planned(source, subscribe="fligths", failOnMissingTopic="false") == []
    [part] = planned(source, subscribe="flights,none", failOnMissingTopic="false")
    assert part.ranges[0].topic == "flights"
    assert planned(source, subscribePattern="none.*") == []


def test_an_error_lists_ten_names(serve: Serve) -> None:
    store = serve("one")
    for number in range(13):
        store.add(TopicPartition(f"{number:02}", "A"), 1)
    with pytest.raises(ConfigError, match=r"there are '00', .*'09' and 3 more\); failOn"):
        planned(HeardOf([store]), subscribe="flights")


def test_a_stream_waits_and_warns_once(source: HeardOf, caplog: pytest.LogCaptureFixture) -> None:
    stream = reader(source, subscribe="fligths")
    begin = stream.initialOffset()
    for _ in range(3):
        assert stream.latestOffset(begin, ALL) == begin
    assert [record.getMessage() for record in caplog.records] == [
        "no store has topic 'fligths' (did you mean 'flights'?); the query waits for it"
    ]
    source.served[0].add(TopicPartition("fligths", "A"), 2)
    assert planned_parts(stream, begin, stream.latestOffset(begin, ALL)) == {("A", 0, 2)}


@pytest.mark.parametrize(
    ("given", "ends"),
    [({"subscribe": "fligths"}, True), ({"assign": '{"flights": ["AB13"]}'}, False)],
)
def test_a_stream_that_ends_or_names_partitions_fails(
    source: HeardOf, given: dict[str, str], *, ends: bool
) -> None:
    def end(**more: str) -> dict[str, Any]:
        stream = reader(source, **given, **more)
        if ends:
            stream.prepareForTriggerAvailableNow()
        return everything(stream)

    with pytest.raises(ConfigError, match=r"did you mean .*failOnMissingTopic = false"):
        end()
    assert end(failOnMissingTopic="false")["topics"] == {}


def test_a_checkpointed_topic_may_only_be_away(source: HeardOf) -> None:
    stream = reader(source, subscribe="gone")
    stream.prepareForTriggerAvailableNow()
    begin = SourceOffset({TopicPartition("gone", "A"): 0}).as_json()
    assert stream.latestOffset(begin, ALL) == begin


ANY_PORTS = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}
TP = TopicPartition("t", "P")


class Stores:
    """Two stores; only the second has the last 100 of 400 records, and it is unreachable."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.tower = stack.enter_context(Tower(**ANY_PORTS)).tower
        self._stack = stack
        self._directory = directory
        first, second = self.start("1"), self.start("2")
        self.address = second.address
        with Producer("t", tower=self.tower) as producer:
            tp = TopicPartition("t", producer.address)
            producer.publish_many([b"x"] * 300)
            logs = first.log, second.log
            wait_until(lambda: all(log.end(tp) == 300 for log in logs), "what both have")
            first.close()
            producer.publish_many([b"x"] * 100)
        second.close()
        self.start("1")

    def start(self, name: str) -> Store:
        path = self._directory / name
        return self._stack.enter_context(Store(path, tower=self.tower))

    def planned(self, **given: str) -> int:
        """Return the number of rows in the plan of a batch."""
        options = SourceOptions.of({"tower": self.tower, "subscribe": "t", **given}).for_batch()
        tasks: list[Any] = DafkaBatchReader(full(), options, connections.borrow_reader).partitions()
        return sum(each.size for task in tasks for each in task.ranges)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with ExitStack() as stack:
        yield Stores(stack, tmp_path)


def test_a_batch_names_the_unreachable_store(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        assert stores.planned() == 300
    assert f"store {stores.address} (tcp://127.0.0.1:" in caplog.text
    assert "is away: what only it has is not in this result" in caplog.text
    for least in ("all", "2"):
        with pytest.raises(ConfigError, match=f"'minStores' = .*: 1 store.*{stores.address}"):
            stores.planned(minstores=least)
    assert stores.planned(minstores="1") == 300
    back = stores.start("2")
    caplog.clear()
    wait_until(lambda: stores.planned() == 400, "all that was written")
    caplog.clear()
    assert stores.planned(minstores="all") == 400
    assert back.address not in caplog.text


def test_a_stream_names_it_once(caplog: pytest.LogCaptureFixture) -> None:
    mesh = MemoryReader()
    mesh.add(TP, 5)
    mesh.away = [KnownStore("S" * 32, "tcp://h:1", 1)]
    stream = reader(mesh, fetch="mesh")
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        start = stream.initialOffset()
        for _ in range(3):
            start = stream.latestOffset(start, ALL)
    assert caplog.text.count(f"store {'S' * 32} (tcp://h:1") == 1
    with pytest.raises(ConfigError, match="away: store SSSS"):
        everything(reader(mesh, fetch="mesh", minStores="all"))

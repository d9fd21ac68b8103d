"""Arguments that mean nothing are refused by name, at once, whatever their type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from dafka_core import ConfigError, Consumer, EmbeddedCluster, Producer, Reader, Store
from dafka_core.model.records import TopicPartition
from tests.integration.nodes.peers import PATIENCE_S

TP = TopicPartition("t", "A" * 32)
NOBODY = "127.0.0.1:1:2"

WRONG: dict[str, Callable[[Any], object]] = {
    "topic": lambda value: Producer(value, tower=NOBODY),
    "address": lambda value: Producer("t", address=value, tower=NOBODY),
    "directory": lambda value: Store(value, tower=NOBODY),
    "start": lambda value: Consumer(start=value, tower=NOBODY),
    "host": lambda value: Reader(host=value, tower=NOBODY),
    "tower": lambda value: Reader(tower=value),
    "stores": EmbeddedCluster,
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("value", [5.5, b"x", [], {"t": 5}, True, -1])
def test_a_node_is_not_begun(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^option '{name}' = .*: .*must ") as refused:
        WRONG[name](value)
    assert refused.value.option == name


@pytest.mark.parametrize("start", [{"t": {"P": True}}, {5: {}}, {"": {}}, {"t": {"P": 1.5}}])
def test_an_invalid_start(start: Any) -> None:
    with pytest.raises(ConfigError, match="option 'start' = "):
        Consumer(start=start, tower=NOBODY)


def test_a_directory_without_a_name() -> None:
    with pytest.raises(ConfigError, match="option 'directory' = '': must name a directory"):
        EmbeddedCluster(directory="")


@pytest.mark.parametrize("offset", ["x", None, -1, 2.5, True, 10**30])
def test_an_invalid_offset(tower: str, offset: Any) -> None:
    with Consumer(tower=tower) as consumer, Reader(tower=tower) as reader:
        with pytest.raises(ConfigError, match="option 'offset' = "):
            consumer.seek(TP, offset)
        with pytest.raises(ConfigError, match="option 'end' = "):
            next(reader.read(TP, 0, offset, timeout_s=PATIENCE_S))


def test_names_in_the_place_of_lists_and_partitions(tower: str) -> None:
    tp: Any = "flights"
    with Consumer(tower=tower) as consumer, Reader(tower=tower) as reader:
        with pytest.raises(ConfigError, match="option 'topics' = 'flights': must be a list"):
            reader.partitions("flights", timeout_s=PATIENCE_S)
        with pytest.raises(ConfigError, match="option 'tp' = 'flights': must be a TopicPartition"):
            consumer.seek(tp, 0)
        with pytest.raises(ConfigError, match="option 'tp' = 'flights': must be a TopicPartition"):
            next(reader.read(tp, 0, 1, timeout_s=PATIENCE_S))


@pytest.mark.parametrize("forever_s", [math.inf, 1e300])
def test_a_wait_may_be_for_ever(tower: str, forever_s: float) -> None:
    with Consumer(tower=tower) as consumer:
        consumer.subscribe("t")
        with Producer("t", tower=tower, close_timeout_s=0) as producer:
            producer.publish(b"x")
            record = consumer.poll(forever_s)
            assert record is not None
            with pytest.raises(Exception, match="1 records are not acknowledged"):
                producer.close()

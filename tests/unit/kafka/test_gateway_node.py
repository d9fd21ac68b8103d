"""The parts that features of a gateway share, and its options."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_kafka.gateway_node import Complaints, GatewayNode, Room
from dafka_kafka.options import KafkaOptions, Limits


def test_work_that_takes_long_is_done_in_another_thread() -> None:
    nothing: Any = None
    options = SimpleNamespace(keys=None)
    store: Any = SimpleNamespace(endpoints={}, options=options, log=None, address="A")
    registry: Any = SimpleNamespace(log=None)
    gateways: Any = SimpleNamespace(own=SimpleNamespace(address="A"))
    with ThreadPoolExecutor(1, "beside") as threads:
        node = GatewayNode(store, nothing, registry, gateways, threads)
        work = node.in_thread(lambda: threading.current_thread().name)
        assert asyncio.run(work).startswith("beside")


def test_who_finds_no_room_gets_it_in_turn() -> None:
    room, called = Room(10), list[str]()
    calls = {name: partial(called.append, name) for name in "abcd"}
    assert room.take(6, calls["a"])
    assert not room.take(6, calls["b"])
    assert not room.take(1, calls["c"])  # not before b
    assert not room.take(4, calls["d"])
    room.give_back(6)
    assert called == ["b", "c"]
    assert room.taken_bytes == 7
    room.give_back(1)
    assert called == ["b", "c", "d"]


def test_complaints_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    with caplog.at_level(logging.WARNING, "dafka.kafka"):
        for _ in range(1_000):
            complaints.note("oddities", "10.0.0.1", "why")
    assert complaints.counts == {"oddities": 1_000}
    assert [record.message for record in caplog.records] == [
        "Kafka: oddities, 1 times; last from 10.0.0.1: why"
    ]


def test_complaints_of_one_do_not_hide_those_of_another(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    with caplog.at_level(logging.WARNING, "dafka.kafka"):
        for user in ("alice", "bob", "alice"):
            complaints.note(
                "oddities", "10.0.0.1", user, of=user, again_s=0 if user == "bob" else 60
            )
        complaints.note("oddities", "10.0.0.1", "again", of="alice", again_s=0)
    assert complaints.counts == {"oddities": 4}
    assert [record.message.partition("oddities, ")[2] for record in caplog.records] == [
        "1 times; last from 10.0.0.1: alice",
        "1 times; last from 10.0.0.1: bob",
        "2 times; last from 10.0.0.1: again",
    ]


@pytest.mark.parametrize(
    "wrong", ["", ":9092", "::1", "a:b", "a:65536", "a b", "tcp://a:1", "9092:x"]
)
def test_what_is_no_place_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT, as"):
        KafkaOptions.build({"listen": wrong})


def test_what_is_large_may_take_longer() -> None:
    limits = Limits(arrival_s=10, slowest_bytes_per_s=100)
    assert (limits.patience_s(12), limits.patience_s(1_000)) == (10.12, 20)

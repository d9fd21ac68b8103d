"""Clients that hold a stream and stand still lose it; slow ones, and all others, do not."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import flight

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight import limits, server_context
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.requests import PutRequest
from dafka_core.flight.server_context import StreamWatch, WatchedStream
from dafka_core.flight.server_keys import Caller
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import BLOCKS, TP, Served, array, everything, put_all, total

IDLE_S = 1.5  # a busy machine may pause for a second
UNIX, TCP = 0, 1


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits short enough for a test."""
    monkeypatch.setattr(limits, "IDLE_S", IDLE_S)
    monkeypatch.setattr(limits, "SLOWEST_BYTES_S", float("inf"))
    monkeypatch.setattr(limits, "MAX_GETS", 4)
    monkeypatch.setattr(limits, "MAX_PUTS", 2)


@pytest.fixture
def serving(short: None, large: Path) -> Iterator[Served]:
    with Served(large) as served:
        yield served


def way_to(served: Served, way: int) -> StoreLocation:
    return (served.unix, served.tcp)[way]


def alive(served: Served) -> int:
    """Return the number of streams that still have a thread."""
    return len(served.service.context.watch.streams)


@pytest.mark.parametrize("way", [UNIX, TCP])
def test_gets_that_nobody_reads_let_others_in_and_end(serving: Served, way: int) -> None:
    held = [everything(serving.client(way_to(serving, way)), max_records=10) for _ in range(4)]
    for each in held:
        next(each)
    # It waits until the first one ends.
    assert total(everything(serving.client(way_to(serving, way)))) == BLOCKS * 200
    wait_until(lambda: alive(serving) == 0)
    assert serving.service.context.gets.free == 4
    for each in held:
        with pytest.raises(StoreUnreachableError):
            list(each)
    # A client whose connection was broken reconnects.
    assert total(everything(serving.client(way_to(serving, way)))) == BLOCKS * 200


def test_a_connection_on_which_a_stream_has_just_ended_is_not_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client may not have received the end yet."""
    broken: list[object] = []
    monkeypatch.setattr(server_context, "break_connections", lambda *given: broken.append(given))
    watch = StreamWatch()
    caller = Caller(SimpleNamespace(peer=lambda: "unix:", is_cancelled=lambda: False), None)
    idle = WatchedStream(watch, None, caller, "get")
    with WatchedStream(watch, None, caller, "get"):
        pass
    watch.on_idle(idle)
    assert not broken
    monkeypatch.setattr(server_context, "AGAIN_S", 0.0)
    watch.on_idle(idle)
    assert len(broken) == 1


@pytest.mark.parametrize("way", [UNIX, TCP])
def test_puts_that_send_nothing_let_others_in_and_end(serving: Served, way: int) -> None:
    client = serving.client(way_to(serving, way))
    held = [client.put(TopicPartition("u", f"P{n}"), 0, timeout_s=PATIENCE_S) for n in range(2)]
    for each in held:
        each.write(array(0, 1))
        each.wait_durable(1, timeout_s=PATIENCE_S)
    descriptor = flight.FlightDescriptor.for_command(PutRequest("u", "P3", 0).packed())
    with flight.connect(way_to(serving, way).locations[0]) as plain:
        writing, _ = plain.do_put(descriptor, VALUES_SCHEMA)  # no batch at all
        end = put_all(serving.client(way_to(serving, way)), BLOCKS * 200, array(0, 5))
        assert end == BLOCKS * 200 + 5
        wait_until(lambda: alive(serving) == 0)
        assert serving.service.context.puts.free == 2
        for each in held:
            with pytest.raises(StoreUnreachableError):
                each.finish(PATIENCE_S)
            each.close()
        with pytest.raises(flight.FlightError):
            writing.close()


def test_a_client_that_is_slow_and_alive_keeps_its_streams(serving: Served) -> None:
    client = serving.client()
    reading = everything(client, max_records=200)
    writing = client.put(TopicPartition("u", "P"), 0, timeout_s=PATIENCE_S)
    end, begun, got = 0, time.monotonic(), 0
    while time.monotonic() < begun + 3 * IDLE_S:
        # Several batches each time: some may wait in the client already.
        got += sum(len(next(reading).values) for _ in range(2))
        writing.write(array(end, end + 1))
        end += 1
        time.sleep(IDLE_S / 3)
    assert got + total(reading) == BLOCKS * 200
    assert writing.finish(PATIENCE_S) == end


def test_a_stream_that_shares_its_connection_with_a_living_one_gives_its_turn_up_alone(
    serving: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = everything(serving.client(serving.unix), max_records=10)
    next(idle)
    writing = serving.client(serving.unix).put(TopicPartition("u", "P"), 0, timeout_s=PATIENCE_S)
    end = 0
    begun = time.monotonic()
    while time.monotonic() < begun + 3 * IDLE_S or serving.service.context.gets.free < 4:
        writing.write(array(end, end + 1))
        end += 1
        writing.wait_durable(end, timeout_s=PATIENCE_S)
        time.sleep(IDLE_S / 5)
    assert alive(serving) == 2  # its thread lives as long as the connection
    with pytest.raises(StoreUnreachableError, match=r"get of topic 't', partition P was ended"):
        list(idle)
    assert writing.finish(PATIENCE_S) == end
    wait_until(lambda: alive(serving) == 0)


def test_when_too_many_are_parked_what_shares_their_connection_ends_too(
    serving: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PARKED", 1)
    idle = [everything(serving.client(serving.unix), max_records=10) for _ in range(2)]
    for each in idle:
        next(each)
    with pytest.raises(StoreUnreachableError):
        serving.client(serving.unix).wait(TP, 99_999, timeout_s=PATIENCE_S)
    wait_until(lambda: alive(serving) == 0)


def test_two_hundred_writers_have_their_turn(served: Served) -> None:
    client = served.client()
    context = served.service.context
    served.backend.open.clear()

    def write(number: int) -> int:
        tp = TopicPartition("w", f"P{number}")
        with client.put(tp, 0, timeout_s=PATIENCE_S) as writing:
            writing.write(array(0, 3))
            return writing.finish(PATIENCE_S)

    with ThreadPoolExecutor(200) as writers:
        ends = writers.map(write, range(200))
        # All of them wait before the first one can end.
        wait_until(lambda: context.puts.free == 0 and context.puts.waiting == 200 - limits.MAX_PUTS)
        served.backend.open.set()
        assert list(ends) == [3] * 200
    assert len(served.log.partitions("w")) == 200

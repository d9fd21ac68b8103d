"""A client of one store: connections, requests and errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core.errors import ClosedError, ConfigError, InvalidRequestError, StoreUnreachableError
from dafka_core.flight import limits, server_actions
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import (
    LARGEST,
    PARTITION,
    STORE,
    TOPIC,
    TP,
    Served,
    array,
    check,
    everything,
    read,
    wait_for_end,
)


def test_a_client_needs_a_location(served: Served) -> None:
    for locations in ((), ("grpc+unix:///nowhere",), ("http://a:1",), ("grpc://a",)):
        with pytest.raises(ConfigError, match="must have one like grpc://HOST:PORT"):
            StoreClient(StoreLocation(STORE, locations))


def test_the_socket_is_used_on_the_stores_machine_only(served: Served) -> None:
    unix, tcp = served.location.locations
    for location, expected in (
        (served.location, unix),
        (StoreLocation(STORE, (unix, tcp)), tcp),
        (StoreLocation(STORE, (unix, tcp), machine="another"), tcp),
        (StoreLocation(STORE, ("grpc+unix:///nowhere", tcp), machine=served.location.machine), tcp),
    ):
        with StoreClient(location) as client:
            client.describe(timeout_s=PATIENCE_S)
            assert client.uri == expected


def test_no_process_listens(directory: Path) -> None:
    with Served(directory) as served:
        location = served.location
    for dead in (
        location,
        StoreLocation(STORE, location.locations[1:]),
        StoreLocation(STORE, ("grpc://127.0.0.1:1",)),
        StoreLocation(STORE, ("grpc://no.such.host.invalid:1",)),
    ):
        with StoreClient(dead) as client:
            with pytest.raises(StoreUnreachableError):
                list(everything(client, timeout_s=5))
            with pytest.raises(StoreUnreachableError), client.put(TP, 0, timeout_s=5) as put:
                put.finish(5)
            with pytest.raises(StoreUnreachableError):
                client.heads(None, timeout_s=5)


def test_another_program_listens() -> None:
    import socketserver

    class Silent(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Silent) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            with (
                StoreClient(
                    StoreLocation(STORE, (f"grpc://127.0.0.1:{other.server_address[1]}",))
                ) as client,
                pytest.raises(StoreUnreachableError),
            ):
                client.heads(None, timeout_s=2)
        finally:
            other.shutdown()
            thread.join()


def test_a_restarted_store_is_found_again(directory: Path) -> None:
    with Served(directory) as first:
        first.extend(10)
        location = first.location
        client = StoreClient(location)
        assert client.heads(None, timeout_s=PATIENCE_S)[0].end == 10
    with Served(directory), client:
        # At its socket, which is unchanged; with a new session.
        wait_for_end(client, 10)
        assert client.describe(timeout_s=PATIENCE_S).session != location.session


def test_arguments_are_checked_at_once(served: Served) -> None:
    client = served.client()
    for member, size, says in (
        ("max_records", 0, "0: must be `int` >= 1"),
        ("max_bytes", 0, "0: must be `int` >= 1"),
        ("max_records", True, "True: must be `int`, got `bool`"),
        ("max_bytes", "1", "'1': must be `int`, got `str`"),
    ):
        with pytest.raises(InvalidRequestError, match=f"'{member}' = {says}"):
            read(client, 0, 1, **{member: size})
    with pytest.raises(
        InvalidRequestError, match="'ranges' = 1: must not be below start, which is 2"
    ):
        read(client, 2, 1)
    with pytest.raises(InvalidRequestError, match="'ranges' = -1"):
        read(client, -1, 1)
    with pytest.raises(InvalidRequestError, match="'ranges' = ''"):
        client.read(TopicPartition("", PARTITION), 0, 1, times=False, timeout_s=1, **LARGEST)


def test_what_cannot_be_asked_is_refused_before_it_is_sent(served: Served) -> None:
    asking = served.client()
    for wrong in (
        lambda: asking.heads([""], timeout_s=1),
        lambda: asking.heads([7], timeout_s=1),  # type: ignore[list-item]
        lambda: asking.offset_for_times([("t", "P")], timeout_s=1),  # type: ignore[list-item]
        lambda: asking.offset_for_times([("t", "P", 2**63)], timeout_s=1),
        lambda: asking.wait(TP, -1, timeout_s=1),
        lambda: asking.wait(TopicPartition("", "P"), 1, timeout_s=1),
    ):
        with pytest.raises(InvalidRequestError):
            wrong()
    with pytest.raises(InvalidRequestError, match=r"'timeout_s' = 3601: must be `float` <= 3600"):
        asking.wait(TP, 1, timeout_s=3_601)


def test_an_answer_that_is_none_is_the_stores_fault(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = served.client()
    questions: list[Callable[[], object]] = [
        lambda: asking.heads(None, timeout_s=PATIENCE_S),
        lambda: asking.offset_for_times([(TOPIC, PARTITION, 0)], timeout_s=PATIENCE_S),
        lambda: asking.wait(TP, 1, timeout_s=1),
        lambda: asking.transaction_states([TP], timeout_s=PATIENCE_S),
        lambda: asking.describe(timeout_s=PATIENCE_S),
        lambda: asking.stores(timeout_s=PATIENCE_S),
    ]
    for answer in (b"", b"[]", b"{}", b'{"v": 2}', b'{"v": 1, "heads": 3}', b'{"v": 1}', b"\xff"):
        monkeypatch.setattr(server_actions, "act", lambda *_, answer=answer: iter([answer]))
        for ask in questions:
            with pytest.raises(StoreUnreachableError, match="answer") as unreadable:
                ask()
            assert unreadable.value.store == STORE


def test_an_answer_about_transactions_that_is_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = served.client()
    for answer in (b"", b"[]", b"{}", b'{"v": 2}', b"\xff"):
        monkeypatch.setattr(server_actions, "act", lambda *_, answer=answer: iter([answer]))
        for ask in (asking.commit, asking.discard):
            with pytest.raises(StoreUnreachableError, match="answer"):
                ask([], timeout_s=PATIENCE_S)
    row = [5, 5, "", None]
    for transactions in (
        3,
        [3],
        [row[:3]],
        [[*row, 1]],
        [[5, 5, "", [1, 2]]],
        [["x", 5, "", None]],
        [],
    ):
        answer = json.dumps({"v": 1, "transactions": transactions}).encode()
        monkeypatch.setattr(server_actions, "act", lambda *_, answer=answer: iter([answer]))
        with pytest.raises(StoreUnreachableError, match="answer"):
            asking.transaction_states([TP], timeout_s=PATIENCE_S)


def test_a_closed_generator_ends_the_stream(served: Served) -> None:
    for stop in range(40_000, 400_001, 40_000):
        served.extend(stop)
    client = served.client()
    batches = [read(client, 0, 400_000, max_records=1_000) for _ in range(80)]
    for each in batches:  # more than the store serves at a time
        next(each)
        each.close()
        assert list(each) == []
    check(read(client, 0, 400_000), 0, 400_000)


def test_a_closed_client_ends_what_goes_on(large: Path) -> None:
    with Served(large) as served:
        client = served.client()
        stream = everything(client, max_records=10)
        next(stream)
        writing = client.put(TopicPartition("u", "P"), 0, timeout_s=PATIENCE_S)
        writing.write(array(0, 1))
        client.close()
        client.close()
        with pytest.raises(ClosedError):
            list(stream)
        with pytest.raises(StoreUnreachableError):
            writing.finish(5)
        writing.close()
        for ask in (
            lambda: client.heads(None, timeout_s=1),
            lambda: list(everything(client)),
            lambda: client.put(TP, 0, timeout_s=1),
        ):
            with pytest.raises(ClosedError, match="store's client is closed"):
                ask()
        wait_until(lambda: served.service.context.gets.free == limits.MAX_GETS)
        wait_until(lambda: served.service.context.puts.free == limits.MAX_PUTS)

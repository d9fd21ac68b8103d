"""Where a service listens, and what it leaves behind."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from dafka_core.errors import (
    ConfigError,
    DafkaError,
    DataLossError,
    FencedError,
    InvalidRequestError,
    OffsetConflictError,
    StoreError,
    StoreUnreachableError,
    TransactionExistsError,
)
from dafka_core.flight import flight_errors, limits, server
from dafka_core.flight.grpc_workarounds import CallDeadline, Watchdog, addresses_of
from dafka_core.flight.server import FlightService
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import Transaction
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import STORE, TP, Served


def service(served: Served, **options: Any) -> FlightService:
    given: dict[str, Any] = {"bind_host": "127.0.0.1", "port": 0, "socket_path": None}
    return FlightService(ServerContext(served.log, served.backend, STORE, dict), **given | options)


def test_it_listens_at_a_port_alone(served: Served) -> None:
    with service(served) as alone:
        assert alone.location.locations == (f"grpc://127.0.0.1:{alone.port}",)
        with StoreClient(alone.location) as client:
            assert client.describe(timeout_s=PATIENCE_S) == alone.location


def test_it_listens_at_a_port_that_is_named(served: Served) -> None:
    with service(served) as first:
        port = first.port
    with service(served, port=port) as second:
        assert second.port == port


def test_a_port_or_host_that_cannot_be_had_is_refused(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"cannot listen at 127\.0\.0\.1: .*in use; 0 lets"):
            service(served, port=port)
    with pytest.raises(ConfigError, match=r"cannot listen at 203\.0\.113\.1"):
        service(served, bind_host="203.0.113.1")
    with pytest.raises(ConfigError, match="cannot listen at"):
        service(served, bind_host="no.such.host.invalid")
    assert capfd.readouterr().err == ""


def test_a_socket_that_was_left_behind_is_replaced(served: Served) -> None:
    path = served.directory / "again.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with service(served, socket_path=str(path)) as again:
        location = StoreLocation(
            STORE, again.location.locations[:1], machine=served.location.machine
        )
        assert served.client(location).describe(timeout_s=PATIENCE_S) == again.location
    assert not path.exists()


def test_a_file_that_is_no_socket_stays(served: Served) -> None:
    path = served.directory / "again.sock"
    path.write_text("kept")
    with pytest.raises(ConfigError, match=f"cannot listen at grpc.unix://{path}"):
        service(served, socket_path=str(path))
    assert path.read_text() == "kept"


def test_a_session_that_cannot_be_written_ends_it(served: Served) -> None:
    (served.directory / "session.new").mkdir()
    path = served.directory / "again.sock"
    with pytest.raises(StoreError, match="file session"):
        service(served, socket_path=str(path))
    assert not path.exists()


def test_signals_are_left_alone(directory: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    got = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: got.append(threading.current_thread()))
    try:
        with Served(directory) as served:
            client = served.client()
            client.describe(timeout_s=PATIENCE_S)
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(lambda: got)
            client.describe(timeout_s=PATIENCE_S)
            now = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
            assert now == before
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert got == [threading.main_thread()]


def test_a_close_does_not_wait_for_ever(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A backend that never answers is left to itself."""
    monkeypatch.setattr(server, "CLOSE_TIMEOUT_S", 0.5)
    released = threading.Event()
    monkeypatch.setattr(served.backend, "wait", lambda *_: released.wait() and 0)
    client = served.client()
    threading.Thread(target=_wait, args=(client,), daemon=True).start()
    wait_until(lambda: served.service.context.waits.free == limits.MAX_WAITS - 1)
    before = time.monotonic()
    served.service.close()
    assert time.monotonic() - before < 5
    assert "do not end; they are left to themselves" in caplog.text
    released.set()
    wait_until(lambda: served.service.context.waits.free == limits.MAX_WAITS)


def _wait(client: StoreClient) -> None:
    with pytest.raises(StoreUnreachableError):
        client.wait(TP, 1, timeout_s=60)


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


def test_addresses_are_those_that_sockets_have() -> None:
    assert addresses_of("grpc://127.0.0.1:5") == {("127.0.0.1", 5)}
    assert addresses_of("grpc://[::1]:5") == {("::1", 5)}
    assert ("127.0.0.1", 5) in addresses_of("grpc://localhost:5")
    assert addresses_of("grpc+unix:///a/b") == {"/a/b"}
    assert addresses_of("grpc://no.such.host.invalid:5") == set()
    assert addresses_of("http://a") == set()


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (InvalidRequestError("start", -1, "is"), InvalidRequestError("start", -1, "is")),
        (InvalidRequestError("rows", ["é", 1], "is"), InvalidRequestError("rows", ["é", 1], "is")),
        (DataLossError("t", "P", 3, 9, "why"), DataLossError("t", "P", 3, 9, "why (store S)")),
        (
            DataLossError("t", "P", 3, None, "why"),
            DataLossError("t", "P", 3, None, "why (store S)"),
        ),
        (OffsetConflictError("t", "P", 3, 9), OffsetConflictError("t", "P", 3, 9)),
        # A request may be about many partitions; their names come as they are.
        (OffsetConflictError("é", "\udcff", 3, 9), OffsetConflictError("é", "\udcff", 3, 9)),
        (FencedError("u", "Q", "A" * 32), FencedError("u", "Q", "A" * 32)),
        (
            TransactionExistsError("u", "Q", Transaction(1, 2, 9)),
            TransactionExistsError("u", "Q", Transaction(1, 2, 9)),
        ),
        (flight_errors.UnavailableError("busy", "busy"), StoreUnreachableError("S", "busy")),
        (flight_errors.UnavailableError("closing", "end"), StoreUnreachableError("S", "end")),
        (DafkaError("broken"), StoreUnreachableError("S", "broken")),
        (KeyError("x"), StoreUnreachableError("S", "KeyError: 'x'")),
    ],
)
def test_errors_cross_with_their_facts(
    error: Exception, again: DafkaError, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "dafka.store"):
        sent = flight_errors.refusal(error)
    said = str(error).encode("ascii", "backslashreplace").decode()
    assert str(sent) == ("KeyError: 'x'" if isinstance(error, KeyError) else said)
    found = flight_errors.translated(sent, "S")
    assert type(found) is type(again)
    assert vars(found) == vars(again)


@pytest.mark.parametrize(
    "info", [b"", b"[]", b"{", b'{"v": 2}', b'{"v": 1, "error": "not-held"}', b"\xff", b"[" * 9_999]
)
def test_errors_without_facts_are_the_stores(info: bytes) -> None:
    error = flight.FlightServerError("a sentence", extra_info=info)
    assert vars(flight_errors.translated(error, "S")) == {"store": "S", "why": "a sentence"}


def test_a_wait_that_lasts_too_long_is_given_up_once() -> None:
    watchdog = Watchdog()
    given_up: list[float] = []
    with CallDeadline(watchdog, 60, lambda: given_up.append(time.monotonic())).start() as call:
        call.timeout_s = 0.5
        for _ in range(4):
            call.wait()
            time.sleep(0.15)
            call.go_on()
        time.sleep(0.6)  # nothing is waited for now
        assert not given_up
        call.wait()
        wait_until(lambda: given_up)
        time.sleep(0.2)
        assert len(given_up) == 1
        assert call.expired
    with CallDeadline(watchdog, 0.1, lambda: given_up.append(0)).start() as other:
        other.wait()
    time.sleep(0.2)
    assert len(given_up) == 1


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_the_watching_thread_ends_when_there_is_nothing_to_watch() -> None:
    watchdog = Watchdog()
    for _ in range(2):
        with CallDeadline(watchdog, 1, lambda: None).start():
            assert "dafka-flight-watch" in thread_names()
        wait_until(lambda: "dafka-flight-watch" not in thread_names())

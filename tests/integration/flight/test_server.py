"""Where a service listens, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import (
    ConfigError,
    StoreError,
    StoreUnreachableError,
)
from dafka_core.flight import limits, server
from dafka_core.flight.server import FlightService
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
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
    (served.directory / "session").unlink()
    (served.directory / "session").mkdir()
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

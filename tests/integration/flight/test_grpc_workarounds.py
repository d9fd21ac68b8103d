"""Sockets that are found and broken, forked processes, and waits that last too long."""

import contextlib
import errno
import gc
import os
import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from pyarrow import flight

from dafka_core.flight.grpc_workarounds import (
    LOST_MS,
    STALLED_S,
    CallDeadline,
    Watchdog,
    accepts,
    addresses_of,
    break_connections,
    find_lost_host,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import unix_location
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import Served, forked


def test_a_forked_process_is_told_to_start_anew(served: Served) -> None:
    client = served.client()
    client.describe(timeout_s=PATIENCE_S)
    location, directory, log = served.location, served.directory, served.log

    def ask() -> object:
        return StoreClient(location).describe(timeout_s=5)

    assert "StoreUnreachableError" in forked(ask)
    assert "used Flight before it forked this process" in forked(ask)
    assert "ConfigError" in forked(lambda: Served(directory, log))
    assert "ForkedError" in forked(lambda: client.describe(timeout_s=5))
    assert client.describe(timeout_s=PATIENCE_S) == served.location


def test_a_forked_process_does_not_collect_what_was_garbage_before() -> None:
    collected: list[int] = []

    class Garbage:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            collected.append(os.getpid())

    def collect() -> object:
        gc.collect()
        return collected

    gc.disable()
    try:
        Garbage()
        assert forked(collect) == "[]"
    finally:
        gc.enable()
    gc.collect()
    assert collected == [os.getpid()]


def test_addresses_are_those_that_sockets_have() -> None:
    assert addresses_of("grpc://127.0.0.1:5") == {("127.0.0.1", 5)}
    assert addresses_of("grpc://[::1]:5") == {("::1", 5)}
    assert ("127.0.0.1", 5) in addresses_of("grpc://localhost:5")
    assert addresses_of("grpc+unix:///a/b") == {"/a/b"}
    assert addresses_of("grpc://no.such.host.invalid:5") == set()
    assert addresses_of("http://a") == set()


def test_a_socket_accepts_as_long_as_a_process_listens_at_it(directory: Path) -> None:
    path = str(directory / "s.sock")
    assert not accepts(unix_location(path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        assert accepts(unix_location(path))
    assert Path(path).exists()
    assert not accepts(unix_location(path))


def test_connections_that_lead_there_are_broken_and_no_others() -> None:
    with contextlib.ExitStack() as opened:
        servers = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        clients = [
            opened.enter_context(socket.create_connection(each.getsockname(), PATIENCE_S))
            for each in servers
        ]
        peers = [opened.enter_context(each.accept()[0]) for each in servers]
        host, port = servers[0].getsockname()
        break_connections(addresses_of(f"grpc://{host}:{port}"), socket.socket.getpeername)
        assert clients[0].recv(1) == b""
        peers[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"


def test_the_system_watches_connections_that_lead_there_and_no_others() -> None:
    with contextlib.ExitStack() as opened:
        servers = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        clients = [
            opened.enter_context(socket.create_connection(each.getsockname(), PATIENCE_S))
            for each in servers
        ]
        host, port = servers[0].getsockname()
        find_lost_host(f"grpc://{host}:{port}")
        watched = [each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in clients]
        assert watched == [1, 0]
        idle_s = clients[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert idle_s * 1000 < LOST_MS


def test_a_call_that_waits_for_long_says_so_once() -> None:
    said: list[bool] = []
    call = CallDeadline(Watchdog(), 60, lambda: None, lambda: said.append(True))
    now = time.monotonic()
    call.check(now + 2 * STALLED_S)  # it waits for nothing
    assert said == []
    call.wait()
    call.check(now)
    assert said == []
    call.check(now + 2 * STALLED_S)
    call.check(now + 3 * STALLED_S)
    assert said == [True]
    assert not call.expired


def test_a_call_that_has_expired_says_for_how_long_it_has_waited() -> None:
    given_up: list[bool] = []
    call = CallDeadline(Watchdog(), 5, lambda: given_up.append(True))
    error = flight.FlightServerError("a sentence")
    call.check(time.monotonic() + 6)  # it waits for nothing
    call.wait()
    call.check(time.monotonic())
    assert not call.expired
    assert vars(call.translated(error, "S")) == {"store": "S", "why": "a sentence"}
    call.check(time.monotonic() + 6)
    assert given_up == [True]
    assert vars(call.translated(error, "S")) == {"store": "S", "why": "no progress for 5 s"}


def test_a_watchdog_that_is_closed_gives_up_every_call_there_is() -> None:
    watchdog = Watchdog()
    given_up: list[int] = []
    with CallDeadline(watchdog, 60, lambda: given_up.append(1)).start():
        with CallDeadline(watchdog, 60, lambda: given_up.append(2)).start():
            pass
        watchdog.close()
    watchdog.close()
    assert given_up == [1]


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


def test_the_watching_thread_survives_what_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free file descriptor no connection can be found."""
    watchdog = Watchdog()
    given_up: list[int] = []

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fail)
        lost = partial(break_connections, {"/a"}, socket.socket.getpeername)
        with CallDeadline(watchdog, 0, lost).start() as call:
            call.wait()
            wait_until(lambda: call.expired)
            with CallDeadline(watchdog, 0, lambda: given_up.append(1)).start() as other:
                other.wait()
                wait_until(lambda: given_up)


def test_a_watching_thread_that_cannot_start_is_started_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watchdog = Watchdog()
    given_up: list[int] = []

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            CallDeadline(watchdog, 0, lambda: None).start()
    with CallDeadline(watchdog, 0, lambda: given_up.append(1)).start() as call:
        call.wait()
        wait_until(lambda: given_up)

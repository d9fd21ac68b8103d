"""Waiting for a node, interrupted as Ctrl-C interrupts it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from dafka_core import Tower
from dafka_core.nodes.threads import NodeThread
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import ANY_PORTS

PATIENCE_S = 30.0


class Interrupted(BaseException):
    """The exception of the signal's handler."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Has a signal raise ``Interrupted`` in the main thread, in a moment, until it was raised."""
    raised = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if not raised.is_set():
            raised.set()
            raise Interrupted

    def send() -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not raised.wait(0.05):
            signal.pthread_kill(main, signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    yield sender.start
    sender.join(PATIENCE_S)
    signal.signal(signal.SIGUSR1, previous)


def test_a_thread_is_not_taken_for_ended_when_waiting_for_it_is_interrupted(
    interrupt: Callable[[], None],
) -> None:
    going = threading.Event()

    def run() -> None:
        going.wait(PATIENCE_S)

    thread = NodeThread("test", run)
    thread.start()
    interrupt()
    with pytest.raises(Interrupted):
        thread.join()
    assert not thread.join(0)
    going.set()
    assert thread.join(PATIENCE_S)


def test_a_thread_that_failed_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise Interrupted

    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    thread = NodeThread("test", fail)
    before = thread.started
    thread.start()
    assert thread.join(PATIENCE_S)
    assert (before, thread.started) == (False, True)
    wait_until(lambda: len(complaints) == 1)


def test_it_does_not_wait_for_itself() -> None:
    answers: list[bool] = []
    thread = NodeThread("test", lambda: answers.append(thread.join()))
    thread.start()
    assert thread.join(PATIENCE_S)
    assert answers == [False]


def test_a_tower_stops_after_waiting_for_it_was_interrupted(
    interrupt: Callable[[], None],
) -> None:
    tower = Tower(**ANY_PORTS)
    interrupt()
    with pytest.raises(Interrupted):
        tower.wait()
    assert not tower.wait(0)
    tower.close()
    assert tower.wait(0)
    ports = {"sub_address": tower.sub_port, "pub_address": tower.pub_port}
    again = Tower(**{name: f"tcp://127.0.0.1:{port}" for name, port in ports.items()})
    again.close()

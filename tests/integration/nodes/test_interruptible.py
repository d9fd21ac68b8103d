"""Ctrl-C at every moment of a call: it is Ctrl-C that is raised, and no lock stays behind."""

import contextlib
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import zmq

from dafka_core import (
    BackPressureError,
    ClosedError,
    Consumer,
    NodeFailedError,
    NoStoreError,
    NotAcknowledgedError,
    Producer,
    Reader,
    Store,
    Tower,
    TowerNotFoundError,
)
from dafka_core.model.envelope import closed
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.consumer import RecordQueue
from dafka_core.nodes.node import InterruptibleCondition, NodeThread
from dafka_core.protocol.consumer_role import ReaderRole
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Produce
from tests.integration.nodes.content import stored
from tests.integration.nodes.peers import ANY_PORTS

PATIENCE_S = 30.0
BRIEFLY_S = 0.01
MOMENTS_AT_LEAST = 5


class Interrupted(BaseException):
    """The exception of a signal's handler."""


def interrupted_at(moment: int, call: Callable[[], object]) -> bool:
    """Run ``call``, and raise ``Interrupted`` after ``moment`` calls within it.

    The interpreter checks for signals when a function begins and when one in C has returned, as it
    calls a profiler.  Returns False if the call ended before.
    """
    left = moment

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and argument is not sys.setprofile:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise Interrupted

    gc.disable()  # what is raised in one of its callbacks ends no call
    try:
        sys.setprofile(profile)
        call()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


def survives(call: Callable[[], object]) -> None:
    """Interrupt ``call`` at each possible moment; any other exception is a failure."""
    moment = 0
    while interrupted_at(moment, call):
        moment += 1
    assert moment >= MOMENTS_AT_LEAST


def fails(error: type[Exception], call: Callable[[], object]) -> Callable[[], None]:
    """Return ``call``, wrapped: it must end with an error after waiting in vain."""

    def run() -> None:
        with pytest.raises(error):
            call()

    return run


@pytest.fixture(scope="module")
def lone_tower() -> Iterator[Tower]:
    """A tower without any store: what waits for one waits in vain."""
    with Tower(**ANY_PORTS) as tower:
        yield tower


@pytest.fixture
def producer(lone_tower: Tower) -> Iterator[Producer]:
    producer = Producer(
        "t",
        tower=lone_tower.tower,
        max_unacked_records=1,
        publish_timeout_s=BRIEFLY_S,
        close_timeout_s=0.0,
    )
    producer.publish(b"never stored")
    yield producer
    with pytest.raises(NotAcknowledgedError):
        producer.close()


def test_flush(producer: Producer) -> None:
    survives(fails(NotAcknowledgedError, lambda: producer.flush(BRIEFLY_S)))


@pytest.mark.parametrize("publish", [Producer.publish, lambda to, value: to.publish_many([value])])
def test_publish(producer: Producer, publish: Callable[[Producer, bytes], int]) -> None:
    survives(fails(BackPressureError, lambda: publish(producer, b"no room")))
    assert producer.next_offset == 1


def test_an_interrupted_call_publishes_all_of_its_records_or_none(
    store: Store, produce: Produce
) -> None:
    producer, moment = produce("t"), 0
    while interrupted_at(moment, lambda: producer.publish_many([b"x"] * 3)):
        moment += 1
    assert moment >= MOMENTS_AT_LEAST
    producer.flush(PATIENCE_S)
    assert len(stored(store, "t", producer.address)) == producer.next_offset


@pytest.mark.parametrize("publish", [Producer.publish, lambda to, value: to.publish_many([value])])
def test_a_handler_closes_the_producer_that_it_has_interrupted(
    store: Store, produce: Produce, publish: Callable[[Producer, bytes], int]
) -> None:
    """The interrupted call holds the lock, or is about to take it."""
    producer = produce("t")
    publish(producer, b"before")

    def handle() -> int:
        producer.close()
        return 0

    producer.flush(PATIENCE_S)
    producer._clock.now_us = handle  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads, contextlib.suppress(ClosedError):
        threads.submit(publish, producer, b"interrupted").result(PATIENCE_S)
    assert producer.mesh.join(PATIENCE_S)
    assert len(stored(store, "t", producer.address)) == producer.next_offset
    with pytest.raises(ClosedError):
        publish(producer, b"after")


def test_the_end_of_the_process_waits_for_an_interrupted_producer(tower: str) -> None:
    program = (
        "import sys, threading\n"
        "from dafka_core import Producer\n"
        "producer = Producer('t', tower=sys.argv[1], close_timeout_s=0.0)\n"
        "producer._clock.now_us = lambda: producer.close() or 0\n"
        "producer.publish(b'never stored')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, tower], capture_output=True, check=False)
    assert (ended.returncode, b"1 records are not acknowledged" in ended.stderr) == (1, True)


def test_poll(lone_tower: Tower) -> None:
    with Consumer(tower=lone_tower.tower) as consumer:
        survives(lambda: consumer.poll(BRIEFLY_S))
        survives(lambda: consumer.subscribe("t"))
        assert consumer.subscription == ["t"]


@pytest.mark.parametrize("content", [b"bare", closed(b"value", b"key")])
def test_interrupted_opening_of_a_batch_loses_no_record(content: bytes) -> None:
    tp, moment, was_interrupted = TopicPartition("t", "P"), 0, True
    while was_interrupted:
        queue = RecordQueue(lambda: None)
        queue.add([RecordBatch.of(tp, offset, [content] * 3) for offset in (0, 3)])
        was_interrupted = interrupted_at(moment, queue.next_records)
        found = [each.offset for _ in range(6) if (each := queue.next_record()) is not None]
        assert (found, queue.next_record()) == ([*range(6)], None), moment
        assert max(queue.size) <= 0  # no room is lost
        moment += 1
    assert moment >= MOMENTS_AT_LEAST


def test_a_handler_closes_a_consumer_whose_queue_is_in_use(
    lone_tower: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop drops records for another thread, and needs the lock of the interrupted one."""
    consumer = Consumer(tower=lone_tower.tower)
    begun = threading.Event()
    monkeypatch.setattr(consumer.role, "seek", lambda tp, offset: begun.set())
    with ThreadPoolExecutor(2) as threads:
        with consumer.queue._lock:
            seeking = threads.submit(consumer.seek, TopicPartition("t", "P"), 0)
            assert begun.wait(PATIENCE_S)
            threads.submit(consumer.close).result(PATIENCE_S)
        with contextlib.suppress(ClosedError):
            seeking.result(PATIENCE_S)


def test_asking_stores(lone_tower: Tower) -> None:
    with Reader(tower=lone_tower.tower) as reader:
        survives(fails(NoStoreError, lambda: reader.partitions(["t"], timeout_s=BRIEFLY_S)))


def interrupted_after(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wait that ends with ``Interrupted``."""

    def call(*arguments: Any) -> None:
        wait(*arguments)
        raise Interrupted

    return call


@pytest.mark.parametrize(
    "ask",
    [
        lambda reader: reader.partitions(["t"], timeout_s=PATIENCE_S),
        lambda reader: next(reader.read(TopicPartition("t", "P"), 0, 1, timeout_s=PATIENCE_S)),
    ],
)
def test_no_interrupted_question_or_read_is_continued(
    lone_tower: Tower, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Reader], object]
) -> None:
    with Reader(tower=lone_tower.tower) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(reader.mesh, "wait_until", interrupted_after(reader.mesh.wait_until))
            with pytest.raises(Interrupted):
                ask(reader)
        reader.mesh.call(lambda now: None)
        assert (reader.role.directory._questions, reader._queues) == ({}, {})


def test_waiting_for_a_thread() -> None:
    going = threading.Event()

    def run() -> None:
        going.wait(PATIENCE_S)

    thread = NodeThread("test", run)
    thread.start()
    survives(lambda: thread.join(BRIEFLY_S))
    assert not thread.join(0)
    going.set()
    assert thread.join(PATIENCE_S)


class Waiters:
    """Threads that wait for one change."""

    def __init__(self, condition: InterruptibleCondition) -> None:
        self.changed = False
        self.answers: list[bool] = []
        self._threads = [threading.Thread(target=self._wait, args=[condition]) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _wait(self, condition: InterruptibleCondition) -> None:
        self.answers.append(condition.wait_until(lambda: self.changed, PATIENCE_S))


def test_a_condition_wakes_all_waiting_threads() -> None:
    condition = InterruptibleCondition()
    waiters = Waiters(condition)
    moment = 0
    while interrupted_at(moment, condition.notify):
        moment += 1
    waiters.changed = True
    condition.notify()
    waiters.join()
    assert waiters.answers == [True] * 3


def test_no_condition_keeps_a_thread_that_has_waited() -> None:
    condition = InterruptibleCondition()
    assert not condition.wait_until(lambda: False, BRIEFLY_S)
    survives(lambda: condition.wait_until(lambda: False, BRIEFLY_S))
    assert condition._waiting == set()  # one left behind would be notified for ever


def test_a_wait_returns_what_was_found_or_raises() -> None:
    condition = InterruptibleCondition()
    assert condition.wait_until(lambda: "found", 0) == "found"
    assert condition.wait_until(list, 0) == []

    def fail() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        condition.wait_until(fail, None)
    assert condition._waiting == set()


def test_a_wait_ends_with_the_loop(lone_tower: Tower, monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(tower=lone_tower.tower) as reader:

        def ask() -> None:
            reader.partitions(timeout_s=PATIENCE_S)

        def fail(role: ReaderRole, now: float) -> None:
            raise OSError("broken")

        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(ask)
            monkeypatch.setattr(ReaderRole, "on_tick", fail)
            with pytest.raises(NodeFailedError, match="the reader has failed: OSError: broken"):
                asking.result(PATIENCE_S)


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


def test_a_tower_stops_after_waiting_for_it_was_interrupted(interrupt: Callable[[], None]) -> None:
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


def start_consumer() -> None:
    with contextlib.suppress(TowerNotFoundError):
        Consumer(tower="127.0.0.1:1:2", tower_timeout_s=0.01)


@pytest.mark.filterwarnings("ignore:Unclosed socket:ResourceWarning")
@pytest.mark.parametrize("start", [start_consumer, lambda: Tower(**ANY_PORTS).close()])
def test_an_interrupted_start_waits_for_no_socket(
    start: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes before pyzmq knows the first socket, the second one, and so on."""
    add, left, moments = zmq.Context._add_socket, 0, 0

    def interrupt(context: zmq.Context[Any], socket: Any) -> None:
        nonlocal left
        if threading.current_thread() is thread:
            left -= 1
            if left == 0:
                raise Interrupted
        add(context, socket)

    def run() -> None:
        nonlocal left, moments
        while left <= 0:
            moments += 1
            left = moments
            with contextlib.suppress(Interrupted):
                start()

    monkeypatch.setattr(zmq.Context, "_add_socket", interrupt)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), moments
    assert moments > 3

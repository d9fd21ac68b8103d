"""The base class of nodes, their threads, and how they end.

| event | action |
|---|---|
| ``close``, or the end of a ``with`` block | the node is closed, and errors are raised |
| the application drops an open node | a thread of its own closes it, since closing waits |
| a signal's handler closes a producer whose lock its thread holds | so, when the lock is free |
| the process ends | open producers are closed, side by side, and all such threads awaited |
| a child is forked | it forgets its parent's nodes |

An error that no caller can receive is logged, and sets the exit code: records may be lost.

An application's thread waits for a node's threads in ``InterruptibleCondition``.
``threading.Condition`` and ``threading.Event`` are unsuitable: if a signal's handler raises
(Ctrl-C) just after they have released their lock, or before they hold it again, they raise "release
unlocked lock" instead.  Here a waiting thread holds no lock, and waits in one C call.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import warnings
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import Final, ParamSpec, TypeVar
from weakref import WeakMethod, WeakSet

from dafka_core.errors import DafkaError
from dafka_core.system.closing import ProcessBound, check_process

P = ParamSpec("P")
T = TypeVar("T")


# -- threads that wait -----------------------------------------------------------------------------


def weakly(method: Callable[P, T], gone: T) -> Callable[P, T]:
    """Call a bound method without keeping its object alive; return ``gone`` without it."""
    reference = WeakMethod(method)

    def call(*arguments: P.args, **named: P.kwargs) -> T:
        found = reference()
        return gone if found is None else found(*arguments, **named)

    return call


class InterruptibleCondition:
    """Wakes waiting threads, which then check their condition again."""

    def __init__(self) -> None:
        self._waiting: set[Callable[[], None]] = set()  # the functions that wake them

    def notify(self) -> None:
        """Wake all waiting threads after a change, from any thread, with any locks held."""
        for wake in tuple(self._waiting):
            wake()

    def wait_until(self, condition: Callable[[], T], timeout_s: float | None) -> T:
        """Wait until ``condition()`` is true, at most ``timeout_s`` seconds (None: for ever).

        Returns the last result of ``condition``.  An error of ``condition`` ends the wait.
        """
        deadline = inf if timeout_s is None else time.monotonic() + timeout_s
        woken: SimpleQueue[None] = SimpleQueue()

        def wake() -> None:
            if woken.empty():  # otherwise the thread is about to check anyway
                woken.put(None)

        try:
            self._waiting.add(wake)
            while True:
                found = condition()
                remaining_s = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                if found or remaining_s <= 0:
                    return found
                with suppress(Empty):
                    woken.get(timeout=remaining_s)
        finally:
            self._waiting.discard(wake)

    async def wait_until_async(self, condition: Callable[[], T]) -> T:
        """Wait until ``condition()`` is true, without blocking the event loop.

        Other tasks run first, also if it is true at once: it may be so repeatedly.
        """
        # Applications without coroutines need not load it.
        import asyncio  # noqa: PLC0415

        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # A coroutine dropped when its event loop was closed waits no more.
            with suppress(RuntimeError):
                if not woken.is_set():
                    loop.call_soon_threadsafe(woken.set)

        try:
            self._waiting.add(wake)
            await asyncio.sleep(0)
            while not (found := condition()):
                await woken.wait()
                woken.clear()
            return found
        finally:
            self._waiting.discard(wake)


class NodeThread:
    """A daemon thread that reports its own end.

    ``Thread.join`` is unsuitable: before Python 3.13 an exception that ends the wait (Ctrl-C, a
    signal's handler) makes it consider the thread ended, and the node would be closed under its
    running loop.

    Attributes:
        started: whether it may run: also if an exception has ended the wait for its start.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self.started = self._ended = False
        self._run = run
        self._process = os.getpid()
        self._changed = InterruptibleCondition()
        self._thread = threading.Thread(target=self._run_to_end, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; only once."""
        self.started = True
        try:
            self._thread.start()
        except RuntimeError:  # the system has no room for another thread
            self.started = False
            raise

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread's end; return True if it has ended; in the thread itself False.

        Raises ForkedError in a forked child of its process.
        """
        check_process(self._thread.name, self._process)
        if self._thread is threading.current_thread():
            return False
        return self._changed.wait_until(lambda: self._ended, timeout_s)

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            self._ended = True
            self._changed.notify()


# -- nodes and their end ---------------------------------------------------------------------------

EXIT_FAILED: Final = 1

_AFTER_POOLS: Final = -100
"""Priority of our finalizer: after queues and pools, whose threads may still publish."""


class Node(ProcessBound):
    """A tower, producer, consumer, store or reader.

    No thread may keep it alive: a node dropped without ``close`` is closed, and Python emits a
    ResourceWarning, as for a file.
    """

    is_open = False  # until the constructor's end, and after ``close``

    @property
    def kind(self) -> str:
        """Return the kind of node: our class's name in lower case, also for subclasses."""
        kinds = type(self).__mro__
        return kinds[kinds.index(Node) - 1].__name__.lower()

    def end(self, *, started_s: float) -> None:
        """Close; the time limit of closing, if it has one, counts from ``started_s``."""
        self.close()

    def __del__(self) -> None:
        if self.is_open:
            with suppress(RuntimeError):  # the interpreter ends, and the threads with it
                close_later(self)
            text = f"unclosed {type(self).__name__}: use 'with', or close()"
            warnings.warn(text, ResourceWarning, 2, source=self)


_leaving: list[Node] = []  # nodes that are being closed, once for each thread that does so
_closed: Final = InterruptibleCondition()  # notified when one of them is closed
_ending: WeakSet[Node] = WeakSet()  # nodes to close at the end of the process
_lost: Final = threading.Event()  # set if records may be lost and no caller got an error
_exiting: Final = threading.Event()  # set when the process ends
_finalizers: list[object] = []


def close_at_exit(node: Node) -> None:
    """Close the node at the end of the process, if it is still open."""
    _ending.add(node)
    # ``multiprocessing`` ends its forked children without ``atexit``, and calls finalizers of its
    # own.  A killing signal, ``os._exit`` and ``os.exec`` call neither.
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None and not _finalizers:
        from multiprocessing.util import Finalize  # noqa: PLC0415 -- it is loaded here

        _finalizers.append(Finalize(None, _end_child, exitpriority=_AFTER_POOLS))


@contextmanager
def closing(node: Node) -> Iterator[None]:
    """Let the end of the process wait for this thread, which may be a daemon, to close the node."""
    _leaving.append(node)
    try:
        yield
    except DafkaError as error:
        if _exiting.is_set():  # the caller's thread may end before it can say so
            _note_loss(error)
        raise
    finally:
        _leaving.remove(node)
        _closed.notify()


def close_later(node: Node) -> None:
    """Close the node in a thread of its own, for which the end of the process waits."""
    _leaving.append(node)
    try:
        # Not a Thread: its ``start`` needs a lock that the interrupted thread may hold.
        start_new_thread(_close_leaving, (node,))
    except RuntimeError:
        _leaving.remove(node)
        raise


def ends_well(error: BaseException | None) -> bool:
    """Return True if a block or process that ends with ``error`` has not failed."""
    return error is None or (isinstance(error, SystemExit) and not error.code)


def _end(node: Node, started_s: float) -> None:
    try:
        node.end(started_s=started_s)
    except DafkaError as error:
        _note_loss(error)


def _note_loss(error: DafkaError) -> None:
    logging.getLogger("dafka").error("%s", error)
    _lost.set()


def _close_leaving(node: Node) -> None:
    try:
        _end(node, time.monotonic())
    finally:
        _leaving.remove(node)
        _closed.notify()


def _end_all() -> None:
    _exiting.set()
    started_s = time.monotonic()  # one timeout for all: their loops run in parallel
    for node in tuple(_ending):
        _end(node, started_s)
    _closed.wait_until(lambda: not _leaving, None)


def _end_process() -> None:
    """Run while daemon threads still do, so that producers can wait for acknowledgements."""
    _end_all()
    if _lost.is_set():
        # An ``atexit`` function cannot change the exit code.  The interpreter destroys attributes
        # of ``sys`` last, after all other functions and destructors.
        vars(sys)["_dafka_exit"] = _FailingExit()


def _end_child() -> None:
    _end_all()
    if _lost.is_set() and ends_well(sys.exc_info()[1]):
        raise SystemExit(EXIT_FAILED)


class _FailingExit:
    """Ends the process with an exit code when it is destroyed."""

    def __del__(self, _exit: Callable[[int], object] = os._exit, _code: int = EXIT_FAILED) -> None:
        _exit(_code)


def _forget_parents_nodes() -> None:
    for nodes in (_leaving, _ending, _finalizers, _lost, _exiting):
        nodes.clear()


atexit.register(_end_process)
os.register_at_fork(after_in_child=_forget_parents_nodes)

"""The base class of nodes, and how they end.

| event | action |
|---|---|
| ``close``, or the end of a ``with`` block | the node is closed, and errors are raised |
| the application drops an open node | a thread of its own closes it, since closing waits |
| the process ends | open producers are closed, side by side, and dropped nodes awaited |
| a child is forked | it forgets its parent's nodes |

An error that no caller can receive is logged, and sets the exit code: records may be lost.
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
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from dafka_core.errors import DafkaError
from dafka_core.nodes.threads import InterruptibleCondition
from dafka_core.system.closing import ProcessBound

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
            _dropped.add(self)
            try:
                # Not a Thread: its ``start`` needs a lock that the collected thread may hold.
                start_new_thread(_close_dropped, (self,))
            except RuntimeError:  # the interpreter ends, and the threads with it
                _dropped.discard(self)
            text = f"unclosed {type(self).__name__}: use 'with', or close()"
            warnings.warn(text, ResourceWarning, 2, source=self)


_dropped: set[Node] = set()
_closed: Final = InterruptibleCondition()  # notified when a dropped node is closed
_ending: WeakSet[Node] = WeakSet()  # nodes to close at the end of the process
_lost: Final = threading.Event()  # set if records may be lost and no caller got an error
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


def ends_well(error: BaseException | None) -> bool:
    """Return True if a block or process that ends with ``error`` has not failed."""
    return error is None or (isinstance(error, SystemExit) and not error.code)


def _end(node: Node, started_s: float) -> None:
    try:
        node.end(started_s=started_s)
    except DafkaError as error:
        logging.getLogger("dafka").error("%s", error)
        _lost.set()


def _close_dropped(node: Node) -> None:
    try:
        _end(node, time.monotonic())
    finally:
        _dropped.discard(node)
        _closed.notify()


def _end_all() -> None:
    started_s = time.monotonic()  # one timeout for all: their loops run in parallel
    for node in tuple(_ending):
        _end(node, started_s)
    _closed.wait_until(lambda: not _dropped, None)


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
    for nodes in (_dropped, _ending, _finalizers, _lost):
        nodes.clear()


atexit.register(_end_process)
os.register_at_fork(after_in_child=_forget_parents_nodes)

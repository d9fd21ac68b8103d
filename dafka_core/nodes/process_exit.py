"""What producers do when their process ends before they were closed.

The interpreter calls ``atexit`` functions when daemon threads still run, so producers can wait for
acknowledgements there.  ``multiprocessing`` ends its forked children without these functions; it
has finalizers of its own.  A signal that kills, ``os._exit`` and ``os.exec`` call neither.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable
from threading import Event
from typing import Final, Protocol
from weakref import WeakSet

from dafka_core.errors import DafkaError
from dafka_core.nodes.node import wait_for_dropped

EXIT_FAILED: Final = 1

_LAST: Final = -100
"""Of multiprocessing's finalizers: after those of its queues and pools, which may still publish."""

_log: Final = logging.getLogger("dafka")


class Ending(Protocol):
    """A producer, as far as the process's end concerns it."""

    def end(self, *, started_s: float) -> None:
        """Closes it, with a timeout that began at ``started_s``."""


_open: WeakSet[Ending] = WeakSet()
_lost: Final = Event()
"""Whether records may be lost without a caller who was told."""


def end_at_exit(producer: Ending) -> None:
    """Has the process's end close the producer, unless it is closed by then."""
    _open.add(producer)
    if (name := "multiprocessing.process") not in sys.modules:
        return
    if sys.modules[name].parent_process() is not None and not _finalizers:
        from multiprocessing.util import Finalize  # noqa: PLC0415 -- it is loaded here

        _finalizers.append(Finalize(None, _end_child, exitpriority=_LAST))


def report_lost(error: DafkaError) -> None:
    """Says that records may be lost, where no caller is there to be told; the exit code says so."""
    _log.error("%s", error)
    _lost.set()


_finalizers: list[Callable[[], object]] = []


def _end_all() -> None:
    started_s = time.monotonic()  # of all at once: their loops run side by side
    for producer in tuple(_open):
        try:
            producer.end(started_s=started_s)
        except DafkaError as error:
            report_lost(error)
    wait_for_dropped()


def _end_process() -> None:
    _end_all()
    if _lost.is_set():
        # An ``atexit`` function cannot change the exit code.  What the module ``sys`` refers to is
        # destroyed last of all, when other functions and destructors have had their turn.
        vars(sys)["_dafka_exit"] = _FailingExit()


def _end_child() -> None:
    _end_all()
    error = sys.exc_info()[1]  # with which the child ends
    fails = error is not None and not (isinstance(error, SystemExit) and not error.code)
    if _lost.is_set() and not fails:
        raise SystemExit(EXIT_FAILED)


class _FailingExit:
    """Ends the process with an exit code when it is destroyed."""

    def __del__(self, _exit: Callable[[int], object] = os._exit, _code: int = EXIT_FAILED) -> None:
        _exit(_code)


def _begin_anew() -> None:
    """In a forked child: the producers are its parent's."""
    _lost.clear()
    _open.clear()
    _finalizers.clear()


atexit.register(_end_process)
os.register_at_fork(after_in_child=_begin_anew)

"""Contexts that end with ``close``, forked children, a thread for checks, and patched threads."""

from __future__ import annotations

import _thread
import ctypes
import gc
import logging
import os
import queue
import threading
import time
from _queue import Empty, SimpleQueue  # the originals, which no library patches
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from dafka_core.errors import ConfigError, ForkedError


def check_threads() -> None:
    """Raise ConfigError if gevent or eventlet have patched this process's threads or queues."""
    start = _thread.start_new_thread
    starts = getattr(threading, "_start_new_thread", start), start
    for module, found in (*(("threading", each) for each in starts), ("queue", queue.SimpleQueue)):
        if not _is_real(found):
            why = (
                "is patched, and Dafka needs real threads and queues: run it in a process without "
                "the patch, or patch with gevent.monkey.patch_all(thread=False, queue=False) or "
                "eventlet.monkey_patch(thread=False)"
            )
            raise ConfigError(module, found.__module__, why, kind="module")


@cache
def _is_real(found: Any) -> bool:
    if isinstance(found, type) or found.__module__.startswith(("_thread", "gevent", "eventlet")):
        return found.__module__ in ("_thread", "_queue", "queue")
    started: SimpleQueue[None] = SimpleQueue()
    found(started.put, (None,))  # debuggers replace the function, too, and start real threads
    with suppress(Empty):
        started.get(timeout=3)  # a thread starts within milliseconds, a greenlet never
        return True
    return False


class Closing(ABC):
    """Base of contexts that close their object at the end."""

    @abstractmethod
    def close(self) -> None:
        """End.  Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._leave_with(error)

    def _leave_with(self, error: BaseException | None) -> None:
        self.close()


class ProcessBound(Closing):
    """A ``Closing`` with threads, sockets or files that only the process that made it can use.

    A forked child has the sockets, and not the threads: there ``check_process`` raises ForkedError,
    and ``close`` and destructors do nothing, since nothing of it is the child's.  It cannot be
    pickled.
    """

    process: int

    def __new__(cls, *_arguments: Any, **_options: Any) -> Self:
        """Register the object for forked children."""
        check_threads()
        made = super().__new__(cls)
        made.process = os.getpid()
        _made_here.add(made)
        return made

    def __init_subclass__(cls) -> None:
        for name in {"close", "_leave_with", "__del__"} & vars(cls).keys():
            setattr(cls, name, _not_in_children(vars(cls)[name]))

    def __enter__(self) -> Self:
        self.check_process()
        return super().__enter__()

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled, as its threads, sockets and files belong "
            "to this process; create one in the other process"
        )

    def check_process(self) -> None:
        """Raise ForkedError in a forked child of the process that made the object."""
        check_process(type(self).__name__, self.process)

    def on_forked(self) -> None:
        """Close, in a forked child, descriptors that would keep resources of its parent."""


CHECK_S: Final = 0.05
"""Interval of checks.  Their thread lasts this long after its last object, as calls follow each
other closely or not at all."""

LOG_INTERVAL_S: Final = 60.0  # of failed checks

_log: Final = logging.getLogger("dafka")


class Checkable(Protocol):
    """An object that is checked at intervals."""

    def check(self, now: float) -> None:
        """Do what is due; ``now`` is monotonic."""


C = TypeVar("C", bound=Checkable)


class CheckThread(Generic[C]):
    """Checks objects at an interval, in a daemon thread that lasts as long as there are some.

    It takes at most a ``share`` of a processor.
    """

    def __init__(self, name: str, share: float = 1.0) -> None:
        self._name, self._share = name, share
        self.reset()

    def reset(self) -> None:
        """Begin anew, without objects."""
        # Reentrant: the garbage collection may remove an object in a thread that has the lock.
        self._lock = threading.RLock()
        self._checked: set[C] = set()
        self._is_running = False

    @property
    def items(self) -> list[C]:
        """Return the objects."""
        with self._lock:
            return [*self._checked]

    def add(self, item: C) -> None:
        """Check an object from now on."""
        with self._lock:
            if not self._is_running:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._is_running = True
            self._checked.add(item)

    def remove(self, item: C) -> None:
        """Stop checking an object."""
        with self._lock:
            self._checked.discard(item)

    def _run(self) -> None:
        took_s, log_due = 0.0, 0.0
        while True:
            time.sleep(max(CHECK_S, took_s / self._share))
            with self._lock:
                items = self.items
                self._is_running = bool(items)
            if not items:
                return
            began_s = time.thread_time()
            for each in items:
                now = time.monotonic()
                try:
                    each.check(now)
                except Exception:  # noqa: BLE001 -- such as without a free file descriptor
                    if now >= log_due:
                        log_due = now + LOG_INTERVAL_S
                        _log.exception("%s: a check has failed", self._name)
            took_s = time.thread_time() - began_s


def check_process(what: str, owner: int) -> None:
    """Raise ForkedError if this process is not the owner of ``what``."""
    if owner != os.getpid():
        raise ForkedError(what, owner)


def _not_in_children(end: Callable[..., None]) -> Callable[..., None]:
    @wraps(end)
    def call(bound: ProcessBound, *arguments: Any) -> None:
        if bound.process == os.getpid():
            end(bound, *arguments)

    return call


_made_here: WeakSet[ProcessBound] = WeakSet()


def _leave_to_parent() -> None:
    # First of all: a collection in the child would destroy gRPC's garbage, and crash.
    gc.freeze()
    for each in tuple(_made_here):
        each.on_forked()
        # For ever: destructors of gRPC would wait for the parent's threads, also those at the
        # interpreter's end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    _made_here.clear()


os.register_at_fork(after_in_child=_leave_to_parent)

"""Contexts that end with ``close``, forked children, and the check for patched threads."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import queue
import threading
from _queue import Empty, SimpleQueue  # the originals, which no library patches
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cache
from typing import Any, Final, Self
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

    def __exit__(self, *error: object) -> None:
        self._leave_with(next((each for each in error if isinstance(each, BaseException)), None))

    def _leave_with(self, error: BaseException | None) -> None:
        self.close()


class ProcessBound(Closing):
    """A ``Closing`` with threads, sockets or files that only the process that made it can use.

    In a forked child, which has the sockets and not the threads, every use of it raises
    ForkedError; ``close`` does nothing there, since nothing of it is the child's.  It cannot be
    pickled.
    """

    def __new__(cls, *_arguments: Any, **_options: Any) -> Self:
        """Register the object for forked children."""
        check_threads()
        made = super().__new__(cls)
        _made_here.add(made)
        return made

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled, as its threads, sockets and files belong "
            "to this process; create one in the other process"
        )

    def on_forked(self) -> None:
        """Close, in a forked child, descriptors that would keep resources of its parent."""


def _refuse(inherited: object, name: str) -> Any:
    if name in _INHERITED or name.startswith("__"):
        return object.__getattribute__(inherited, name)
    kind = type(inherited)
    raise ForkedError(kind.__name__, int(kind.__dict__["owner"]))


def _do_nothing(*_arguments: object) -> None:
    pass


_INHERITED: Final = {
    "__getattribute__": _refuse,
    "__enter__": lambda inherited: _refuse(inherited, "enter"),
    # A ``with`` that was entered before the fork calls the class's own ``__exit__``.
    "_leave_with": _do_nothing,
    "__del__": _do_nothing,
    "close": _do_nothing,
}
"""Attributes of a parent's object in a forked child, for any class."""

_made_here: WeakSet[ProcessBound] = WeakSet()
_process: Final = [os.getpid()]


def _disown() -> None:
    # First of all: creating the classes below may start a collection, and gRPC's garbage would
    # crash the child, too.
    gc.freeze()
    (owner,), _process[:] = tuple(_process), [os.getpid()]
    for each in tuple(_made_here):
        each.on_forked()
        # For ever: destructors of gRPC would wait for the parent's threads, also those at the
        # interpreter's end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
        kind: Any = type(each)
        each.__class__ = type(kind)(kind.__name__, (kind,), {**_INHERITED, "owner": owner})
    _made_here.clear()


os.register_at_fork(after_in_child=_disown)

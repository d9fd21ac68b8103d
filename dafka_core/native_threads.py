"""Refuse processes that start greenlets in place of threads: nodes would wait for them for ever."""

from __future__ import annotations

import _thread
import queue
import threading
from _queue import Empty, SimpleQueue  # the originals, which no library patches
from contextlib import suppress
from functools import cache
from typing import Any

from dafka_core.errors import ConfigError


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

"""The base class of nodes: closing, also of a node that the application has dropped."""

from __future__ import annotations

import logging
import os
import warnings
from _thread import start_new_thread  # the original, also if it is patched later
from typing import Final

from dafka_core.errors import DafkaError
from dafka_core.nodes.threads import InterruptibleCondition
from dafka_core.system.closing import ProcessBound

_log: Final = logging.getLogger("dafka")


class Node(ProcessBound):
    """A tower, producer, consumer, store or reader.

    No thread may keep it alive: a node dropped without ``close`` is closed, in a thread of its own
    since closing waits, and Python emits a ResourceWarning, as for a file.
    """

    _is_open = False  # until the end of the constructor, and after ``close``

    @property
    def kind(self) -> str:
        """Return the kind of node: our class's name in lower case, also for subclasses."""
        kinds = type(self).__mro__
        return kinds[kinds.index(Node) - 1].__name__.lower()

    @property
    def is_open(self) -> bool:
        """Return True from the end of construction until ``close``."""
        return self._is_open

    def revive(self) -> None:
        """Prepare for ``close`` after the garbage collector has found the node."""

    def close_dropped(self) -> None:
        """Close the node for the application, without raising."""
        try:
            self.close()
        except DafkaError as error:
            _log.error("%s", error)

    def __del__(self) -> None:
        if self._is_open:
            _dropped.add(self)
            self.revive()
            try:
                start_new_thread(_close, (self,))
            except RuntimeError:  # the interpreter ends, and the threads with it
                _dropped.discard(self)
            text = f"unclosed {type(self).__name__}: use 'with', or close()"
            warnings.warn(text, ResourceWarning, 2, source=self)


_dropped: set[Node] = set()
_closed: Final = InterruptibleCondition()
os.register_at_fork(after_in_child=_dropped.clear)  # the parent's, as its threads are


def wait_for_dropped() -> None:
    """Wait until dropped nodes are closed."""
    _closed.wait_until(lambda: not _dropped, None)


def _close(node: Node) -> None:
    try:
        node.close_dropped()
    finally:
        _dropped.discard(node)
        _closed.notify()

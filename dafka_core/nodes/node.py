"""What nodes have in common: a life that ends, also when the application forgets to end it."""

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

    No thread may keep it alive: one that is dropped without ``close`` is closed, in a thread of
    its own since closing waits, and Python is given a ResourceWarning, as for a file.
    """

    _is_open = False
    """Set at the end of the constructor; ``close`` resets it."""

    @property
    def kind(self) -> str:
        """Which kind of node it is: the class of ours, in lower case, also of one derived of it."""
        kinds = type(self).__mro__
        return kinds[kinds.index(Node) - 1].__name__.lower()

    @property
    def is_open(self) -> bool:
        """Whether it is there: it was made, and not closed."""
        return self._is_open

    def revive(self) -> None:
        """Makes ready for ``close`` after the garbage collector has found it."""

    def close_dropped(self) -> None:
        """Closes it in place of the application, which hears of no error."""
        try:
            self.close()
        except DafkaError as error:
            _log.error("%s", error)

    def __del__(self) -> None:
        if not self._is_open:
            return
        _dropped.add(self)
        self.revive()
        try:
            start_new_thread(_close, (self,))
        except RuntimeError:  # the interpreter ends, and the threads with it
            _dropped.discard(self)
        name = type(self).__name__
        warnings.warn(f"unclosed {name}: use 'with', or close()", ResourceWarning, 2, source=self)


_dropped: set[Node] = set()
_closed: Final = InterruptibleCondition()


def wait_for_dropped() -> None:
    """Waits until those that were dropped are closed."""
    _closed.wait_until(lambda: not _dropped, None)


def _close(node: Node) -> None:
    try:
        node.close_dropped()
    finally:
        _dropped.discard(node)
        _closed.notify()


os.register_at_fork(after_in_child=_dropped.clear)  # the parent's, as its threads are

"""Writing a simulated disk, which takes its time."""

from __future__ import annotations

from collections.abc import Callable

from dafka_core.model.log_entries import LogEntry
from dafka_core.nodes.store_loop import Outcomes
from tests.simulation.disk import Disk
from tests.simulation.world import World


class SimulatedAppender:
    """``LogWriter`` over a disk that takes its time.

    Args:
        done: called when a group is on disk, some time later.
    """

    is_full = False

    def __init__(
        self, world: World, disk: Disk, done: Callable[[list[LogEntry], Outcomes], None]
    ) -> None:
        self._world = world
        self._disk = disk
        self._done = done
        self._group: list[LogEntry] | None = None
        self._dead = False
        self.append_s = 0.0

    @property
    def busy(self) -> bool:
        """Return True while a group is being written."""
        return self._group is not None

    def write(self, entries: list[LogEntry]) -> None:
        """Takes a group."""
        if self._group is not None:
            self._world.fail(self._disk.name, "writes while the appender is busy")
        self._group = entries
        self._world.after(self._world.random.random() * self.append_s, self._synced)

    def crash(self) -> None:
        """The machine is gone: what is not synced may be on disk whole, or is lost whole."""
        self._dead = True
        if self._group is None:
            return
        if self._world.chance(0.5):
            self._disk.write(self._group)
            self._world.fault("crash between sync and ACK", self._disk.name)
        else:
            self._world.fault("unsynced append lost", self._disk.name)

    def _synced(self) -> None:
        if self._dead or self._group is None:
            return
        entries, self._group = self._group, None
        self._done(entries, self._disk.write(entries))

"""What retention reads and writes of a log."""

from __future__ import annotations

from collections.abc import Iterable

from dafka_core.records import PartitionInfo
from dafka_core.storage.environment import Environment


class RetentionLog:
    """The part of a log that only retention uses."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    def trim_each(self, wanted: Iterable[tuple[PartitionInfo, int]]) -> list[int]:
        """Trims partitions, as ``Log.trim`` does, in one step: their earliest offsets from then on.

        A partition that has another producer since it was looked at remains as it is.
        """
        return self._env.write(lambda tables: [tables.trim_held(*each) for each in wanted])

"""What retention reads and writes of a log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dafka_core.names import octets_of, text_of
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.storage.environment import Environment
from dafka_core.storage.tables import Tables

RULES: Final = "retention"
"""The name of the note with the rules that were set while the store ran."""


class RetentionLog:
    """The part of a log that only retention uses."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    def trim_each(self, wanted: Iterable[tuple[PartitionInfo, int]]) -> list[int]:
        """Trims partitions, as ``Log.trim`` does, in one step: their earliest offsets from then on.

        A partition that has another producer since it was looked at remains as it is.
        """
        return self._env.write(lambda tables: [tables.trim_held(*each) for each in wanted])

    def trim_at_most(self, tp: TopicPartition, before: int) -> int:
        """Trims a partition, at most to its end; its earliest offset from then on."""

        def work(tables: Tables) -> int:
            row = tables.row(tp)
            return tables.trim(tp, min(before, row.end if row else 0))

        return self._env.write(work)

    def kept_rules(self) -> str | None:
        """The rules that were set while the store ran; None where none were."""
        with self._env.reading() as tables:
            kept = tables.notes.named(RULES).get(RULES)
        return None if kept is None else text_of(kept)

    def keep_rules(self, rules: str | None) -> None:
        """Keeps rules, in the place of those that were kept; None: there are none."""
        octets = None if rules is None else octets_of(rules)
        self._env.write(lambda tables: tables.notes.put({RULES: octets}))

"""What retention reads and writes of a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dafka_core.deletions import Deletion
from dafka_core.names import DELETIONS_TOPIC, octets_of, text_of
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.storage.environment import Environment
from dafka_core.storage.tables import Tables

RULES: Final = "retention"
"""The name of the note with the rules that were set while the store ran."""


_HANDLED: Final = "deletions "
"""How the notes begin that say which deletions the store has been told of, by partition."""


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

    def trim_deleted(self, deletions: Iterable[Deletion]) -> list[int]:
        """Trims what was deleted of partitions; their earliest offsets from then on."""

        def work(tables: Tables) -> list[int]:
            earliest = []
            for each in deletions:
                lives = tables.lives.of(each.tp, tables.row(each.tp))
                earliest.append(tables.trim(each.tp, each.reaches(lives)))
            return earliest

        return self._env.write(work)

    def deletions_handled(self) -> dict[TopicPartition, int]:
        """Up to where records of deletions have been done and told of, by partition."""
        with self._env.reading() as tables:
            found = tables.notes.named(_HANDLED)
        return {
            TopicPartition(DELETIONS_TOPIC, name.removeprefix(_HANDLED)): int(octets)
            for name, octets in found.items()
        }

    def keep_deletions_handled(self, handled: Mapping[TopicPartition, int]) -> None:
        """Keeps that, of the partitions that are given."""
        notes = {_HANDLED + tp.partition: b"%d" % end for tp, end in handled.items()}
        self._env.write(lambda tables: tables.notes.put(notes))

    def kept_rules(self) -> str | None:
        """The rules that were set while the store ran; None where none were."""
        with self._env.reading() as tables:
            kept = tables.notes.named(RULES).get(RULES)
        return None if kept is None else text_of(kept)

    def keep_rules(self, rules: str | None) -> None:
        """Keeps rules, in the place of those that were kept; None: there are none."""
        octets = None if rules is None else octets_of(rules)
        self._env.write(lambda tables: tables.notes.put({RULES: octets}))

"""What option ``archive`` adds to what the stores hold, and where times are in it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from dafka_core.archive import archive
from dafka_core.records import TopicPartition, merge_heads
from dafka_spark.options import SourceOptions
from dafka_spark.source.latest_offsets import OffsetsSnapshot
from dafka_spark.source.time_offsets import AskedTime, TimeOffsets


class ArchiveLook:
    """Looks at the archive, when stores have given up some records since the last look.

    Raises:
        ArchiveError: option ``archive`` names what is no archive.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._selection = options.selection
        self._directory = options.archive
        self._archive = archive.Archive(options.archive)
        self._held: archive.Held = {}
        self._earliest: dict[TopicPartition, int] | None = None

    def added_to(self, snapshot: OffsetsSnapshot) -> OffsetsSnapshot:
        """What stores and archive have together.

        Raises:
            ArchiveError: the archive is damaged, or the disk fails.
        """
        earliest = {tp: info.earliest for tp, info in snapshot.heads.items()}
        if earliest != self._earliest:
            # Stores give up nothing before it is archived: else there is nothing new to see.
            self._held = self._archive.held(self._selection.asked)
            self._earliest = earliest
        held = self._held
        infos = self._selection.of(archive.info_of(tp, files) for tp, files in held.items())
        heads = merge_heads([*snapshot.heads.values(), *infos])
        archived = {info.tp: held[info.tp] for info in infos}
        return snapshot._replace(heads=heads, archived=archived, archive=self._directory)


def add_archived_times(
    answers: TimeOffsets, asked: Mapping[TopicPartition, AskedTime], snapshot: OffsetsSnapshot
) -> None:
    """Adds to what the stores say of times what the archive does: the first offset of both counts.

    A partition of which a store that has some of it does not tell is left open.

    Raises:
        ArchiveError, DataLossError: a file of the archive cannot be read.
    """
    now_us = time.time_ns() // 1_000 + (answers.ahead_us or 0)
    for tp, each in asked.items():
        files = snapshot.archived.get(tp, ())
        if not files or (tp not in answers.found and snapshot.holders.get(tp)):
            continue
        time_us = now_us - each.us if each.is_ago else each.us
        found = archive.offset_of_time(snapshot.archive, tp, files, time_us)
        known = (found, answers.found.get(tp))
        answers.found[tp] = min((offset for offset in known if offset is not None), default=None)

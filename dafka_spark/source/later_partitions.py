"""Where a query that began at ``latest`` begins in partitions that it finds later.

Such a partition may be new, and then all of it was written since the query began.  Or it has a
history, and the store that has it was away: the query asked for no history.  The timestamps of its
records tell (docs/guarantees.md), so a store that has the partition is asked for the first record
since then, by its own clock: the driver's may differ from all others'.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Mapping
from typing import Final

from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SourceOptions
from dafka_spark.source.range_planner import Holders
from dafka_spark.source.time_offsets import AskedTime, offsets_of_times

MARGIN_US: Final = 60_000_000
"""How much older than the query's beginning a record may be that is read: clocks of producers and
stores that differ by a minute lose none (docs/guarantees.md)."""

_log = logging.getLogger("dafka_spark")


class LaterPartitions:
    """Finds the first offset of each partition that a query which began at ``latest`` reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._unanswered: dict[TopicPartition, Deadline] = {}

    def starts(
        self, begun_us: int, later: Mapping[TopicPartition, PartitionInfo], holders: Holders
    ) -> dict[TopicPartition, int]:
        """The first offsets of these partitions; of some there is none yet, as no store answers.

        ``begun_us`` is when the query began, in microseconds since the epoch UTC.
        """
        found = self._ask(begun_us - MARGIN_US, later, holders)
        for tp, info in later.items():
            if tp in found:
                self._unanswered.pop(tp, None)
                self._warn(begun_us, info, found[tp])
            elif tp not in holders or self._is_over(tp):
                # C stores know no timestamps.  To have too much is better than to lack something.
                found[tp] = info.earliest
                self._unanswered.pop(tp, None)
                _log.warning(
                    "%s appeared after the query began at 'latest', and no store can tell which of "
                    "its records are older: it is read from offset %d on",
                    tp,
                    info.earliest,
                )
        return found

    def _ask(
        self, since_us: int, later: Mapping[TopicPartition, PartitionInfo], holders: Holders
    ) -> dict[TopicPartition, int]:
        # The driver's clock may be wrong by hours: each store goes back from its own.
        ago = AskedTime(time.time_ns() // 1_000 - since_us, is_ago=True)
        timeout_s = min(self._options.fetch_timeout_s, timing.ANSWER_S)
        asked = dict.fromkeys(later, ago)
        answers = offsets_of_times(asked, later, holders, timeout_s, keys=self._options.keys)
        known = {id(answers.failures[tp]) for tp in answers.failures if tp in self._unanswered}
        for error in {id(each): each for each in answers.failures.values()}.values():
            _log.log(logging.DEBUG if id(error) in known else logging.WARNING, "%s", error)
        return {
            tp: later[tp].end if offset is None else offset for tp, offset in answers.found.items()
        }

    def _is_over(self, tp: TopicPartition) -> bool:
        """Whether a partition's stores have not answered for ``fetchTimeoutMs``."""
        deadline = self._unanswered.setdefault(tp, Deadline(self._options.fetch_timeout_s))
        return deadline.is_over

    def _warn(self, begun_us: int, info: PartitionInfo, first: int) -> None:
        if first == info.earliest:
            return
        begun = dt.datetime.fromtimestamp(begun_us // 1_000_000, dt.UTC).isoformat()
        _log.warning(
            "%s appeared after the query began at 'latest', at %s: %d records that were written "
            "before are left out, offsets %d to %d (exclusive)",
            info.tp,
            begun,
            first - info.earliest,
            info.earliest,
            first,
        )

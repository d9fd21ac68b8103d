"""Where a query starts and ends, as offsets of what the stores hold."""

from __future__ import annotations

from typing import Final, NamedTuple

from dafka_core.errors import ConfigError
from dafka_core.model.packed_offset import Positions
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import Bound
from dafka_spark.positions import AGO, EARLIEST, LATEST, OFFSET, TIME, Position, shown_time
from dafka_spark.source.latest_offsets import OffsetsSnapshot
from dafka_spark.source.time_offsets import (
    AskedTime,
    TimeOffsets,
    add_archived_times,
    offsets_of_times,
)

_UNTOLD: Final = (
    "no store can tell when the records of {} were published: only stores with Arrow Flight can, "
    "and with fetch = mesh none is asked; name an offset, or read from such a store"
)
_UNMATCHED: Final = (
    "{} has no record of {} or later; with startingOffsetsByTimestampStrategy = latest the query "
    "starts at the end of such partitions"
)


class Resolved(NamedTuple):
    """The offsets of a bound.

    ``since_us`` is the time, in microseconds since the epoch UTC by this machine's clock, that the
    bound says of all partitions, also of those that appear later; None where it says none.
    """

    offsets: Positions
    since_us: int | None = None


def resolved(
    bound: Bound, snapshot: OffsetsSnapshot, timeout_s: float, began_us: int = 0
) -> Resolved:
    """The offsets of every partition that is known; what is relative lies within each.

    ``began_us`` is when the query began, in microseconds since the epoch UTC.

    Raises:
        ConfigError: an offset lies beyond its partition's end, no store has a partition that is
            named, none can tell the time of its records, or none of these is as new as asked for.
        DafkaError: the stores that could tell do not answer.
    """
    heads = snapshot.heads
    for tp, position in bound.limit.partitions.items():
        _check_inside(bound, tp, position, heads.get(tp))
    wanted = {tp: bound.limit.of(tp, bound.unnamed) for tp in heads}
    asked = {tp: _asked(each) for tp, each in wanted.items() if each.is_time}
    answers = _told(bound, asked, snapshot, timeout_s)
    offsets = {}
    for tp, position in wanted.items():
        if position.is_time:
            offset = answers.found[tp]
            if offset is None and bound.fails_unmatched:
                why = _UNMATCHED.format(tp, shown_time(position.number))
                raise ConfigError(bound.option, bound.limit.text, why)
            offsets[tp] = heads[tp].end if offset is None else offset
        else:
            offsets[tp] = _offset(position, heads[tp])
    return Resolved(offsets, _since_us(bound.everywhere, began_us, answers))


def _told(
    bound: Bound,
    asked: dict[TopicPartition, AskedTime],
    snapshot: OffsetsSnapshot,
    timeout_s: float,
) -> TimeOffsets:
    """What the stores say of times; they are asked again until all that should have answered."""
    answers, waiting = TimeOffsets(), asked
    answer_s = min(timeout_s, timing.ANSWER_S)
    for _ in Deadline(timeout_s).attempts() if asked else ():
        now = offsets_of_times(waiting, snapshot.heads, snapshot.holders, answer_s, snapshot.keys)
        answers.found |= now.found
        answers.failures = now.failures
        answers.ahead_us = now.ahead_us if answers.ahead_us is None else answers.ahead_us
        waiting = {tp: each for tp, each in asked.items() if tp in now.failures}
        if not waiting:
            break
    add_archived_times(answers, asked, snapshot)
    untold = sorted(asked.keys() - answers.found.keys())
    if untold and untold[0] in answers.failures:
        raise answers.failures[untold[0]]
    if untold:
        raise ConfigError(bound.option, bound.limit.text, _UNTOLD.format(untold[0]))
    return answers


def _asked(position: Position) -> AskedTime:
    return AskedTime(position.number, is_ago=position.base == AGO)


def _check_inside(
    bound: Bound, tp: TopicPartition, position: Position, known: PartitionInfo | None
) -> None:
    end = known.end if known else 0
    if position.base == OFFSET and position.number > end:
        why = f"no store has {tp}"
        if known:
            why = f"{tp} has offsets {known.earliest} up to, not including, {known.end}"
        raise ConfigError(bound.option, position.number, why)


def _offset(position: Position, info: PartitionInfo) -> int:
    if position.base == EARLIEST:
        return min(info.earliest + position.number, info.end)
    if position.base == LATEST:
        return max(info.end - position.number, info.earliest)
    return position.number


def _since_us(everywhere: Position | None, began_us: int, answers: TimeOffsets) -> int | None:
    if everywhere is None or everywhere.base == EARLIEST:
        return None
    if everywhere.base == TIME:
        # By this machine's clock, which is what is compared with the stores' later on.
        return min(everywhere.number - (answers.ahead_us or 0), began_us)
    return began_us - (everywhere.number if everywhere.base == AGO else 0)

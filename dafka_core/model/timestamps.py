"""Timestamps of records: each record has one, which is the same for all readers at all times.

In Kafka's terms it is the *create time* if our producers stamp their records.  Records without a
stamp, from C producers and from clients that write at a store, have the *append time*: the first
store of ours that receives them stamps them.

Stamps ascend with the offsets: a record with an earlier stamp than the previous record's gets that
one's.  All stores have the same previous records, so their results agree.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import numpy as np

from dafka_core.model.records import TopicPartition
from dafka_core.model.values import Longs

MAX_AHEAD_US: Final = 60_000_000
"""Limit by which a stamp may be ahead of the receiving store's clock: later stamps of the partition
can't be below it.  Clocks that are set by a network differ by much less than this minute."""

ANY_US: Final = 2**63 - 1  # no timestamp is later
STEP_LASTS_US: Final = 60_000_000  # for a larger step of this machine's clock to be accepted
MAX_LOGGED: Final = 10_000  # partitions whose stamps are logged as too far ahead

_log: Final = logging.getLogger("dafka")


class WallClock:
    """This machine's clock in microseconds since the epoch UTC, without jumps to and fro.

    A clock that jumps by more than ``MAX_AHEAD_US``, and soon back again, would distort stamps in
    every partition.  So until a jump has lasted ``STEP_LASTS_US``, time continues as before it.
    """

    def __init__(
        self,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        # It counts the time that the machine was suspended, too.
        steady_us: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000,
    ) -> None:
        self._wall_us = wall_us
        self._steady_us = steady_us
        self._lead_us = wall_us() - steady_us()
        self._stepped_us: int | None = None

    def now_us(self) -> int:
        """Return the time."""
        steady_us = self._steady_us()
        lead_us = self._wall_us() - steady_us
        step_us = lead_us - self._lead_us
        if abs(step_us) <= MAX_AHEAD_US:
            self._lead_us, self._stepped_us = lead_us, None
        elif self._stepped_us is None:
            self._stepped_us = steady_us
            text = "the clock has jumped by %.0f s: ignored unless that lasts for %.0f s"
            _log.warning(text, step_us / 1e6, STEP_LASTS_US / 1e6)
        elif steady_us - self._stepped_us >= STEP_LASTS_US:
            _log.warning("the clock is still ahead by %.0f s: accepted now", step_us / 1e6)
            self._lead_us, self._stepped_us = lead_us, None
        return steady_us + self._lead_us


class AheadLog:
    """Logs, once for each partition, that its records were stamped too far ahead."""

    def __init__(self) -> None:
        self._logged: set[TopicPartition] = set()

    def say(self, ahead_us: dict[TopicPartition, int]) -> None:
        """Log by how much the accepted records of these partitions were ahead."""
        text = (
            "%s: its records are stamped %.0f s ahead of this store's clock; it keeps its own time "
            "for them.  Set the clock of their producer, or this one"
        )
        for tp in ahead_us.keys() - self._logged:
            if len(self._logged) < MAX_LOGGED:
                self._logged.add(tp)
                _log.warning(text, tp, ahead_us[tp] / 1e6)


def shown_time(time_us: int) -> str:
    """Format a time for messages; as a number if it is outside of the calendar."""
    try:
        moment = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{time_us // 1_000} ms after 1970"
    return moment.isoformat().replace("+00:00", "Z")


def stamped_once(count: int, time_us: int) -> Longs:
    """Return the times of ``count`` records with one timestamp."""
    return np.array([[count, time_us]], np.int64)


def taken_times(times: Longs | None, count: int, now_us: int, latest_us: int) -> Longs:
    """Return the times of records that a client writes at a store, for it and for all other stores.

    Records without a time, or with one below 0 or after ``latest_us``, get the store's time.
    """
    if times is None:
        return stamped_once(count, now_us)
    believed = (times[:, 1] >= 0) & (times[:, 1] <= latest_us)
    return np.column_stack((times[:, 0], np.where(believed, times[:, 1], now_us)))


def in_order(
    times: Longs | None, count: int, now_us: int, last_us: int, latest_us: int | None = None
) -> Longs:
    """Return the times under which a store keeps ``count`` records after one of ``last_us``.

    A record without a stamp, or with one after ``latest_us`` (by default ``MAX_AHEAD_US`` ahead of
    the store's clock), has the store's time ``now_us``.
    """
    latest_us = now_us + MAX_AHEAD_US if latest_us is None else latest_us
    if times is None or len(times) == 1:  # most batches are stamped once
        time_us = now_us if times is None else int(times[0, 1])
        return stamped_once(count, max(now_us if time_us > latest_us else time_us, last_us))
    stamps = np.where(times[:, 1] > latest_us, now_us, times[:, 1])
    return np.column_stack((times[:, 0], np.maximum.accumulate(stamps.clip(last_us))))

"""Timestamps of records: each record has one, which is the same for all readers at all times.

It is what the record's producer gave, in any order, past or future: Kafka's *create time*.  Our
producers stamp records once, and the stamps travel with the records.  Records without a stamp, from
C producers and from clients that write at a store, have the *append time*: the first store of ours
that receives them stamps them.  A store does so, too, with a stamp too far ahead of its clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dafka_core.model.records import TopicPartition

MAX_AHEAD_US: Final = 3_600_000_000
"""Default limit by which a timestamp may be ahead of the clock of a store that receives it: that of
Kafka's ``message.timestamp.after.max.ms``.  Records that are far ahead would not be deleted by age
for as long, and neither would later records of their partition."""

STEP_US: Final = 60_000_000
"""A larger step of a clock is no correction: clocks that are set by a network differ by less."""

STEP_LASTS_US: Final = 60_000_000  # for a larger step to be accepted
ANY_US: Final = 2**63 - 1  # no timestamp is later
MAX_LOGGED: Final = 10_000  # partitions whose stamps are logged as too far ahead

_log: Final = logging.getLogger("dafka")


def machine_us() -> int:
    """Return this machine's time in microseconds since the epoch UTC."""
    return time.time_ns() // 1000


def boot_us() -> int:
    """Return the microseconds since this machine's start, including those in suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class WallClock:
    """A producer's clock in microseconds since the epoch UTC, without jumps to and fro.

    Stores would replace timestamps of a clock that jumps ahead, each by its own time.  So until a
    jump by more than ``STEP_US`` has lasted ``STEP_LASTS_US``, time continues as before it.
    """

    def __init__(
        self, wall_us: Callable[[], int] = machine_us, steady_us: Callable[[], int] = boot_us
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
        if abs(step_us) <= STEP_US:
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

    def add(self, ahead_us: dict[TopicPartition, int]) -> None:
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

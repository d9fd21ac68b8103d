"""Timestamps of records: each record has one, which is the same for all readers at all times.

It is what the record's producer gave, in any order, past or future: Kafka's *create time*.  Our
producers stamp records once, and the stamps travel with the records.  Records without a stamp, from
C producers and from clients that write at a store, have the *append time*: the first store of ours
that receives them stamps them.  A store does so, too, with a stamp too far ahead of its clock.

The clocks of producers (``WallClock``) and stores (``StoreClock``) don't follow every jump.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
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
_store_log: Final = logging.getLogger("dafka.store")


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


EARLIEST_US: Final = 1_767_225_600_000_000
"""2026-01-01, before this software was released: an earlier clock is never believed."""

JUMP_US: Final = 3_600_000_000
"""The clock is in doubt if it is further ahead than this: records would be too old all at once."""

DOUBTED_US: Final = 3_600_000_000
"""The clock is believed after this time without another jump.  It is the time to set it right."""


class StoreClock:
    """A clock that is in doubt while it differs too much from the log, its earlier time or stores.

    Args:
        agreed_us: the newest right time in the log; None: the log is new.
        wall_us: the machine's clock, microseconds since the epoch UTC.
        steady_us: a clock that cannot be set.
        earliest_us: the clock is never believed before this time.
        max_ahead_us: by this much a producer's timestamp may be ahead of the clock.
    """

    def __init__(
        self,
        agreed_us: int | None,
        wall_us: Callable[[], int] | None = None,
        steady_us: Callable[[], int] = boot_us,
        earliest_us: int = EARLIEST_US,
        max_ahead_us: int = MAX_AHEAD_US,
    ) -> None:
        self._wall_us = wall_us or machine_us
        self._max_ahead_us = max_ahead_us
        self._steady_us = steady_us
        self._earliest_us = earliest_us
        self._lock = threading.RLock()
        self._is_new = agreed_us is None
        self._began_us = steady_us()
        agreed_us = self._wall_us() if agreed_us is None else agreed_us
        # By how much the right time, as far as known, is ahead of the steady clock.
        self._lead_us = max(agreed_us, earliest_us) - self._began_us
        self._is_start = True  # that time is the log's, which may have been closed for long
        self._doubted: tuple[int, int] | None = None  # since when, and the wall clock's lead then
        self._apart = ""  # the difference to another store's clock, if it is too large

    def now_us(self) -> int:
        """Return the time for records without a timestamp.

        While the clock is in doubt, this is the time from before plus the time passed.  But a clock
        ahead of a log that was just opened counts: the store may have been stopped.
        """
        wall_us, right_us = self._read_clocks()
        return max(wall_us, right_us) if self._is_start else right_us

    def latest_us(self) -> int:
        """Return the latest timestamp accepted from a producer."""
        wall_us, right_us = self._read_clocks()
        if self._doubted and self._is_start and wall_us < right_us:
            return ANY_US
        return max(wall_us, right_us) + self._max_ahead_us

    def doubt(self) -> str:
        """Return why the clock is in doubt, and nothing may be deleted by age; else ""."""
        wall_us, right_us = self._read_clocks()
        return self._why(wall_us - right_us) if self._doubted else self._apart

    def compare_stores(self, clocks_us: Mapping[str, int]) -> None:
        """Compare the clock with those of other stores, by their addresses."""
        wall_us, _ = self._read_clocks()
        store, other_us = max(
            clocks_us.items(), key=lambda each: abs(wall_us - each[1]), default=("", wall_us)
        )
        before, self._apart = self._apart, ""
        if abs(wall_us - other_us) > JUMP_US:
            than = f"the clock of store {store}"
            self._apart = _difference(wall_us - other_us, than)
            if not before:
                text = (
                    "%(why)s: nothing is deleted by age until both agree.  Synchronize them (NTP)"
                )
                _store_log.warning(text, {"why": self._apart}, extra={"event": "retention_clock"})

    def compare(self, time_us: int) -> int:
        """Compare the clock with a new record's, if the log is new; return the newest right one."""
        with self._lock:
            wall_us, _ = self._read_clocks()
            is_new = self._is_new and self._steady_us() - self._began_us < DOUBTED_US
            if is_new and not self._doubted and wall_us - time_us > JUMP_US:
                self._lead_us, self._is_start = time_us - self._steady_us(), True
            return self._read_clocks()[1]

    def _read_clocks(self) -> tuple[int, int]:
        """Return the wall clock's time, and the right one as far as known."""
        with self._lock:
            wall_us, steady_us = self._wall_us(), self._steady_us()
            lead_us, ahead_us = wall_us - steady_us, wall_us - steady_us - self._lead_us
            if -(STEP_US if self._is_start else JUMP_US) <= ahead_us <= JUMP_US:
                if self._doubted:
                    _store_log.warning("the clock is right again, and no longer in doubt")
                self._believe(lead_us)
            elif not self._doubted or abs(lead_us - self._doubted[1]) > STEP_US:
                self._doubted = steady_us, lead_us
                text = (
                    "%(why)s: it is in doubt until it is corrected, or unchanged for "
                    "%(doubted_s)d s.  Until then nothing is deleted by age, and no producer's "
                    "timestamp is replaced.  Synchronize the clock (NTP)"
                )
                facts = {"why": self._why(ahead_us), "doubted_s": DOUBTED_US // 1_000_000}
                _store_log.warning(text, facts, extra={"event": "retention_clock"})
            elif steady_us - self._doubted[0] >= DOUBTED_US and wall_us >= self._earliest_us:
                _store_log.warning(
                    "%s, without another jump: it is trusted now", self._why(ahead_us)
                )
                self._believe(lead_us)
            return wall_us, steady_us + self._lead_us

    def _believe(self, lead_us: int) -> None:
        self._lead_us, self._is_start, self._doubted = lead_us, False, None

    def _why(self, ahead_us: int) -> str:
        if self._wall_us() < self._earliest_us:
            return f"the store's clock is before {shown_time(self._earliest_us)}"
        than = "its time before it jumped"
        if self._is_start:
            than = "the time of its first records" if self._is_new else "the newest time in its log"
        return _difference(ahead_us, than)


def _difference(ahead_us: int, than: str) -> str:
    way = "ahead of" if ahead_us > 0 else "behind"
    return f"the store's clock is {abs(ahead_us) / 3.6e9:.1f} h {way} {than}"


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

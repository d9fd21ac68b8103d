"""A store's clock, and whether to go by it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from dafka_core.model.timestamps import (
    ANY_US,
    MAX_AHEAD_US,
    STEP_US,
    boot_us,
    machine_us,
    shown_time,
)

EARLIEST_US: Final = 1_767_225_600_000_000
"""2026-01-01, before this software was released: an earlier clock is never believed."""

JUMP_US: Final = 3_600_000_000
"""The clock is in doubt if it is further ahead than this: records would be too old all at once."""

DOUBTED_US: Final = 3_600_000_000
"""The clock is believed after this time without another jump.  It is the time to set it right."""

_log = logging.getLogger("dafka.store")


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
                _log.warning(text, {"why": self._apart}, extra={"event": "retention_clock"})

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
                    _log.warning("the clock is right again, and no longer in doubt")
                self._believe(lead_us)
            elif not self._doubted or abs(lead_us - self._doubted[1]) > STEP_US:
                self._doubted = steady_us, lead_us
                text = (
                    "%(why)s: it is in doubt until it is corrected, or unchanged for "
                    "%(doubted_s)d s.  Until then nothing is deleted by age, and no producer's "
                    "timestamp is replaced.  Synchronize the clock (NTP)"
                )
                facts = {"why": self._why(ahead_us), "doubted_s": DOUBTED_US // 1_000_000}
                _log.warning(text, facts, extra={"event": "retention_clock"})
            elif steady_us - self._doubted[0] >= DOUBTED_US and wall_us >= self._earliest_us:
                _log.warning("%s, without another jump: it is trusted now", self._why(ahead_us))
                self._believe(lead_us)
            return wall_us, steady_us + self._lead_us

    def _believe(self, lead_us: int) -> None:
        self._lead_us, self._is_start, self._doubted = lead_us, False, None

    def _why(self, ahead_us: int) -> str:
        if self._wall_us() < self._earliest_us:
            return f"the store's clock is before {shown_time(self._earliest_us)}"
        than = "the newest time in the log" if self._is_start else "its time before it jumped"
        return _difference(ahead_us, than)


def _difference(ahead_us: int, than: str) -> str:
    way = "ahead of" if ahead_us > 0 else "behind"
    return f"the store's clock is {abs(ahead_us) / 3.6e9:.1f} h {way} {than}"

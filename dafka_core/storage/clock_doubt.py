"""Whether to believe a clock by which things become too old, and go."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

JUMP_US: Final = 3_600_000_000
"""A clock that has gone ahead by so much more than time has passed since it was last looked at may
be wrong: by it, everything would be too old."""

DOUBTED_S: Final = 3600.0
"""For so long nothing goes by age then: people or a time service may set the clock right."""

_log = logging.getLogger("dafka.store")


class ClockDoubt:
    """Doubts a clock that has jumped ahead, for a while.

    Args:
        what: what goes by it, for the log.
        steady_s: seconds that pass, whatever the clock says.
    """

    def __init__(
        self,
        what: str,
        # It counts the time that the machine was suspended, too.
        steady_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._what = what
        self._steady_s = steady_s
        self._lead_us: int | None = None
        self._jumped_s: float | None = None

    def believes(self, now_us: int) -> bool:
        """Whether things may go by what the clock says now."""
        steady_s = self._steady_s()
        lead_us = now_us - int(steady_s * 1_000_000)
        ahead_us = lead_us - (lead_us if self._lead_us is None else self._lead_us)
        if ahead_us > JUMP_US:
            if self._jumped_s is None:
                self._jumped_s = steady_s
                facts = {
                    "what": self._what,
                    "hours": ahead_us / 3.6e9,
                    "doubted_s": DOUBTED_S,
                }
                text = (
                    "%(what)s: the clock has jumped ahead by %(hours).1f h: nothing goes by age "
                    "unless it stays so for %(doubted_s).0f s"
                )
                _log.warning(text, facts, extra={"event": "retention_clock"})
            if steady_s - self._jumped_s < DOUBTED_S:
                return False
        self._lead_us, self._jumped_s = lead_us, None
        return True

"""Where in its partitions a command begins and ends to read, as users write it."""

from __future__ import annotations

import datetime as dt
import re
import time
from dataclasses import dataclass
from typing import Final

from dafka_core.model.records import PartitionInfo

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_WORDS: Final = {
    EARLIEST: EARLIEST,
    "beginning": EARLIEST,
    "start": EARLIEST,
    LATEST: LATEST,
    "end": LATEST,
}
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_AGE: Final = re.compile(r"(?a)(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d|w)")
_OFFSET: Final = re.compile(r"(?a)([+-]?)(\d{1,19})")

OFFSET_FORMS: Final = (
    "must be earliest, latest, an offset, +N for N records behind the earliest, or -N for the last "
    "N of each partition"
)
TIME_FORMS: Final = "must be a time with a zone, as 2026-11-23T18:00:00Z, or how long ago, as 15m"


@dataclass(frozen=True)
class Position:
    """An offset, or one counted from where a partition begins (``base`` earliest) or ends."""

    base: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """What ``--offset`` says; ValueError for what is none."""
        if base := _WORDS.get(text.strip().lower()):
            return cls(base)
        match = _OFFSET.fullmatch(text.strip())
        if match is None:
            raise ValueError(OFFSET_FORMS)
        return cls({"": "", "+": EARLIEST, "-": LATEST}[match[1]], int(match[2]))

    def offset_in(self, info: PartitionInfo) -> int:
        """The offset in a partition; beyond its end where it is written so."""
        if self.base == EARLIEST:
            return info.earliest + self.number
        if self.base == LATEST:
            return max(info.end - self.number, info.earliest)
        return self.number


def parse_time_us(text: str) -> int:
    """A time in microseconds since 1970 UTC, from ISO 8601, or from how long ago it is.

    Raises:
        ValueError: it is neither.
    """
    word = text.strip()
    if match := _AGE.fullmatch(word.lower()):
        return int((time.time() - float(match[1]) * _UNITS_S[match[2]]) * 1e6)
    try:
        moment = dt.datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(TIME_FORMS) from None
    if moment.tzinfo is None:
        raise ValueError(f"{TIME_FORMS}; this one has no zone: Z at its end is UTC")
    since = moment - dt.datetime.fromtimestamp(0, dt.UTC)
    return since // dt.timedelta(microseconds=1)

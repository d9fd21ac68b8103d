"""Positions in partitions, times and durations, as users write them in options and commands.

Each parser raises ``ValueError`` with a sentence that names the valid values.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dafka_core.model.name_limits import nearest_name

if TYPE_CHECKING:
    from dafka_core.model.records import PartitionInfo

EARLIEST, LATEST, OFFSET, TIME, AGO = "earliest", "latest", "offset", "time", "ago"

MAX_US: Final = 2**62  # the latest time, in microseconds; stores take 64 bits
UNITS_US: Final = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 7 * 86_400_000_000,
}
"""Spark's units of time (``JavaUtils.timeStringAs``), and weeks."""

_DURATION: Final = re.compile(rf"(\d{{1,18}}(?:\.\d{{1,6}})?)\s*({'|'.join(UNITS_US)})?", re.ASCII)
_FROM_WORD: Final = re.compile(r"(earliest|latest)(?:\s*([+-])\s*(\d{1,18}))?", re.ASCII)
IS_DATE: Final = re.compile(r"\d{4}-\d\d", re.ASCII)

ISO_FORM: Final = "a time like 2026-01-01T00:00:00Z"
FORMS: Final = (
    'must be earliest, latest or JSON like {"topic": {"partition": 1000}}; or latest-100 '
    f"(records), earliest+100, -10m (before now; also s, h, d, w) or {ISO_FORM}"
)


class Position(NamedTuple):
    """A position in each partition.

    By ``base``, ``number`` counts records after the ``earliest`` or before the ``latest`` offset,
    or is an ``offset``, a ``time`` in microseconds since 1970 UTC, or (``ago``) microseconds before
    now by the stores' clocks.
    """

    base: str
    number: int = 0

    def offset_in(self, info: PartitionInfo) -> int:
        """Return the offset in a partition, for positions other than times.

        It may be after the end, except that of ``latest``.
        """
        if self.base == EARLIEST:
            return info.earliest + self.number
        if self.base == LATEST:
            return max(info.end - self.number, info.earliest)
        return self.number


AT_EARLIEST: Final = Position(EARLIEST)
AT_LATEST: Final = Position(LATEST)


def parse_position(text: str) -> Position:
    """Parse ``earliest``, ``latest``, these with a number of records, a duration ago or a time."""
    word = text.lower()
    if match := _FROM_WORD.fullmatch(word):
        base, sign, number = match[1], match[2], int(match[3] or 0)
        if sign and sign != {EARLIEST: "+", LATEST: "-"}[base]:
            raise ValueError(f"has no records: write {EARLIEST}+{number} or {LATEST}-{number}")
        return Position(base, number)
    if word.startswith("-") and (match := _DURATION.fullmatch(word[1:].strip())):
        if match[2] is None:
            raise ValueError(
                f"has no unit: write {LATEST}-{match[1]} for records before the end, or "
                f"-{match[1]}s for seconds before now"
            )
        return time_position(AGO, parse_duration_us(word[1:].strip()))
    if IS_DATE.match(text):
        return time_position(TIME, parse_moment_us(text))
    near = nearest_name(re.split(r"[+-]", word)[0], (EARLIEST, LATEST))
    raise ValueError(FORMS + (f"; did you mean {near!r}?" if near else ""))


def time_position(base: str, number_us: int) -> Position:
    """Return a position by time within the stores' limits."""
    if not 0 <= number_us <= MAX_US:
        raise ValueError(f"must be a time since 1970, at most {MAX_US // 1_000} ms after it")
    return Position(base, number_us)


def parse_duration_us(value: Any, unit: str = "") -> int:
    """Parse a duration such as ``15m``; ``unit`` applies to a number without one."""
    match = _DURATION.fullmatch(" ".join(str(value).split()).lower())
    if match is None or not (match[2] or unit):
        raise ValueError("must be a time like 500ms, 30s, 15m, 2h, 1d or 1w")
    return int(Decimal(match[1]) * UNITS_US[match[2] or unit])


def parse_time_us(text: str) -> int:
    """Parse a time, a date (its start in UTC), or an age, as microseconds since 1970 UTC."""
    word = text.strip()
    if re.fullmatch(r"\d{4}-\d\d-\d\d", word, re.ASCII):
        word += "T00:00Z"
    if IS_DATE.match(word):
        return parse_moment_us(word)
    try:
        return time.time_ns() // 1_000 - parse_duration_us(word)
    except ValueError:
        raise ValueError(f"must be {ISO_FORM}, a date, or an age like 15m") from None


def parse_moment_us(text: str) -> int:
    """Parse a time in ISO 8601 with its zone, as microseconds since 1970 UTC."""
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"must be {ISO_FORM} ({error})") from None
    if moment.tzinfo is None:
        # Spark does not pass spark.sql.session.timeZone to Python sources.
        raise ValueError("has no time zone: write Z at its end for UTC, or an offset like +01:00")
    return moment_us(moment)


def moment_us(moment: dt.datetime) -> int:
    """Return a time with its zone as microseconds since 1970 UTC."""
    return (moment - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1)

"""Options of where reading begins and ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, NamedTuple, Self

from dafka_core.errors import ConfigError
from dafka_core.options import Options, option
from dafka_spark.option_values import parse_word
from dafka_spark.positions import (
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST_OFFSET,
    OffsetRangeLimit,
    Position,
    parse_offset_range_limit,
    parse_offsets_by_timestamp,
    parse_timestamp,
)
from dafka_spark.spark_options import camel

ERROR: Final = "error"
TO_LATEST: Final = "latest"


_TIME: Final = "ms or time"
_POSITIONS: Final = "word, time or JSON"
_BY_TIME: Final = "JSON"
_PARSERS: Final = {
    _TIME: parse_timestamp,
    _POSITIONS: parse_offset_range_limit,
    _BY_TIME: parse_offsets_by_timestamp,
}


def _bound(kind: str, meaning: str) -> OffsetRangeLimit | None:
    return option(None, meaning, kind=kind, parse=_PARSERS[kind])


class Bound(NamedTuple):
    """Where a query starts or ends, and the option that says so.

    ``unnamed`` is the position of partitions of which ``limit`` says nothing.  With
    ``fails_unmatched`` a time at which or after which a partition has no record fails the query.
    """

    option: str
    limit: OffsetRangeLimit
    unnamed: Position
    fails_unmatched: bool = False

    @property
    def everywhere(self) -> Position | None:
        """The position of all partitions, if it is one."""
        named = self.limit.topics or self.limit.partitions
        return None if named else self.limit.everywhere or self.unnamed


@dataclasses.dataclass(frozen=True)
class OffsetOptions(Options):
    """Where reading begins and ends; with Kafka's precedence, a time before offsets."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)
    STARTING: ClassVar[tuple[str, ...]] = (
        "starting_timestamp",
        "starting_offsets_by_timestamp",
        "starting_offsets",
    )
    ENDING: ClassVar[tuple[str, ...]] = (
        "ending_timestamp",
        "ending_offsets_by_timestamp",
        "ending_offsets",
    )

    starting_timestamp: OffsetRangeLimit | None = _bound(  # noqa: RUF009 -- a field
        _TIME,
        "where a new query starts: at the first record of each partition that was published at "
        "this time, in milliseconds since 1970 or as `2026-01-01T00:00:00Z`, or later. Goes before "
        "startingOffsetsByTimestamp and startingOffsets",
    )
    starting_offsets_by_timestamp: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _BY_TIME,
        'the same by partition: `{"topic": {"partition": ms}}`; partitions not named, and those '
        "that appear later, start at their first record. Goes before startingOffsets",
    )
    starting_offsets_by_timestamp_strategy: str = option(
        ERROR,
        "where these two options find no record so new in a partition: `error` fails the query, "
        "`latest` starts at the partition's end",
        choices=(ERROR, TO_LATEST),
        parse=parse_word,
    )
    starting_offsets: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _POSITIONS,
        "where a new query starts: `earliest` (default of batches), `latest` (streams only, their "
        'default) or `{"topic": {"partition": offset}}` with -2 for earliest and -1 for latest; '
        "or `latest-100` (so many records before the end of each partition), `earliest+100`, "
        "`-10m` (also s, h, d: what was published since, by the stores' clocks), a time as "
        "`2026-01-01T00:00:00Z`, and JSON with any of these for topics or partitions. "
        "Partitions not named, and those that appear later, start at their first record, or, where "
        "`latest` or a time is said of all, at the first one that was written since",
    )
    ending_timestamp: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _TIME,
        "batches only, where to end: before the first record of each partition that was published "
        "at this time or later; at its end if there is none. Goes before endingOffsetsByTimestamp "
        "and endingOffsets",
    )
    ending_offsets_by_timestamp: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _BY_TIME,
        'batches only, the same by partition: `{"topic": {"partition": ms}}`; partitions not named '
        "are read to their end. Goes before endingOffsets",
    )
    ending_offsets: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _POSITIONS,
        "batches only, where to end (exclusive): `latest` (default), JSON with offsets or -1, or "
        "any form of startingOffsets",
    )

    @property
    def bounds(self) -> dict[str, OffsetRangeLimit]:
        """What is given of these options, by their names."""
        found = {camel(name): getattr(self, name) for name in (*self.STARTING, *self.ENDING)}
        return {name: limit for name, limit in found.items() if limit is not None}

    def without_bounds(self) -> Self:
        """The other options alone."""
        bounds: dict[str, Any] = dict.fromkeys((*self.STARTING, *self.ENDING))
        return dataclasses.replace(self, **bounds)

    def starting(self, unnamed: Position) -> Bound:
        """Where the query starts; at ``unnamed`` unless an option says otherwise.

        What an option says of some partitions only leaves the others at their first record.
        """
        for name in self.STARTING:
            if limit := getattr(self, name):
                is_strict = self.starting_offsets_by_timestamp_strategy == ERROR
                fails = is_strict and name != "starting_offsets"
                return Bound(camel(name), limit, AT_EARLIEST, fails)
        return Bound("startingOffsets", OffsetRangeLimit(text=unnamed.base), unnamed)

    def ending(self) -> Bound:
        """Where a batch ends."""
        for name in self.ENDING:
            if limit := getattr(self, name):
                return Bound(camel(name), limit, AT_LATEST)
        return Bound("endingOffsets", OffsetRangeLimit(text=AT_LATEST.base), AT_LATEST)

    def unused_of_offsets(self) -> Iterator[tuple[str, str]]:
        """Which of these options say nothing beside the others, and why."""
        if self.starting_timestamp is None and self.starting_offsets_by_timestamp is None:
            why = "it is about startingTimestamp and startingOffsetsByTimestamp; give one of them"
            yield "starting_offsets_by_timestamp_strategy", why

    def check_bounds_of_batch(self) -> None:
        """Raises ConfigError where a batch could read nothing."""
        start, end = self.starting(AT_EARLIEST), self.ending()
        if start.everywhere == AT_LATEST:
            why = "a batch that starts at the latest offset reads nothing"
            raise ConfigError(start.option, start.limit.text, why)
        if AT_EARLIEST in end.limit.all:
            why = f"a batch that ends at the earliest offset ({EARLIEST_OFFSET}) reads nothing"
            raise ConfigError(end.option, end.limit.text, why)

    def for_stream(self) -> Self:
        """These options, if a streaming query can use them; raises ``ConfigError`` otherwise."""
        for name in self.ENDING:
            if limit := getattr(self, name):
                raise ConfigError(camel(name), limit.text, "is for batch queries only")
        return self

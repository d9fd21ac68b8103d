"""Values of options, and their parsers.

Each parser raises ``ValueError`` with a sentence that says which values are valid.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from dafka_core.config.missing_stores import EVERY_STORE, parse_min_stores
from dafka_core.config.node_options import parse_towers
from dafka_core.model.name_limits import nearest_name, parse_partition, parse_topic
from dafka_core.model.names import INTERNAL, escape
from dafka_core.model.records import PartitionInfo, TopicPartition

ALL_STORES: Final = EVERY_STORE
"""For ``acks``: every store with Arrow Flight that is reachable, one at least."""


UNLIMITED: Final = "unlimited"
UNLIMITED_BYTES: Final = 1 << 62

_SIZE: Final = re.compile(r"(\d{1,18})\s*(?:([bkmgtp])b?)?", re.ASCII)


def parse_tower(value: Any) -> str:
    """Towers, as the nodes parse them."""
    return ",".join(map(str, parse_towers(value)))


def parse_names(value: Any) -> tuple[str, ...]:
    """Topics with commas between them."""
    return tuple(parse_topic(name.strip()) for name in str(value).split(","))


def parse_internal_topic(value: Any) -> str:
    """A topic of Dafka's own programs."""
    topic = parse_topic(str(value).strip())
    if not topic.startswith(INTERNAL):
        raise ValueError(f"must begin with {INTERNAL}, as what no pattern matches")
    return topic


def parse_directory(value: Any) -> str:
    """A directory of this machine, as an absolute path: executors may run elsewhere."""
    text = str(value)
    if not text or "\0" in text or re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        raise ValueError("must be the path of a directory, on a disk that all machines see")
    return str(Path(text).absolute())


def parse_word(value: Any) -> str:
    """A word, in any case."""
    return str(value).strip().lower()


def parse_acks(value: Any) -> int:
    """A number of stores, or ``all`` as ``ALL_STORES``."""
    return parse_min_stores(value)


def parse_size(value: Any) -> int:
    """Bytes: a number, one with a unit of Spark's (``512m``), or ``unlimited``."""
    word = parse_word(value)
    if word == UNLIMITED:
        return UNLIMITED_BYTES
    match = _SIZE.fullmatch(word)
    if match is None:
        raise ValueError(f"must be a number of bytes, a size like 512m or 4g, or {UNLIMITED}")
    return min(int(match[1]) << (10 * "bkmgtp".index(match[2] or "b")), UNLIMITED_BYTES)


def parse_pattern(value: Any) -> str:
    """A regular expression of Python's ``re``."""
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    if not value:
        raise ValueError("must be a regular expression that is not empty")
    return str(value)


def parse_assign(value: Any) -> frozenset[TopicPartition]:
    """JSON: the partitions of each topic."""
    form = 'must be JSON like {"topic": ["partition", ...]}'
    tree = json_object(value, form)
    if not all(each and isinstance(each, list) for each in tree.values()):
        raise ValueError(form)
    return frozenset(
        TopicPartition(parse_topic(topic), parse_partition(partition))
        for topic, partitions in tree.items()
        for partition in partitions
    )


def as_written(value: Any) -> Any:
    """How users write the value of an option that names topics or partitions, on one line."""
    if isinstance(value, tuple):
        return ",".join(map(escape, value))
    if not isinstance(value, frozenset):
        return value
    tree: dict[str, list[str]] = {}
    for topic, partition in sorted(value):
        tree.setdefault(escape(topic), []).append(escape(partition))
    return json.dumps(tree, ensure_ascii=False)


def json_object(value: Any, form: str) -> dict[str, Any]:
    """A JSON object that is not empty; else ``form`` is what the error says."""
    try:
        tree = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        raise ValueError(form) from None
    if not (tree and isinstance(tree, dict)):
        raise ValueError(form)
    return dict(tree)


EVERY_TOPIC: Final = "(?s:.*)(?#also those of our own programs)"
"""A pattern.  Those that users write match no topic that begins with ``INTERNAL``."""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Exactly one of a set of topics, a pattern for them, and a set of partitions.

    Topics are compared whole: RFC 46 subscribes by prefix, and a query for ``hello`` must not be
    given ``hello2``.
    """

    topics: frozenset[str] = frozenset()
    pattern: str = ""
    partitions: frozenset[TopicPartition] = frozenset()

    @property
    def asked(self) -> list[str] | None:
        """The topics to ask the stores for; None for all of them."""
        if self.pattern:
            return None
        return sorted(self.topics or {tp.topic for tp in self.partitions})

    def has(self, tp: TopicPartition) -> bool:
        """Whether this partition is read."""
        if self.pattern:
            is_hidden = tp.topic.startswith(INTERNAL) and self.pattern != EVERY_TOPIC
            return not is_hidden and re.fullmatch(self.pattern, escape(tp.topic)) is not None
        return tp.topic in self.topics or tp in self.partitions

    def has_of(self, topic: str) -> bool:
        """Whether partitions of this topic are read."""
        return self.has(TopicPartition(topic, "")) or topic in {tp.topic for tp in self.partitions}

    def missing(self, held: Iterable[TopicPartition]) -> list[TopicPartition]:
        """What is named and not among these; a topic as one without a partition."""
        found = set(held)
        topics = self.topics - {tp.topic for tp in found}
        return sorted([*(TopicPartition(topic, "") for topic in topics), *self.partitions - found])

    def of(self, infos: Iterable[PartitionInfo]) -> list[PartitionInfo]:
        """Those of the partitions that are read."""
        return [info for info in infos if self.has(info.tp)]


# Where to start and to end, as users say it: a word, an offset, a time, or JSON with any of them.
#
# Each parser raises ``ValueError`` with a sentence that says what would be right.


EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OFFSET: Final = "offset"
TIME: Final = "time"
AGO: Final = "ago"

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

MAX_US: Final = 2**62
"""Times beyond it, in microseconds, are none of anybody's records; stores take 64 bits."""

_UNIT_US: Final = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
"""Spark's units of time (``JavaUtils.timeStringAs``)."""

_DURATION: Final = re.compile(rf"(\d{{1,18}})\s*({'|'.join(_UNIT_US)})?", re.ASCII)
_FROM_WORD: Final = re.compile(r"(earliest|latest)(?:\s*([+-])\s*(\d{1,18}))?", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d", re.ASCII)

_FORMS: Final = (
    'must be earliest, latest or JSON like {"topic": {"partition": 1000}}; or latest-100 '
    "(records), earliest+100, -10m (before now; also s, h, d) or a time as 2026-01-01T00:00:00Z"
)
_TIME_FORMS: Final = "must be milliseconds since 1970 or a time as 2026-01-01T00:00:00Z"


class Position(NamedTuple):
    """A place in each partition.

    ``number`` is, by ``base``: of records behind the ``earliest`` or before the ``latest``; an
    ``offset``; a ``time``, in microseconds since the epoch UTC; or how long ``ago``, in
    microseconds before the query's start by the stores' clocks.
    """

    base: str
    number: int = 0

    @property
    def is_time(self) -> bool:
        """Whether stores have to be asked which offset it is."""
        return self.base in (TIME, AGO)


AT_EARLIEST: Final = Position(EARLIEST)
AT_LATEST: Final = Position(LATEST)


@dataclass(frozen=True)
class OffsetRangeLimit:
    """Where every partition starts or ends: ``KafkaOffsetRangeLimit`` of Spark's connector.

    Attributes:
        everywhere: of partitions that the others do not name; None where nothing is said of them.
        topics: of the partitions of a topic.
        partitions: of single ones.
        text: as the user wrote it, on one line.
    """

    everywhere: Position | None = None
    topics: Mapping[str, Position] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    text: str = field(default="", compare=False)

    def of(self, tp: TopicPartition, unnamed: Position) -> Position:
        """The position of one partition."""
        default = self.everywhere or unnamed
        return self.partitions.get(tp) or self.topics.get(tp.topic) or default

    @property
    def all(self) -> list[Position]:
        """Every position in it."""
        some = [] if self.everywhere is None else [self.everywhere]
        return [*some, *self.topics.values(), *self.partitions.values()]


def parse_offset_range_limit(value: Any) -> OffsetRangeLimit:
    """``startingOffsets`` and ``endingOffsets``."""
    text = _one_line(value)
    if text.startswith(("{", "[")):
        return _parse_tree(text, _parse_offset, _FORMS)
    return OffsetRangeLimit(_parse_text(text), text=text)


def parse_timestamp(value: Any) -> OffsetRangeLimit:
    """``startingTimestamp`` and ``endingTimestamp``: one time for all partitions."""
    text = _one_line(value)
    return OffsetRangeLimit(_parse_time(text), text=text)


def parse_offsets_by_timestamp(value: Any) -> OffsetRangeLimit:
    """``startingOffsetsByTimestamp`` and ``endingOffsetsByTimestamp``: JSON with times."""
    form = 'must be JSON like {"topic": {"partition": 1767225600000}}, with milliseconds since 1970'
    return _parse_tree(_one_line(value), _parse_time, form)


def parse_duration_ms(value: Any) -> int:
    """A time as Spark writes it (``15m``), in milliseconds; a number without a unit is of these."""
    match = _DURATION.fullmatch(_one_line(value).lower())
    if match is None:
        raise ValueError("must be a time like 500ms, 30s, 15m, 2h or 1d")
    return int(match[1]) * _UNIT_US[match[2] or "ms"] // 1_000


def shown_time(time_us: int) -> str:
    """A time for people; of one that no calendar has, the number."""
    try:
        moment = dt.datetime.fromtimestamp(time_us // 1_000_000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_us // 1_000} ms after 1970"
    return moment.isoformat().replace("+00:00", "Z")


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


def _parse_tree(text: str, parse: Callable[[Any], Position], form: str) -> OffsetRangeLimit:
    topics: dict[str, Position] = {}
    partitions: dict[TopicPartition, Position] = {}
    for topic, each in json_object(text, form).items():
        if isinstance(each, dict) and each:
            for name, position in each.items():
                tp = TopicPartition(parse_topic(topic), parse_partition(name))
                partitions[tp] = _named(f"partition {escape(name)}", position, parse)
        elif isinstance(each, dict | list) or each is None:
            raise ValueError(form)
        else:
            position = topics[parse_topic(topic)] = _named(f"topic {escape(topic)}", each, parse)
            if position.base == OFFSET:  # it is another record in each partition
                raise ValueError(form)
    return OffsetRangeLimit(None, topics, partitions, text)


def _named(what: str, value: Any, parse: Callable[[Any], Position]) -> Position:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{value!r} of {what} {error}") from None


def _parse_offset(value: Any) -> Position:
    """A member of JSON: an offset, -2 for earliest, -1 for latest, or a text."""
    if isinstance(value, str) and not value.strip().isdigit():
        return _parse_text(_one_line(value))
    if type(value) is not int or value < EARLIEST_OFFSET:
        raise ValueError(
            f"must be a whole number, the next record's; {EARLIEST_OFFSET} is the earliest and "
            f"{LATEST_OFFSET} the latest"
        )
    at = {EARLIEST_OFFSET: AT_EARLIEST, LATEST_OFFSET: AT_LATEST}
    return at.get(value, Position(OFFSET, value))


def _parse_text(text: str) -> Position:
    word = text.lower()
    if match := _FROM_WORD.fullmatch(word):
        base, sign, number = match[1], match[2], int(match[3] or 0)
        if sign and sign != {EARLIEST: "+", LATEST: "-"}[base]:
            raise ValueError(
                f"is where no records are: {EARLIEST}+{number} and {LATEST}-{number} have some"
            )
        return Position(base, number)
    if word.startswith("-") and (match := _DURATION.fullmatch(word[1:].strip())):
        if match[2] is None:
            raise ValueError(
                f"has no unit: {LATEST}-{match[1]} is so many records before the end, -{match[1]}s "
                "so many seconds ago"
            )
        return _in_time(AGO, int(match[1]) * _UNIT_US[match[2]])
    if _DATE.match(text):
        return _parse_iso(text)
    near = nearest_name(re.split(r"[+-]", word)[0], (EARLIEST, LATEST))
    raise ValueError(_FORMS + (f"; did you mean {near!r}?" if near else ""))


def _parse_time(value: Any) -> Position:
    """Milliseconds since 1970, or ISO 8601."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value, re.ASCII):
        value = int(value)
    if type(value) is int and value >= 0:
        return _in_time(TIME, value * 1_000)
    if isinstance(value, str) and _DATE.match(value):
        return _parse_iso(value)
    raise ValueError(_TIME_FORMS)


def _parse_iso(text: str) -> Position:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"must be a time as 2026-01-01T00:00:00Z ({error})") from None
    if moment.tzinfo is None:
        # Spark does not tell Python sources spark.sql.session.timeZone.
        why = "has no time zone: write Z at its end for UTC, or an offset like +01:00"
        raise ValueError(why)
    since = moment - dt.datetime.fromtimestamp(0, dt.UTC)
    return _in_time(TIME, since // dt.timedelta(microseconds=1))


def _in_time(base: str, number_us: int) -> Position:
    if not 0 <= number_us <= MAX_US:
        raise ValueError("must be a time since 1970, and not farther away than records can be")
    return Position(base, number_us)

"""Types of option values, and their parsers.

Each parser raises ``ValueError`` with a sentence that names the valid values.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dafka_core.config.node_options import parse_towers
from dafka_core.config.options import parse_str
from dafka_core.model.name_limits import parse_partition, parse_topic
from dafka_core.model.names import INTERNAL, escape
from dafka_core.model.positions import (
    AT_EARLIEST,
    AT_LATEST,
    FORMS,
    IS_DATE,
    ISO_FORM,
    OFFSET,
    TIME,
    Position,
    parse_duration_us,
    parse_moment_us,
    parse_position,
    time_position,
)
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.model.timestamps import shown_time

UNLIMITED_BYTES: Final = 1 << 62

_AVRO_FILE: Final = ".avsc"
_PROTOBUF_FILES: Final = (".desc", ".pb", ".binpb", ".protoset")

_SIZE: Final = re.compile(r"(\d{1,18})\s*(?:([bkmgtp])b?)?", re.ASCII)


# Words, names and sizes


def parse_tower(value: Any) -> str:
    """Parse towers, and add the default ports."""
    return ",".join(map(str, parse_towers(value)))


def parse_names(value: Any) -> tuple[str, ...]:
    """Parse topics separated by commas."""
    return tuple(parse_topic(name.strip()) for name in str(value).split(","))


def parse_internal_topic(value: Any) -> str:
    """Parse the name of a topic that patterns do not match."""
    topic = parse_topic(str(value).strip())
    if not topic.startswith(INTERNAL):
        raise ValueError(f"must begin with {INTERNAL}, so that no pattern matches it")
    return topic


def parse_directory(value: Any) -> str:
    """Parse a directory; return its absolute path, because executors run in other directories."""
    text = str(value)
    if not text or "\0" in text or re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        raise ValueError("must be the path of a directory, on a disk that all machines share")
    return str(Path(text).absolute())


def parse_word(spellings: Mapping[str, str], value: Any) -> str:
    """Parse a word in any case; ``spellings`` has words by their lower case."""
    word = str(value).strip()
    return spellings.get(word.lower(), word)


def parse_size(value: Any) -> int:
    """Parse bytes: a number, a size with one of Spark's units (``512m``), or ``unlimited``."""
    word = str(value).strip().lower()
    if word == "unlimited":
        return UNLIMITED_BYTES
    match = _SIZE.fullmatch(word)
    if match is None:
        raise ValueError("must be a number of bytes, a size like 512m or 4g, or unlimited")
    return min(int(match[1]) << (10 * "bkmgtp".index(match[2] or "b")), UNLIMITED_BYTES)


def parse_pattern(value: Any) -> str:
    """Parse a regular expression of Python's ``re``."""
    if not value:
        raise ValueError("must be a regular expression that is not empty")
    try:
        return str(re.compile(value).pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression: {error}") from None


def parse_value_schema(value: Any) -> str:
    """Parse a schema; read it if the value names a file, a descriptor set as base64."""
    text = parse_str(value).strip()
    try:
        if text.endswith(_AVRO_FILE):
            return Path(text).read_text(encoding="utf-8")
        if text.endswith(_PROTOBUF_FILES):
            return base64.b64encode(Path(text).read_bytes()).decode()
        return text
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from None


# Topics and partitions


EVERY_TOPIC: Final = "(?s:.*)(?#also internal topics)"
"""A pattern for all topics.  Users' patterns match no topic that begins with ``INTERNAL``."""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The partitions that a query reads: a set of topics, a pattern, or a set of partitions.

    Whole names are compared, although RFC 46 subscribes by prefix: a query for ``hello`` must not
    read ``hello2``.
    """

    topics: frozenset[str] = frozenset()
    pattern: str = ""
    partitions: frozenset[TopicPartition] = frozenset()

    @property
    def asked(self) -> list[str] | None:
        """The topics to request from the stores; None for all of them."""
        if self.pattern:
            return None
        return sorted(self.topics or {tp.topic for tp in self.partitions})

    def has(self, tp: TopicPartition) -> bool:
        """Return whether the query reads a partition."""
        if self.pattern:
            is_hidden = tp.topic.startswith(INTERNAL) and self.pattern != EVERY_TOPIC
            return not is_hidden and re.fullmatch(self.pattern, escape(tp.topic)) is not None
        return tp.topic in self.topics or tp in self.partitions

    def has_topic(self, topic: str) -> bool:
        """Return whether the query reads partitions of a topic."""
        return self.has(TopicPartition(topic, "")) or topic in {tp.topic for tp in self.partitions}

    def missing(self, held: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return what is selected by name but not held; a topic as one without a partition."""
        found = set(held)
        topics = self.topics - {tp.topic for tp in found}
        return sorted([*(TopicPartition(topic, "") for topic in topics), *self.partitions - found])

    def of(self, infos: Iterable[PartitionInfo]) -> list[PartitionInfo]:
        """Return the partitions that the query reads."""
        return [info for info in infos if self.has(info.tp)]


def parse_assign(value: Any) -> frozenset[TopicPartition]:
    """Parse JSON with the partitions of each topic."""
    form = 'must be JSON like {"topic": ["partition", ...]}'
    tree = _json_object(value, form)
    if not all(each and isinstance(each, list) for each in tree.values()):
        raise ValueError(form)
    if numbers := [name for each in tree.values() for name in each if not isinstance(name, str)]:
        raise ValueError(f"{form}, not {numbers[0]!r}: 'dafka heads' lists a topic's partitions")
    return frozenset(
        TopicPartition(parse_topic(topic), parse_partition(partition))
        for topic, partitions in tree.items()
        for partition in partitions
    )


def as_written(value: Any) -> Any:
    """Return a parsed value as users write it, on one line, for error messages."""
    if isinstance(value, tuple):
        return ",".join(map(escape, value))
    if not isinstance(value, frozenset):
        return getattr(value, "text", value)  # of an OffsetRangeLimit or a Where
    tree: dict[str, list[str]] = {}
    for topic, partition in sorted(value):
        tree.setdefault(escape(topic), []).append(escape(partition))
    return json.dumps(tree, ensure_ascii=False)


def _json_object(value: Any, form: str) -> dict[str, Any]:
    """Parse a JSON object that is not empty; ``form`` is the error message."""
    try:
        tree = json.loads(value, object_pairs_hook=_members)
    except KeyError:
        raise ValueError(f"{form}; a name occurs twice in one object") from None
    except (TypeError, ValueError, RecursionError):
        raise ValueError(form) from None
    if not (tree and isinstance(tree, dict)):
        raise ValueError(form)
    return tree


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(tree := dict(pairs)) < len(pairs):
        raise KeyError
    return tree


# Start and end: a word, an offset, a time, or JSON with these by topic and partition


_TIMESTAMP_UNITS: Final = {"seconds": 1, "microseconds": 10**6, "nanoseconds": 10**9}
_PLAUSIBLE_S: Final = range(978_307_200, 4_133_980_800)
"""The years 2001 to 2100, in seconds since 1970."""

_NAMED_OFFSETS: Final = {-2: AT_EARLIEST, -1: AT_LATEST}
"""The numbers that Kafka's options have for these."""


@dataclass(frozen=True)
class OffsetRangeLimit:
    """The start or the end of every partition: ``KafkaOffsetRangeLimit`` of Spark's connector.

    ``everywhere`` is the position of partitions that the others do not name, and ``text`` the value
    as the user wrote it, on one line.
    """

    everywhere: Position | None = None
    topics: Mapping[str, Position] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    text: str = field(default="", compare=False)

    def of(self, tp: TopicPartition, default: Position) -> Position:
        """Return the position of one partition; ``default`` if the limit does not name it."""
        named = self.partitions.get(tp) or self.topics.get(tp.topic)
        return named or self.everywhere or default

    @property
    def named(self) -> TopicSelection:
        """The topics and partitions that it names."""
        return TopicSelection(frozenset(self.topics), partitions=frozenset(self.partitions))

    @property
    def all(self) -> list[Position]:
        """Every position in it."""
        everywhere = [self.everywhere] if self.everywhere else []
        return [*everywhere, *self.topics.values(), *self.partitions.values()]


def parse_offset_range_limit(value: Any) -> OffsetRangeLimit:
    """Parse ``startingOffsets`` or ``endingOffsets``."""
    text = _one_line(value)
    if text.startswith(("{", "[")):
        return _parse_tree(text, _parse_offset, FORMS)
    return OffsetRangeLimit(parse_position(text), text=text)


def parse_timestamp(value: Any) -> OffsetRangeLimit:
    """Parse ``startingTimestamp`` or ``endingTimestamp``: one time for all partitions."""
    text = _one_line(value)
    return OffsetRangeLimit(_parse_time(text), text=text)


def parse_offsets_by_timestamp(value: Any) -> OffsetRangeLimit:
    """Parse ``startingOffsetsByTimestamp`` or ``endingOffsetsByTimestamp``: JSON with times."""
    form = 'must be JSON like {"topic": {"partition": 1767225600000}}, in milliseconds since 1970'
    return _parse_tree(_one_line(value), _parse_time, form)


def parse_duration_ms(value: Any) -> int:
    """Parse a duration as Spark writes it (``15m``), by default in milliseconds; return these."""
    return parse_duration_us(value, "ms") // 1_000


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


def _parse_tree(text: str, parse: Callable[[Any], Position], form: str) -> OffsetRangeLimit:
    topics: dict[str, Position] = {}
    partitions: dict[TopicPartition, Position] = {}
    for topic, each in _json_object(text, form).items():
        if isinstance(each, dict) and each:
            for name, position in each.items():
                tp = TopicPartition(parse_topic(topic), parse_partition(name))
                partitions[tp] = _parse_member(f"partition {escape(name)}", position, parse)
            continue
        if isinstance(each, dict | list) or each is None:
            raise ValueError(form)
        position = topics[parse_topic(topic)] = _parse_member(f"topic {escape(topic)}", each, parse)
        if position.base == OFFSET:  # each partition has another record there
            raise ValueError(form)
    return OffsetRangeLimit(None, topics, partitions, text)


def _parse_member(what: str, value: Any, parse: Callable[[Any], Position]) -> Position:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{value!r} of {what} {error}") from None


def _parse_offset(value: Any) -> Position:
    """Parse a member of JSON: an offset, -2 for earliest, -1 for latest, or a text."""
    if isinstance(value, str) and not value.strip().isdigit():
        return parse_position(_one_line(value))
    if type(value) is not int or value < min(_NAMED_OFFSETS):
        raise ValueError(
            "must be a whole number, the offset of the next record; -2 is the earliest and -1 the "
            "latest"
        )
    return _NAMED_OFFSETS.get(value, Position(OFFSET, value))


def _parse_time(value: Any) -> Position:
    """Parse milliseconds since 1970, or ISO 8601."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value, re.ASCII):
        value = int(value)
    if type(value) is int and value >= 0:
        _check_unit(value)
        return time_position(TIME, value * 1_000)
    if isinstance(value, str) and IS_DATE.match(value):
        return time_position(TIME, parse_moment_us(value))
    raise ValueError(f"must be milliseconds since 1970 or {ISO_FORM}")


def _check_unit(number: int) -> None:
    """Raise ``ValueError`` for a time in another unit than milliseconds.

    Seconds would be a time early in 1970, which reads everything; microseconds and nanoseconds one
    after the year 30,000.  Small numbers, as 0 for everything, are no plausible seconds.
    """
    for unit, per_second in _TIMESTAMP_UNITS.items():
        if number // per_second in _PLAUSIBLE_S:
            ms = number * 1_000 // per_second
            why = f"is a time in {unit} instead of milliseconds since 1970; did you mean {ms}"
            why += f" ({shown_time(ms * 1_000)})?"
            if unit == "seconds":
                why += f" Write {shown_time(number * 1_000)} if you mean 1970"
            raise ValueError(why)

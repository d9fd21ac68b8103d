"""What the values of options mean: from what users write to what is used.

Each parser raises ``ValueError`` with a sentence that says what would be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dafka_core.config.missing_stores import EVERY_STORE, parse_min_stores
from dafka_core.config.node_options import parse_towers
from dafka_core.model.name_limits import parse_partition, parse_topic
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


def parse_commit(value: Any) -> str:
    """A word that is not ``task``, which the sink had as another value."""
    if parse_word(value) == "task":
        raise ValueError(
            "a batch that Spark repeats after a restart may have another number of tasks, by "
            "adaptive execution or other cores, and tasks that commit by themselves would double "
            "rows then. Leave the option out: all tasks of a batch are committed together"
        )
    return parse_word(value)


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

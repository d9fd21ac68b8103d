"""What the values of options mean: from what users write to what is used.

Each parser raises ``ValueError`` with a sentence that says what would be right.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dafka_core.missing_stores import EVERY_STORE, parse_min_stores
from dafka_core.names import escape
from dafka_core.node_options import parse_partition, parse_topic, parse_towers
from dafka_core.records import TopicPartition

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

ALL_STORES: Final = EVERY_STORE
"""For ``acks``: every store with Arrow Flight that is reachable, one at least."""

OffsetRangeLimit = str | dict[TopicPartition, int]
"""``earliest``, ``latest``, or an offset (or -2 or -1) for each partition."""


def parse_tower(value: Any) -> str:
    """Towers, as the nodes parse them."""
    return ",".join(map(str, parse_towers(value)))


def parse_names(value: Any) -> tuple[str, ...]:
    """Topics with commas between them."""
    return tuple(parse_topic(name.strip()) for name in str(value).split(","))


def parse_word(value: Any) -> str:
    """A word, in any case."""
    return str(value).strip().lower()


def parse_acks(value: Any) -> int:
    """A number of stores, or ``all`` as ``ALL_STORES``."""
    return parse_min_stores(value)


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
    tree = _json(value, list, 'must be JSON like {"topic": ["partition", ...]}')
    return frozenset(
        TopicPartition(parse_topic(topic), parse_partition(partition))
        for topic, partitions in tree.items()
        for partition in partitions
    )


def parse_offset_range_limit(value: Any) -> OffsetRangeLimit:
    """``earliest``, ``latest`` or JSON with an offset for partitions."""
    word = parse_word(value)
    if word in (EARLIEST, LATEST):
        return word
    form = f'must be {EARLIEST}, {LATEST} or JSON like {{"topic": {{"partition": 1000}}}}'
    limit = {
        TopicPartition(parse_topic(topic), parse_partition(partition)): offset
        for topic, partitions in _json(value, dict, form).items()
        for partition, offset in partitions.items()
    }
    for tp, offset in limit.items():
        if type(offset) is not int or offset < EARLIEST_OFFSET:
            raise ValueError(
                f"offset {offset!r} of partition {escape(tp.partition)} must be a whole number, "
                f"the next record's; {EARLIEST_OFFSET} is the earliest and {LATEST_OFFSET} the "
                "latest"
            )
    return limit


def written(value: Any) -> Any:
    """How users write the value of an option that names topics or partitions, on one line."""
    if isinstance(value, tuple):
        return ",".join(map(escape, value))
    if not isinstance(value, frozenset | dict):
        return value
    tree: dict[str, Any] = {}
    for topic, partition in sorted(value):
        if isinstance(value, dict):
            tree.setdefault(escape(topic), {})[escape(partition)] = value[topic, partition]
        else:
            tree.setdefault(escape(topic), []).append(escape(partition))
    return json.dumps(tree, ensure_ascii=False)


def _json(value: Any, kind: type, form: str) -> dict[str, Any]:
    """A JSON object with members, all of this kind and not empty."""
    try:
        tree = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        raise ValueError(form) from None
    members = tree.values() if isinstance(tree, dict) else ()
    if not (members and all(each and isinstance(each, kind) for each in members)):
        raise ValueError(form)
    return dict(tree)

"""Every option of format ``dafka``, declared once: name, type, default, unit and meaning.

Spark lower-cases the keys it is given; they are matched in any case, and named as users write
them (``fetchTimeoutMs``) in errors and in the documentation's tables.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Self

from dafka_core.config import DEFAULT_TOWER, Options, option, parse_int, unknown
from dafka_core.errors import ConfigError
from dafka_core.node_config import AUTO_HOST, TOWER_ENVIRONMENT, parse_towers
from dafka_core.storage.packing import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS
from dafka_spark.offsets import TopicPartition
from dafka_spark.selection import Selection

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

MAX_NAME_BYTES: Final = 255
"""Topics and addresses are strings with a one-octet length on the wire."""

AUTO: Final = "auto"
LOCAL: Final = "local"
FLIGHT: Final = "flight"
MESH: Final = "mesh"
FETCH: Final = (AUTO, LOCAL, FLIGHT, MESH)

RECORDS_PER_BATCH: Final = MAX_BLOCK_RECORDS
BYTES_PER_BATCH: Final = MAX_BLOCK_BYTES
"""A store's block is a batch as it is, neither cut nor copied.  Measured with 100-byte values:
10,000 rows a batch gave 3 million rows/s, 50,000 gave 4 to 6."""

RECORDS_PER_TASK: Final = 2_500_000
"""Large partitions are cut into tasks of this size unless options say otherwise: half a second's
work or more, beside which the 70 ms that a task costs Spark are little (measured: 10 million
records take a third longer in 20 tasks than in 4), and small enough to keep all cores busy.  A
partition is all that one producer has written, and there may be only one."""

SPARK_SINK_KEYS: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark itself adds to a streaming sink's options (seen in 4.3)."""

TABLE_PREFIX: Final = "option."
"""``CREATE TABLE ... OPTIONS (a 1)`` arrives as ``a`` and ``option.a``, among table properties."""


class Via(NamedTuple):
    """How to join the mesh: through which towers, and reachable at which address."""

    tower: str
    host: str = AUTO_HOST


Bound = str | dict[TopicPartition, int]
"""``earliest``, ``latest``, or an offset (or -2 or -1) for each partition."""


def camel(name: str) -> str:
    """``fetch_timeout_ms`` as Spark's users write it: ``fetchTimeoutMs``."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def parse_name(value: Any) -> str:
    """A topic: 1 to 255 bytes of UTF-8 without NUL."""
    size = len(value.encode()) if isinstance(value, str) else 0
    if not 1 <= size <= MAX_NAME_BYTES or "\0" in value:
        raise ValueError(f"must be a name of 1 to {MAX_NAME_BYTES} bytes without NUL")
    return str(value)


def parse_tower(value: Any) -> str:
    """Towers, as the nodes parse them."""
    return ",".join(map(str, parse_towers(value)))


def parse_names(value: Any) -> tuple[str, ...]:
    """Topics with commas between them."""
    return tuple(parse_name(name.strip()) for name in str(value).split(","))


def parse_word(value: Any) -> str:
    """A word, in any case."""
    return str(value).strip().lower()


def parse_pattern(value: Any) -> str:
    """A regular expression of Python's ``re``."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    if not value:
        raise ValueError("must be a regular expression that is not empty")
    return str(value)


def parse_assign(value: Any) -> frozenset[TopicPartition]:
    """JSON: the partitions of each topic."""
    form = 'must be JSON like {"topic": ["partition", ...]}'
    tree = _json(value, form)
    if not all(isinstance(partitions, list) for partitions in tree.values()):
        raise ValueError(form)
    return frozenset(
        TopicPartition(parse_name(topic), parse_name(partition))
        for topic, partitions in tree.items()
        for partition in partitions
    )


def parse_bound(value: Any) -> Bound:
    """``earliest``, ``latest`` or JSON with an offset for partitions."""
    form = f'must be {EARLIEST}, {LATEST} or JSON like {{"topic": {{"partition": 1000}}}}'
    word = str(value).strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    bound = {}
    for topic, partitions in _json(value, form).items():
        if not isinstance(partitions, dict):
            raise ValueError(form)
        for partition, offset in partitions.items():
            if type(offset) is not int or offset < EARLIEST_OFFSET:
                raise ValueError(
                    f"offset {offset!r} of partition {partition} must be a whole number, the next "
                    f"record's; {EARLIEST_OFFSET} is the earliest and {LATEST_OFFSET} the latest"
                )
            bound[TopicPartition(parse_name(topic), parse_name(partition))] = offset
    return bound


def _json(value: Any, form: str) -> dict[str, Any]:
    try:
        tree = json.loads(value)
    except (TypeError, ValueError):
        raise ValueError(form) from None
    if not isinstance(tree, dict) or not tree:
        raise ValueError(form)
    return tree


@dataclasses.dataclass(frozen=True)
class SparkOptions(Options):
    """Options with names as Spark's users write them."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)
    ALLOWED: ClassVar[frozenset[str]] = frozenset()
    USE: ClassVar[str] = ""
    tower: str = option(
        DEFAULT_TOWER,
        "towers to join through, with commas between; without it DAFKA_TOWER of the driver's "
        "environment",
        kind="HOST[:SUB_PORT:PUB_PORT]",
        parse=parse_tower,
    )
    host: str = option(
        AUTO_HOST,
        "address at which stores reach the driver and the executors; `auto` takes the one from "
        "which each of them reaches the first tower",
    )

    @property
    def via(self) -> Via:
        """How to join the mesh."""
        return Via(self.tower, self.host)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """The options as Spark hands them over.

        Raises:
            ConfigError: an option is unknown, belongs to the other side, or has a wrong value.
        """
        names = {row.name.lower(): row.name for row in cls.table()}
        # Here and not in a node: executors' environments are not the driver's.
        folded = {"tower": os.environ.get(TOWER_ENVIRONMENT) or DEFAULT_TOWER}
        for name, value in given.items():
            lower = name.lower()
            if lower in names:
                folded[names[lower]] = value
            elif lower not in cls.ALLOWED:
                raise ConfigError(name, value, cls._why_not(lower, list(names.values())))
        return cls.build(folded)

    @classmethod
    def _why_not(cls, name: str, known: list[str]) -> str:
        for other in (SourceOptions, SinkOptions):
            if name in {row.name.lower() for row in other.table()}:
                return f"is an option of {other.USE}; {cls.USE} takes {', '.join(sorted(known))}"
        if name == "path":
            topic = "topic" if cls is SinkOptions else "subscribe"
            return f"format 'dafka' has no path; name the topic with option {topic!r}"
        return unknown(name, known)


@dataclasses.dataclass(frozen=True)
class SourceOptions(SparkOptions):
    """Reading: options of batch and streaming queries."""

    USE: ClassVar[str] = "reading"
    subscribe: tuple[str, ...] = option(
        (), "topics to read", kind="list with commas", parse=parse_names
    )
    subscribe_pattern: str = option(
        "", "topics to read: those that match as a whole", kind="regex", parse=parse_pattern
    )
    assign: frozenset[TopicPartition] = option(
        frozenset(),
        'partitions to read: `{"topic": ["partition", ...]}`',
        kind="JSON",
        parse=parse_assign,
    )
    starting_offsets: Bound | None = option(  # noqa: RUF009 -- a field
        None,
        "where a new query starts: `earliest` (default of batches), `latest` (streams only, their "
        'default) or `{"topic": {"partition": offset}}` with -2 for earliest and -1 for latest; '
        "partitions not named, and those that appear later, start at their first record",
        kind="word or JSON",
        parse=parse_bound,
    )
    ending_offsets: Bound | None = option(  # noqa: RUF009 -- a field
        None,
        "batches only, where to end (exclusive): `latest` (default) or JSON with offsets or -1",
        kind="word or JSON",
        parse=parse_bound,
    )
    max_offsets_per_trigger: int | None = option(
        None,
        "streams only, the most records in a micro-batch, shared among the partitions in "
        "proportion to what each has waiting",
        kind="int",
        parse=parse_int,
        minimum=1,
        unit="records",
    )
    min_partitions: int | None = option(
        None,
        "split large partitions until there are about this many tasks",
        kind="int",
        parse=parse_int,
        minimum=1,
        unit="tasks",
    )
    max_records_per_partition: int | None = option(
        None,
        "split partitions so that no task reads more; "
        f"{RECORDS_PER_TASK} when neither this nor minPartitions is given",
        kind="int",
        parse=parse_int,
        minimum=1,
        unit="records",
    )
    fetch: str = option(
        AUTO,
        "how executors get the records: `local` maps the log of a store on their own machine, "
        "`flight` reads from stores by Arrow Flight, `mesh` fetches from whoever has them; `auto` "
        "takes the first of these that is possible, and the next one when it fails",
        choices=FETCH,
        parse=parse_word,
    )
    fail_on_data_loss: bool = option(
        True, "fail when records are lost before they were read; else warn and go on after them"
    )
    fetch_timeout_ms: int = option(
        60_000, "the longest wait for a store without progress", minimum=1, unit="ms"
    )
    max_records_per_batch: int = option(
        RECORDS_PER_BATCH,
        "rows in one Arrow batch",
        minimum=1,
        maximum=1_000_000,
        unit="records",
    )
    max_bytes_per_batch: int = option(
        BYTES_PER_BATCH,
        "values in one Arrow batch; a larger record has one to itself",
        minimum=1,
        maximum=1 << 30,
        unit="bytes",
    )

    def __post_init__(self) -> None:
        """Checks what concerns more than one option."""
        chosen = [
            camel(name)
            for name in ("subscribe", "subscribe_pattern", "assign")
            if getattr(self, name)
        ]
        if len(chosen) != 1:
            raise ConfigError(
                chosen[1] if chosen else "subscribe",
                getattr(self, "assign" if chosen[1:] == ["assign"] else "subscribe"),
                "name what to read with exactly one of subscribe, subscribePattern and assign, "
                + (f"not with {' and '.join(chosen)}" if chosen else _NO_TABLE_OPTIONS),
            )
        self._check_bound("starting_offsets", self.starting_offsets)
        self._check_bound("ending_offsets", self.ending_offsets)

    @property
    def selection(self) -> Selection:
        """What to read."""
        return Selection(frozenset(self.subscribe), self.subscribe_pattern, self.assign)

    @property
    def fetch_timeout_s(self) -> float:
        """``fetchTimeoutMs`` in seconds."""
        return self.fetch_timeout_ms / 1000

    def for_batch(self) -> Self:
        """These options, if a batch query can use them; raises ``ConfigError`` otherwise."""
        if self.starting_offsets == LATEST:
            raise ConfigError(
                "startingOffsets", LATEST, "a batch that starts at the latest offset reads nothing"
            )
        if self.ending_offsets == EARLIEST or (
            isinstance(self.ending_offsets, dict)
            and EARLIEST_OFFSET in self.ending_offsets.values()
        ):
            raise ConfigError(
                "endingOffsets",
                self.ending_offsets,
                f"a batch that ends at the earliest offset ({EARLIEST_OFFSET}) reads nothing",
            )
        if self.max_offsets_per_trigger is not None:
            raise ConfigError(
                "maxOffsetsPerTrigger", self.max_offsets_per_trigger, "is for streams only"
            )
        return self

    def for_stream(self) -> Self:
        """These options, if a streaming query can use them; raises ``ConfigError`` otherwise."""
        if self.ending_offsets is not None:
            raise ConfigError("endingOffsets", self.ending_offsets, "is for batch queries only")
        return self

    def _check_bound(self, field: str, bound: Bound | None) -> None:
        for key in bound if isinstance(bound, dict) else ():
            if not self.selection.has(key):
                raise ConfigError(
                    camel(field),
                    f"{key.topic}/{key.partition}",
                    "names a partition that this query does not read; compare it with "
                    "subscribe, subscribePattern or assign",
                )


_NO_TABLE_OPTIONS: Final = (
    "none is given (Spark does not hand a table's OPTIONS to sources in Python when CREATE TABLE "
    "lists columns: leave them out)"
)


@dataclasses.dataclass(frozen=True)
class SinkOptions(SparkOptions):
    """Writing: options of batch and streaming queries."""

    USE: ClassVar[str] = "writing"
    ALLOWED: ClassVar[frozenset[str]] = SPARK_SINK_KEYS
    topic: str = option(
        "", "topic of every row; without it column `topic` says each row's", parse=parse_name
    )
    acks: int = option(
        1, "stores that must have a row on disk before its task succeeds", minimum=1, unit="stores"
    )
    delivery_timeout_ms: int = option(
        120_000, "the longest wait for the last acknowledgement of a task", minimum=1, unit="ms"
    )


def creates_table(given: Mapping[str, str]) -> bool:
    """Whether Spark asks on behalf of ``CREATE TABLE``: it adds the provider's name then."""
    return "provider" in given


def user_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options a user gave: at ``CREATE TABLE`` Spark mixes them with table properties."""
    if not creates_table(given):
        return dict(given)
    return {
        name.removeprefix(TABLE_PREFIX): value
        for name, value in given.items()
        if name.startswith(TABLE_PREFIX)
    }

"""Every option of format ``dafka``, declared once: name, type, default, unit and meaning.

Those of reading and writing alike are in ``spark_options``, with how all of them are given.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Final, Self

from dafka_core import node_options as nodes
from dafka_core.errors import ConfigError
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.missing_stores import parse_min_stores
from dafka_core.name_limits import parse_topic
from dafka_core.names import INTERNAL, NOT_PLAIN, QUERIES_TOPIC, escape, is_plain
from dafka_core.options import option, parse_int
from dafka_core.records import TopicPartition
from dafka_spark import option_values as values
from dafka_spark.filter_options import FilterOptions
from dafka_spark.metadata import KINDS
from dafka_spark.offset_options import OffsetOptions
from dafka_spark.spark_options import SparkOptions, camel
from dafka_spark.topic_selection import EVERY_TOPIC, TopicSelection
from dafka_spark.trigger_options import TriggerOptions
from dafka_spark.value_options import ReadValueOptions, ValueOptions

AUTO: Final = "auto"
LOCAL: Final = "local"
FLIGHT: Final = "flight"
MESH: Final = "mesh"
FETCH: Final = (AUTO, LOCAL, FLIGHT, MESH)

RECORDS_PER_TASK: Final = 2_500_000
"""Large partitions are cut into tasks of this size unless options say otherwise: half a second's
work or more, beside which the 70 ms that a task costs Spark are little (measured: 10 million
records take a third longer in 20 tasks than in 4), and small enough to keep all cores busy.  A
partition is all that one producer has written, and there may be only one."""

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
DELIVERY: Final = (EXACTLY_ONCE, AT_LEAST_ONCE)

BATCH: Final = "batch"

COUNT_BITS: Final = 14
"""Of the version that stores keep of a transaction with ``txnVersion``: to how many partitions that
was written."""

MAX_TXN_VERSION: Final = (1 << 63 - COUNT_BITS) - 1

_log = logging.getLogger("dafka_spark")


def _count(meaning: str, unit: str) -> int | None:
    """Declares an option that is a number of 1 or more, or not given."""
    return option(None, meaning, kind="int", parse=parse_int, minimum=1, unit=unit)


@dataclasses.dataclass(frozen=True)
class SourceOptions(TriggerOptions, OffsetOptions, FilterOptions, ReadValueOptions, SparkOptions):
    """Reading: options of batch and streaming queries."""

    USE = "reading"
    NAMES_TOPIC = "subscribe"
    subscribe: tuple[str, ...] = option(
        (), "topics to read", kind="list with commas", parse=values.parse_names
    )
    subscribe_pattern: str = option(
        "",
        "topics to read: those that match as a whole, as column `topic` shows them",
        kind="regex",
        parse=values.parse_pattern,
    )
    assign: frozenset[TopicPartition] = option(
        frozenset(),
        'partitions to read: `{"topic": ["partition", ...]}`',
        kind="JSON",
        parse=values.parse_assign,
    )
    metadata: str = option(
        "",
        "batches only, what to read in place of records: a table of what is known of topics, "
        "partitions, stores, queries or their lag (docs/spark.md has the columns); subscribe, "
        "subscribePattern or assign narrow it, and may be left out",
        kind=" or ".join(KINDS),
        choices=KINDS,
        parse=values.parse_word,
    )
    min_partitions: int | None = _count(
        "split large partitions until there are about this many tasks; small ones share tasks as "
        "long as so many are left, or 16 when this is not given",
        "tasks",
    )
    max_records_per_partition: int | None = _count(
        "split partitions so that no task reads more; "
        f"{RECORDS_PER_TASK} when neither this nor minPartitions is given",
        "records",
    )
    fetch: str = option(
        AUTO,
        "how executors get the records: `local` reads the file of a store on their own machine, "
        "`flight` reads from stores by Arrow Flight, `mesh` fetches from any node that has them; "
        "`auto` takes the first of these that is possible, and the next one when it fails",
        choices=FETCH,
        parse=values.parse_word,
    )
    archive: str = option(
        "",
        "a directory with an archive (docs/archive.md), at the same path on the driver and the "
        "executors: what it has and no store has any more is read from there, as part of the topic",
        kind="directory",
        parse=values.parse_directory,
    )
    include_headers: bool = option(False, "have a column `headers`")
    fail_on_data_loss: bool = option(
        True,
        "fail when records are lost before they were read, once that has been so for "
        "fetchTimeoutMs; else warn of each loss and go on without them. docs/source.md has the "
        "conditions, and what to do about each",
    )
    fail_on_missing_topic: bool = option(
        True,
        "fail when no store has a topic or partition that is named: batches, streams that end by "
        "themselves, and option assign; other streams, and all with false, read it as empty until "
        "it is there, and say so",
    )
    query_name: str = option(
        "",
        "streams only, a name under which the query reports how far it is: `dafka lag` and option "
        "metadata tell then how far it is behind. Without it nothing is reported",
        kind="name",
    )
    progress_topic: str = option(
        QUERIES_TOPIC,
        f"where queries report how far they are; begins with `{INTERNAL}`, so that no pattern "
        "matches it",
        kind="topic",
        parse=values.parse_internal_topic,
    )
    min_stores: int | None = option(
        None,
        "fail unless so many stores answer when a batch is planned or a stream begins, or `all` "
        "that are known; else each that is known and away is named in a warning",
        kind="int or all",
        parse=parse_min_stores,
    )
    fetch_timeout_ms: int = option(
        60_000, "the longest wait for a store without progress", minimum=1, unit="ms"
    )
    # A store's block is a batch as it is, neither cut nor copied.  Measured with 100-byte values:
    # 10,000 rows a batch gave 3 million rows/s, 50,000 gave 4 to 6.
    max_records_per_batch: int = option(
        MAX_BATCH_RECORDS, "rows in one Arrow batch", minimum=1, maximum=1_000_000, unit="records"
    )
    max_bytes_per_batch: int = option(
        MAX_BATCH_BYTES,
        "values in one Arrow batch; a larger record has one to itself",
        minimum=1,
        maximum=1 << 30,
        unit="bytes",
    )

    def __post_init__(self) -> None:
        """Checks what concerns more than one option."""
        names = ("subscribe", "subscribe_pattern", "assign")
        choices = {camel(name): getattr(self, name) for name in names}
        chosen = [name for name in choices if choices[name]]
        if self.metadata:
            self._check_metadata()
        self.check_values()
        if len(chosen) > 1 or not (chosen or self.metadata):
            name = chosen[1] if chosen else "subscribe"
            why = f"not with {' and '.join(chosen)}" if chosen else _NO_TABLE_OPTIONS
            exactly = "name what to read with exactly one of subscribe, subscribePattern and assign"
            raise ConfigError(name, values.as_written(choices[name]), f"{exactly}, {why}")
        if self.include_headers and not self.opens:
            why = "leaves contents as they are, there are no headers; leave out includeHeaders"
            raise ConfigError("envelope", self.envelope, why)
        if self.stores and self.fetch == MESH:
            raise ConfigError("fetch", MESH, "reads from the mesh; leave it out, or option stores")
        self.check_trigger()
        for name, limit in self.bounds.items():
            unread = [tp for tp in limit.partitions if not self.selection.has(tp)]
            topics = [topic for topic in limit.topics if not self.selection.has_of(topic)]
            for what, wrong in (("partition", unread), ("topic", [(topic,) for topic in topics])):
                if wrong:
                    why = (
                        f"names a {what} that this query does not read; compare it with "
                        "subscribe, subscribePattern or assign"
                    )
                    raise ConfigError(name, "/".join(map(escape, wrong[0])), why)

    @property
    def selection(self) -> TopicSelection:
        """What to read."""
        pattern = self.subscribe_pattern
        if self.metadata and not (self.subscribe or self.assign):
            pattern = pattern or EVERY_TOPIC
        return TopicSelection(frozenset(self.subscribe), pattern, self.assign)

    @property
    def fetch_timeout_s(self) -> float:
        """``fetchTimeoutMs`` in seconds."""
        return self.fetch_timeout_ms / 1000

    def _check_metadata(self) -> None:
        """Raises ``ConfigError`` for an option that says which records to read, or how."""
        own = {"metadata", "subscribe", "subscribe_pattern", "assign", "fetch", "fetch_timeout_ms"}
        own |= {"fail_on_missing_topic", "min_stores", "progress_topic"}
        shared = {each.name for each in dataclasses.fields(SparkOptions)}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name not in own | shared and value != each.default:
                why = "is about records; leave it out, or option metadata"
                shown = values.as_written(getattr(value, "text", value))
                raise ConfigError(camel(each.name), shown, why)

    def for_batch(self) -> Self:
        """These options, if a batch query can use them; raises ``ConfigError`` otherwise."""
        self.check_bounds_of_batch()
        self._warn_of_unused(batch=True)
        return self

    def for_stream(self) -> Self:
        """These options, if a streaming query can use them; raises ``ConfigError`` otherwise."""
        if self.metadata:
            raise ConfigError("metadata", self.metadata, "is for batch queries only")
        options = super().for_stream()
        self._warn_of_unused(batch=False)
        return options

    def _warn_of_unused(self, *, batch: bool) -> None:
        """Names what is given and says nothing.

        It fails no query, as with Kafka's: one function may make the options of several.
        """
        unused = [*self.unused_of_trigger(batch=batch), *self.unused_of_offsets()]
        unused += self.unused_of_filters(batch=batch)
        if batch:
            unused.append(("query_name", "a batch reports nothing"))
        if not (self.query_name or self.metadata):
            unused.append(("progress_topic", "only a query with option queryName reports there"))
        for name, why in unused:
            if (value := getattr(self, name)) != getattr(type(self), name):
                _log.warning("option %s = %s is ignored: %s", camel(name), value, why)


_NO_TABLE_OPTIONS: Final = (
    "none is given (Spark does not hand a table's OPTIONS to sources in Python when CREATE TABLE "
    "lists columns: leave them out)"
)


@dataclasses.dataclass(frozen=True)
class SinkOptions(ValueOptions, SparkOptions):
    """Writing: options of batch and streaming queries."""

    USE = "writing"
    NAMES_TOPIC = "topic"
    NODES = (nodes.ReaderOptions, nodes.ProducerOptions)
    NEEDS_SCHEMA = False  # the rows have one
    ALLOWED = frozenset({"checkpointlocation", "queryname"})
    topic: str = option(
        "", "topic of every row; without it column `topic` says each row's", parse=parse_topic
    )
    delivery: str = option(
        EXACTLY_ONCE,
        "`exactly-once`: each row of a micro-batch is in its topic once, however often it is tried "
        "again, and the rows of a batch write appear all at once; needs a store with Arrow Flight. "
        "`at-least-once`: what is tried again is written again; stores of any kind will do",
        choices=DELIVERY,
        parse=values.parse_word,
    )
    acks: int | None = option(
        None,
        "stores that must have a row on disk before its task (with a batch write its job) "
        "succeeds; `all`: every store with Arrow Flight that is reachable then, one at least. "
        "Without it `all` with exactly-once, and 1 with at-least-once",
        kind="int or all",
        parse=values.parse_acks,
        unit="stores",
    )
    commit: str = option(
        BATCH,
        "with exactly-once all rows of a micro-batch, or of a batch write, appear at once, in all "
        "partitions and topics of the store that takes them. No other value is left",
        choices=(BATCH,),
        parse=values.parse_commit,
    )
    audit: bool = option(
        False,
        "streaming queries only, note in topic `__dafka.audit` where the rows of each micro-batch "
        "are, their digest, and that of the source's offsets, for `dafka checkpoint verify` "
        "(docs/checkpoints.md)",
    )
    writer_id: str = option(
        "",
        "batch writes only: a name of the application, whose writes all go on in the same "
        "partitions, one for each topic and task number; without it each write makes partitions of "
        "its own. Where two jobs write with one name at the same time, one fails, or both",
        kind="name",
    )
    txn_app_id: str = option(
        "",
        "batch writes only, with `txnVersion`: a name of the application, of which each version is "
        "written to a topic once; also that of its partitions, as `writerId`",
        kind="name",
    )
    txn_version: int | None = option(
        None,
        "batch writes only, with `txnAppId`: a number that grows with each write of the "
        "application; a write whose number is not greater than the last one's is skipped",
        kind="int",
        parse=parse_int,
        minimum=0,
        maximum=MAX_TXN_VERSION,
    )
    allow_control_characters: bool = option(
        False,
        "write to topics whose names have control characters, or octets that are not UTF-8 "
        "(reading never needs it)",
    )
    delivery_timeout_ms: int = option(
        120_000,
        "the longest wait for stores, and for the last acknowledgement of a task",
        minimum=1,
        unit="ms",
    )

    def __post_init__(self) -> None:
        """Checks what concerns more than one option."""
        if why := self.why_not(self.topic):
            raise ConfigError("topic", escape(self.topic), why)
        if self.audit and not self.is_exact:
            raise ConfigError("audit", "true", f"needs delivery = {EXACTLY_ONCE}")
        self.check_values()
        self._check_transaction()

    def _check_transaction(self) -> None:
        name, version = self.txn_app_id, self.txn_version
        if version is None:
            if name:
                raise ConfigError("txnAppId", name, "is given with 'txnVersion' only: name both")
        elif not name:
            raise ConfigError("txnVersion", version, "is given with 'txnAppId' only: name both")
        elif self.writer_id:
            why = "names the application already; leave out writerId"
            raise ConfigError("txnAppId", name, why)
        elif not self.is_exact:
            why = f"a version is written once: it needs delivery = {EXACTLY_ONCE}"
            raise ConfigError("txnVersion", version, why)

    def why_not(self, topic: str) -> str:
        """Why rows cannot be written to a topic, if so."""
        allowed = self.allow_control_characters or is_plain(topic)
        return "" if allowed else NOT_PLAIN.format("allowControlCharacters")

    @classmethod
    def of_table(cls, kept: Mapping[str, str], given: Mapping[str, str]) -> Self:
        """See ``SparkOptions``; a table that reads one topic is written to that one."""
        topics = values.parse_names(kept["subscribe"]) if "subscribe" in kept else ()
        topic = {"topic": escape(topics[0])} if len(topics) == 1 else {}
        return super().of_table({**topic, **kept}, given)

    @property
    def is_exact(self) -> bool:
        """Whether ``delivery`` is exactly-once."""
        return self.delivery == EXACTLY_ONCE

    @property
    def acks_needed(self) -> int:
        """``acks``, or what ``delivery`` needs: rows that one store alone has go with it."""
        if self.acks is not None:
            return self.acks
        return values.ALL_STORES if self.is_exact else 1

    @property
    def delivery_timeout_s(self) -> float:
        """``deliveryTimeoutMs`` in seconds."""
        return self.delivery_timeout_ms / 1000

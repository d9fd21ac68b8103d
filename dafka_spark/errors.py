"""Errors of the connector; ``dafka_core.errors`` has those of the nodes and stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from dafka_core.errors import DafkaError, DataLossError, PartitionError


@dataclass(eq=False)
class ColumnError(DafkaError, ValueError):
    """A column that cannot be read or written: unknown, missing, of the wrong type, or null."""

    sentence = "column {column!r}: {why}"
    column: str
    why: str


@dataclass(eq=False)
class FetchError(PartitionError):
    """Records that no source returned; ``tried`` has the reason of each source."""

    sentence = (
        "offsets {offset} to {end} (exclusive) could not be read with fetch = {fetch}: {reasons}"
    )
    offset: int
    end: int
    fetch: str
    tried: Sequence[str]

    def _sentence(self, **facts: object) -> str:
        self.tried = tuple(self.tried)
        reasons = "; ".join(self.tried) or "no store that can be read with it has the records"
        return super()._sentence(reasons=reasons)


@dataclass(eq=False)
class SourceLossError(DataLossError):
    """Records that a query needs and no store returns; one subclass per error condition.

    ``lost_end`` is the offset after the last lost record, ``end`` the current end offset of the
    partition, and ``store`` one that had more records, if they are known; ``waited_s`` is the time
    for which the partition has been in this state.
    """

    condition: ClassVar[str] = ""
    cause: ClassVar[str] = ""
    remedy: ClassVar[str] = ""
    available: int | None = None
    why: str = ""
    _: KW_ONLY
    lost_end: int | None = None
    end: int | None = None
    store: str = ""
    waited_s: float = 0.0

    def __post_init__(self) -> None:
        self.why = self.why or self.cause.format(**vars(self))
        super().__post_init__()

    @property
    def finding(self) -> str:
        """The condition and the facts."""
        return f"[{self.condition}] {super()._sentence()}"

    @property
    def advice(self) -> str:
        """The remedy that brings the records back."""
        return self.remedy.format(**vars(self))

    def _sentence(self, **facts: object) -> str:
        otherwise = "or set option failOnDataLoss to false to continue without these records"
        return f"{self.finding}. {self.advice}, {otherwise}"


class StoreLostDataError(SourceLossError):
    """All stores that should have the records answer, and have fewer than before."""

    condition = "DAFKA_STORE_LOST_DATA"
    cause = "it ends at {end} now, before records that were read or planned"
    remedy = (
        "Start a store that still has the records and wait until the others have copied them, or "
        "publish them again at these offsets"
    )


class RetentionAheadError(SourceLossError):
    """Every store has trimmed the records before the query read them."""

    condition = "DAFKA_RETENTION_AHEAD"
    cause = "every store has trimmed the records before it"
    remedy = "Start a store that still has the records"


class PartitionVanishedError(SourceLossError):
    """No store has the partition, or its newest life; ``store`` was the last one that had it."""

    condition = "DAFKA_PARTITION_VANISHED"
    cause = "no store has the partition with its newest producer's records"

    def __post_init__(self) -> None:
        if self.store:
            self.why = f"{self.cause} any more; store {self.store} was the last one that had it"
        super().__post_init__()

    @property
    def advice(self) -> str:
        """The remedy that brings the records back."""
        return f"Start {f'store {self.store}' if self.store else 'a store that has it'} again"


class HeadBehindError(SourceLossError):
    """The stores that answer have less of the partition than ``store``, which does not answer."""

    condition = "DAFKA_HEAD_BEHIND"
    cause = (
        "it ends at {end} in the stores that answer, for {waited_s:g} s now; store {store}, which "
        "may have more, does not answer"
    )
    remedy = (
        "Start store {store} again, or wait until the others have caught up, and restart the "
        "query; option fetchTimeoutMs limits how long it waits for them"
    )


class HistoryReplacedError(SourceLossError):
    """A newer producer has continued the partition without records that the query read or planned.

    Records from ``wanted`` on, or later, are replaced; the query knew the partition up to ``end``.
    """

    condition = "DAFKA_HISTORY_CHANGED"
    cause = (
        "a newer producer of the partition has taken over and continued it without the last "
        "records, up to {end}, that the query has read or planned"
    )
    remedy = (
        "Start the query with a new checkpoint to read the partition as it is now: its results "
        "contain the replaced records that it has read ('dafka store aside' lists them)"
    )


@dataclass(eq=False)
class IncompleteBatchError(PartitionError):
    """Rows that differ from the plan: offset ``found`` (None: the end) is not the expected one."""

    condition: ClassVar[str] = "DAFKA_INCOMPLETE_BATCH"
    sentence = (
        "reading offsets {start} to {end} (exclusive), offset {expected} was expected and {came} "
        "came: {why}. Start the query again; if that does not help, set option fetch to another "
        "value"
    )
    start: int
    end: int
    _: KW_ONLY
    expected: int
    found: int | None
    why: str

    def _sentence(self, **facts: object) -> str:
        came = "no more records" if self.found is None else f"offset {self.found}"
        return f"[{self.condition}] {super()._sentence(came=came)}"


@dataclass(eq=False)
class BadValueError(PartitionError):
    """A value that does not fit option ``valueFormat`` and the query's schema."""

    sentence = (
        "the value at offset {offset} is not valueFormat = {value_format} with this schema: {why}. "
        "With option mode = PERMISSIVE it is null, and column _error has the reason; with "
        "DROPMALFORMED its record is left out"
    )
    offset: int
    value_format: str
    why: str


@dataclass(eq=False)
class BatchTooLargeError(DafkaError):
    """Values of one batch that take too much memory when they are opened."""

    sentence = (
        "the {count} values of one batch open to {opened} bytes, more than {limit}. Set option "
        "maxRecordsPerBatch to a smaller number"
    )
    count: int
    opened: int
    limit: int


@dataclass(eq=False)
class TransactionChangedError(DafkaError):
    """A repeated micro-batch whose rows differ from the committed ones."""

    sentence = (
        "batch {batch} of this query is repeated with other rows: {why}. Nothing was written, as "
        "rows would be missing or doubled. If another query runs from a copy of this checkpoint, "
        "give each query its own checkpoint. If the checkpoint's newest files were lost (an older "
        "copy, a power cut), see docs/delivery.md#after-a-power-cut. If the query produces other "
        "rows each time (rand() in a filter, a table that changes), make it repeatable"
    )
    batch: int
    why: str


@dataclass(eq=False)
class OldCheckpointError(DafkaError):
    """A micro-batch older than the last one that the query has written."""

    sentence = (
        "batch {batch} cannot be written, as batch {last} of this query already is: its checkpoint "
        "is an older copy or was rewound, or the query runs twice, from this checkpoint or a copy. "
        "Use the newest checkpoint, start a new query with a new checkpoint, or continue from here "
        "as another query (dafka checkpoint fork)"
    )
    batch: int
    last: int


@dataclass(eq=False)
class ApplicationError(DafkaError):
    """A version of an application (option ``txnAppId``) that cannot be written."""

    sentence = "version {version} of application {app_id!r} cannot be written: {why}"
    app_id: str
    version: int
    why: str

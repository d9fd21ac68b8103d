"""Errors that only Spark's side can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from dafka_core.errors import DafkaError, DataLossError, PartitionError
from dafka_core.model.records import Transaction


@dataclass(eq=False)
class ColumnError(DafkaError, ValueError):
    """A column that cannot be read or written: unknown, missing, of the wrong type, or null."""

    sentence = "column {column!r}: {why}"
    column: str
    why: str


@dataclass(eq=False)
class FetchError(PartitionError):
    """Records that no source gave; ``tried`` has the reason of each that ``fetch`` allows."""

    sentence = (
        "offsets {offset} to {end} (exclusive) could not be read with option fetch = {fetch}: "
        "{reasons}"
    )
    offset: int
    end: int
    fetch: str
    tried: Sequence[str]

    def _sentence(self, **facts: object) -> str:
        self.tried = tuple(self.tried)
        reasons = "; ".join(self.tried) or "no store that can be read so has them"
        return super()._sentence(reasons=reasons)


@dataclass(eq=False)
class SourceLossError(DataLossError):
    """Records that a query was to read and that no store gives; one subclass per condition.

    Its sentence begins with ``[condition]``, as those of Spark's own errors do.

    Attributes:
        lost_end: the offset after the last one that is lost for the query; None if not known.
        end: where the partition ends now; None if that is not known or not the reason.
        store: a store that has been seen with more; empty if there is none.
        waited_s: how long the partition has looked so, in seconds.
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
        """What has happened."""
        return f"[{self.condition}] {super()._sentence()}"

    @property
    def advice(self) -> str:
        """What brings the records back."""
        return self.remedy.format(**vars(self))

    def _sentence(self, **facts: object) -> str:
        otherwise = "or set option failOnDataLoss to false to go on without these records"
        return f"{self.finding}. {self.advice}, {otherwise}"


class StoreLostDataError(SourceLossError):
    """All stores that should have the records answer, and have less than they had."""

    condition = "DAFKA_STORE_LOST_DATA"
    cause = "it ends at {end} now, before what was read or planned to be read of it"
    remedy = (
        "Start a store that still has the records and let the others catch up with it, or publish "
        "them again at these offsets"
    )


class RetentionAheadError(SourceLossError):
    """Every store has trimmed the records before they were read."""

    condition = "DAFKA_RETENTION_AHEAD"
    cause = "every store has trimmed the records before it"
    remedy = "Start a store that still has the records"


class PartitionVanishedError(SourceLossError):
    """No store knows the partition any more; ``store`` was the last one seen with it."""

    condition = "DAFKA_PARTITION_VANISHED"
    cause = "no store has the partition"

    def __post_init__(self) -> None:
        if self.store:
            self.why = f"{self.cause} any more; store {self.store} was the last one seen with it"
        super().__post_init__()

    @property
    def advice(self) -> str:
        """What brings the records back."""
        return f"Start {f'store {self.store}' if self.store else 'a store that has it'} again"


class HeadBehindError(SourceLossError):
    """The partition ends too early in the stores that answer; ``store``, which had more, does not.

    Nothing is known to be lost: that store may come back, or the others may catch up.
    """

    condition = "DAFKA_HEAD_BEHIND"
    cause = (
        "it ends at {end} in the stores that answer, for {waited_s:g} s now; store {store}, which "
        "may have more, does not answer"
    )
    remedy = (
        "Start store {store} again, or wait until the others have caught up, and start the query "
        "again; option fetchTimeoutMs is how long it waits for them"
    )


class HistoryReplacedError(SourceLossError):
    """A newer producer has gone on without records that the query has read, or was to read.

    From ``wanted`` on, at the earliest, there are others; the query knew the partition up to
    ``end``.
    """

    condition = "DAFKA_HISTORY_CHANGED"
    cause = (
        "a newer producer of the partition has taken over and gone on without the last records, up "
        "to {end}, that the query has read or was to read"
    )
    remedy = (
        "Start it with a new checkpoint to read the partition as it is now: what it has read of "
        "the others is in its results ('dafka store aside' lists them)"
    )


@dataclass(eq=False)
class IncompleteBatchError(PartitionError):
    """Rows that are not those planned: missing, doubled or others.  Always fails the query.

    ``expected`` is the offset that was to come, ``found`` the one that came, None for the end.
    """

    condition: ClassVar[str] = "DAFKA_INCOMPLETE_BATCH"
    sentence = (
        "of offsets {start} to {end} (exclusive) {expected} was to come next and {came} came: "
        "{why}. Start the query again; if that does not help, read with another value of option "
        "fetch"
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
    """A value that is not of option ``valueFormat`` with the query's schema."""

    sentence = (
        "the value at offset {offset} is not valueFormat = {value_format} with this schema: {why}. "
        "With option mode = PERMISSIVE it is null, with the reason in column _error; with "
        "DROPMALFORMED such records are left out"
    )
    offset: int
    value_format: str
    why: str


@dataclass(eq=False)
class TransactionChangedError(DafkaError):
    """A repeated micro-batch that has other rows than those that are committed."""

    sentence = (
        "batch {batch} of this query is repeated with other rows: {why}. Nothing was written, as "
        "rows would be missing or doubled. If another query runs from a copy of this checkpoint, "
        "give each a checkpoint of its own. If the checkpoint's newest files were lost (an older "
        "copy, a power cut), see docs/checkpoints.md. If the query makes other rows each time "
        "(rand() in a filter, a table that changes), make it repeatable (docs/delivery.md)"
    )
    batch: int
    why: str


@dataclass(eq=False)
class OldCheckpointError(PartitionError):
    """A micro-batch older than one that the query has written already."""

    sentence = (
        "batch {version} is to be written, and batch {transaction.version} of this query has "
        "been: its checkpoint is an older copy, or was rewound, or the query runs twice at once, "
        "from it or from a copy. Go on from the newest checkpoint, start a new query with a new "
        "one, or go on from here as another query (dafka checkpoint fork)"
    )
    version: int
    transaction: Transaction


@dataclass(eq=False)
class ApplicationError(DafkaError):
    """A version of an application (option ``txnAppId``) that cannot be written as it is now."""

    sentence = "version {version} of application {app_id!r} cannot be written: {why}"
    app_id: str
    version: int
    why: str

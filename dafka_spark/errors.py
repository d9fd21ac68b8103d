"""Errors that only Spark's side can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from dafka_core.errors import DafkaError, DataLossError, PartitionError
from dafka_core.records import Transaction


@dataclass(eq=False)
class ColumnError(DafkaError, ValueError):
    """A column that cannot be read or written: unknown, missing, of the wrong type, or null."""

    sentence = "column {column!r}: {why}"
    column: str
    why: str


@dataclass(eq=False)
class FetchError(PartitionError):
    """Records that no source gave which option ``fetch`` allows; ``tried`` says why, of each."""

    sentence = (
        "offsets {offset} to {end} (exclusive) could not be had with option fetch = {fetch}: "
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


class SourceLossError(DataLossError):
    """Records that a query was to read and that nobody gives; one subclass per condition.

    Its sentence begins with ``[condition]``, as Spark's own do, and goes on as ``DataLossError``'s.
    ``lost_end`` is the offset after the last one that is gone for the query; None where that is
    not known.  ``advice`` says what to do.
    """

    condition: ClassVar[str] = ""

    def __init__(
        self,
        topic: str,
        partition: str,
        wanted: int,
        available: int | None,
        why: str,
        advice: str,
        lost_end: int | None,
    ) -> None:
        super().__init__(topic, partition, wanted, available, why)
        self.advice = advice
        self.lost_end = lost_end
        self.finding = f"[{self.condition}] {self.args[0]}"
        otherwise = "or set option failOnDataLoss to false to go on without these records"
        self.args = (f"{self.finding}. {advice}, {otherwise}",)


class StoreLostDataError(SourceLossError):
    """All stores that should have the records answer, and have them only up to ``end`` now."""

    condition = "DAFKA_STORE_LOST_DATA"

    def __init__(
        self,
        topic: str,
        partition: str,
        wanted: int,
        *,
        end: int,
        lost_end: int | None,
    ) -> None:
        why = f"it ends at {end} now, before what was read or planned to be read of it"
        advice = (
            "Start a store that still has the records and let the others catch up with it, or "
            "publish them again at these offsets"
        )
        super().__init__(topic, partition, wanted, None, why, advice, lost_end)
        self.end = end


class RetentionAheadError(SourceLossError):
    """Every store has trimmed the records before they were read; ``earliest`` is what is left."""

    condition = "DAFKA_RETENTION_AHEAD"

    def __init__(self, topic: str, partition: str, wanted: int, earliest: int) -> None:
        advice = "Start a store that still has the records"
        why = "every store has trimmed the records before it"
        super().__init__(topic, partition, wanted, earliest, why, advice, earliest)
        self.earliest = earliest


class PartitionVanishedError(SourceLossError):
    """A partition that no store knows any more; ``store`` was the last seen with it, if any."""

    condition = "DAFKA_PARTITION_VANISHED"

    def __init__(
        self, topic: str, partition: str, wanted: int, store: str, lost_end: int | None
    ) -> None:
        why = "no store has the partition"
        if store:
            why += f" any more; store {store} was the last one seen with it"
        advice = f"Start {f'store {store}' if store else 'a store that has it'} again"
        super().__init__(topic, partition, wanted, None, why, advice, lost_end)
        self.store = store


class HeadBehindError(SourceLossError):
    """The partition ends too early in the stores that answer; ``store``, which had more, does not.

    Nothing is known to be lost: that store may come back, or the others may catch up.
    """

    condition = "DAFKA_HEAD_BEHIND"

    def __init__(
        self,
        topic: str,
        partition: str,
        wanted: int,
        end: int,
        store: str,
        waited_s: float,
        lost_end: int | None,
    ) -> None:
        why = (
            f"it ends at {end} in the stores that answer, for {waited_s:g} s now; store {store}, "
            "which may have more, does not answer"
        )
        advice = (
            f"Start store {store} again, or wait until the others have caught up, and start the "
            "query again; option fetchTimeoutMs is how long it waits for them"
        )
        super().__init__(topic, partition, wanted, None, why, advice, lost_end)
        self.end = end
        self.store = store
        self.waited_s = waited_s


@dataclass(eq=False)
class IncompleteBatchError(PartitionError):
    """Rows that are not those planned: missing, doubled or others.  Never passed over.

    ``expected`` is the offset that was to come, ``found`` the one that did, None for the end.
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
class TransactionChangedError(PartitionError):
    """A micro-batch that is run again and gives a partition another number of rows than before."""

    sentence = (
        "batch {transaction.version} of this query has written {count} rows here, at offsets "
        "{transaction.start} to {transaction.end} (exclusive), and has {rows} now that it is run "
        "again. Which rows would be missing or doubled cannot be known: let the query cut this "
        "batch into tasks as it did before (the same options of its sources, the same "
        "repartitioning; see docs/delivery.md)"
    )
    transaction: Transaction
    rows: int

    def _sentence(self, **facts: object) -> str:
        return super()._sentence(count=self.transaction.end - self.transaction.start)


@dataclass(eq=False)
class OldCheckpointError(PartitionError):
    """A micro-batch older than one that the query has written already."""

    sentence = (
        "batch {version} is to be written, and batch {transaction.version} of this query has "
        "been: its checkpoint is an older copy, or two queries run from copies of one. Go on "
        "from the newest checkpoint, or start a new query with a new one"
    )
    version: int
    transaction: Transaction

"""Proves that a sink has what a query has written, batch by batch, or says which batch is wrong.

Nothing is changed.  What the sink noted of each batch (``audit_record``) is compared with what
stores have now, with the checkpoint, and, where somebody makes the rows anew, with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from dafka_core.audit.audit_record import (
    AuditedRange,
    AuditRecord,
    chained,
    parsed,
    partition_of,
    read_contents,
)
from dafka_core.errors import DafkaError, DataLossError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import escape, quoted
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.model.row_digest import RowDigest
from dafka_core.queries.checkpoint import Checkpoint

PROVED: Final = "proved"
TRIMMED: Final = "trimmed"
"""Stores have given up some of its rows."""
WRONG: Final = "wrong"

SAME: Final = "same"
GONE: Final = "gone"
"""Spark has deleted the batch's offsets."""
UNKNOWN: Final = "unknown"
"""The sink was not told where the checkpoint is."""

Recompute = Callable[[int], RowDigest]
"""Makes the rows of a batch anew, from the source's records at its offsets."""


class VerifiedBatch(NamedTuple):
    """What is found of a batch.

    ``source`` says whether the checkpoint has the offsets that the sink has noted, ``recomputed``
    whether the rows were made anew, and ``why`` what is wrong.
    """

    batch: int
    state: str
    rows: int
    source: str
    recomputed: bool
    why: str


class _Wrong(Exception):  # noqa: N818 -- it is caught here
    """What is wrong with a batch."""


class _Trimmed(Exception):  # noqa: N818
    """Nobody can say any more."""


def verified(
    clients: Sequence[StoreClient],
    checkpoint: Checkpoint,
    recompute: Recompute | None = None,
    *,
    from_batch: int = 0,
    timeout_s: float,
) -> Iterator[VerifiedBatch]:
    """Each batch of a query that the sink has noted, in order, up to the first one that is wrong.

    Args:
        clients: the stores.
        checkpoint: the query's.
        recompute: makes rows anew, if wanted.
        from_batch: rows of earlier ones are not read.
        timeout_s: how long a store may not answer.

    Raises:
        DafkaError: there is no record of the query at all, or rows cannot be made anew.
        StoreUnreachableError: a store does not answer.
    """
    stores = _Stores(clients, timeout_s)
    chain = _Chain(checkpoint, stores)
    for content in stores.contents(partition_of(checkpoint.query_id), checkpoint.query_id):
        record, source, is_made, state, why = parsed(content), UNKNOWN, False, PROVED, ""
        try:
            chain.follow(content, record)
            assert record is not None  # it would be wrong
            if record.batch >= from_batch:
                source = _source(checkpoint, record)
                found = _rows(stores, record)
                if recompute and source != GONE:
                    _compare(recompute(record.batch), found, "made anew from the source it has")
                    is_made = True
        except _Trimmed as trimmed:
            state, why = TRIMMED, str(trimmed)
        except _Wrong as wrong:
            state, why = WRONG, str(wrong)
        if state == WRONG or (record is not None and record.batch >= from_batch):
            batch, rows = (record.batch, record.rows) if record else (chain.next_batch, 0)
            yield VerifiedBatch(batch, state, rows, source, is_made, why)
        if state == WRONG:
            return
    for batch, why in chain.missing():
        yield VerifiedBatch(batch, WRONG, 0, UNKNOWN, False, why)
        return


def passed_through(
    clients: Sequence[StoreClient], checkpoint: Checkpoint, *, timeout_s: float
) -> Recompute:
    """Makes the rows of a query that writes what it reads, as it is: the contents of the source."""
    stores = _Stores(clients, timeout_s)

    def recompute(batch: int) -> RowDigest:
        ranges = (each for _, each in checkpoint.ranges(batch) if each.end > each.start)
        digests = (stores.digest(TopicPartition(*each[:2]), *each[2:4]) for each in ranges)
        return sum(digests, RowDigest())

    return recompute


class _Stores:
    """What stores have, asked as it is needed."""

    def __init__(self, clients: Sequence[StoreClient], timeout_s: float) -> None:
        self._clients = clients
        self._timeout_s = timeout_s
        self._heads: dict[str, dict[TopicPartition, list[tuple[StoreClient, PartitionInfo]]]] = {}

    def contents(self, tp: TopicPartition, query_id: str) -> Iterator[bytes]:
        """The records that the sink has made of a query."""
        found = [(info.end, number) for number, (_, info) in enumerate(self._held(tp))]
        if not found:
            why = "no store has a record of what it has written; it makes them with option"
            raise DafkaError(f"query {query_id} cannot be verified: {why} audit = true of its sink")
        client, info = self._held(tp)[max(found)[1]]
        if info.earliest:
            raise DafkaError(f"query {query_id} cannot be verified: its first records are trimmed")
        return read_contents(client, tp, 0, info.end, timeout_s=self._timeout_s)

    def end(self, tp: TopicPartition) -> int:
        return max((info.end for _, info in self._held(tp)), default=0)

    def digest(self, tp: TopicPartition, start: int, end: int) -> RowDigest:
        """That of some rows, at all stores that have them."""
        held = self._held(tp)
        if max((info.end for _, info in held), default=0) < end:
            self._heads.pop(tp.topic)
            held = self._held(tp)
        where = _where(tp)
        has_all = [client for client, info in held if info.earliest <= start and end <= info.end]
        found: list[RowDigest] = []
        for client in has_all:
            with suppress(DataLossError):
                found += client.digests([(*tp, "", start, end)], timeout_s=self._timeout_s)
        if not found:
            if any(info.earliest > start for _, info in held):
                raise _Trimmed(f"{where}: offsets {start} to {end} are trimmed in part")
            raise _Wrong(f"{where}: no store has offsets {start} to {end}")
        if any(each != found[0] for each in found):
            raise _Wrong(f"{where}: stores have other rows at offsets {start} to {end}")
        return found[0]

    def _held(self, tp: TopicPartition) -> list[tuple[StoreClient, PartitionInfo]]:
        if tp.topic not in self._heads:
            found = self._heads[tp.topic] = {}
            for client in self._clients:
                for info in client.heads([tp.topic], timeout_s=self._timeout_s):
                    found.setdefault(info.tp, []).append((client, info))
        return self._heads[tp.topic].get(tp, [])


class _Chain:
    """Follows a query's records: none is missing, doubled or another's, and no row is in none."""

    def __init__(self, checkpoint: Checkpoint, stores: _Stores) -> None:
        self._checkpoint = checkpoint
        self._stores = stores
        self._content = b""
        self._last: AuditRecord | None = None
        self._is_from_first = False
        self._ends: dict[TopicPartition, int] = {}

    @property
    def next_batch(self) -> int:
        return self._last.batch + 1 if self._last else 0

    def follow(self, content: bytes, record: AuditRecord | None) -> None:
        """Takes the next record; raises ``_Wrong``."""
        if record is None:
            raise _Wrong("what is noted of it is no audit record")
        if record.query != self._checkpoint.query_id:
            raise _Wrong(f"the record is of query {record.query}")
        if record.previous != chained(self._content):
            raise _Wrong("its record does not follow the one before: one is missing, or changed")
        if self._last and record.batch != self.next_batch:
            raise _Wrong(f"its record comes where that of batch {self.next_batch} was to come")
        if self._last is None:
            self._is_from_first = record.batch == 0
        for each in record.ranges:
            before = self._ends.get(each.tp, 0 if self._is_from_first else each.start)
            if before != each.start:
                raise _Wrong(f"{_where(each)} begins at {each.start}, and not at {before}")
            self._ends[each.tp] = each.end
        self._content, self._last = content, record

    def missing(self) -> Iterator[tuple[int, str]]:
        """Batches that are done and not noted, and rows that are behind those of all batches."""
        for number in sorted(self._checkpoint.committed):
            if number >= self.next_batch:
                yield number, "it is committed, and the sink has no record of it"
        now = Checkpoint.read(str(self._checkpoint.path))
        if now.is_unfinished or now.planned != self._checkpoint.planned:
            return  # some tasks of a batch may be done, or the query runs
        for tp, end in self._ends.items():
            if self._stores.end(tp) > end:
                yield self.next_batch, f"{_where(tp)}: rows from offset {end} on are of no batch"


def _where(each: AuditedRange | TopicPartition) -> str:
    return f"topic {quoted(each.topic)}, partition {escape(each.partition)}"


def _source(checkpoint: Checkpoint, record: AuditRecord) -> str:
    """Whether the batch's source offsets are those of the checkpoint; raises ``_Wrong``."""
    number = record.batch
    if number not in checkpoint.planned or (number and number - 1 not in checkpoint.planned):
        return GONE
    if not record.source:
        return UNKNOWN
    if checkpoint.source_digest(number) != record.source:
        raise _Wrong("the checkpoint has other source offsets than those it was written from")
    return SAME


def _rows(stores: _Stores, record: AuditRecord) -> RowDigest:
    """The digest of all rows of a batch that stores have; raises ``_Wrong``."""
    found = RowDigest()
    for each in record.ranges:
        try:
            noted = RowDigest.parse(each.digest)
        except ValueError:
            raise _Wrong(f"{_where(each)}: the digest that is noted is none") from None
        digest = stores.digest(each.tp, each.start, each.end)
        _compare(noted, digest, f"{_where(each)}, offsets {each.start} to {each.end}: noted are")
        found += digest
    if found.count != record.rows:
        raise _Wrong(f"it has {found.count} rows, and {record.rows} were written")
    return found


def _compare(wanted: RowDigest, found: RowDigest, what: str) -> None:
    if wanted != found:
        there = f"{found.count} others" if found.count == wanted.count else f"{found.count}"
        raise _Wrong(f"{what} {wanted.count} rows, and stores have {there}")

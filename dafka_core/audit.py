"""Audit of a query: the sink's record of each written micro-batch, and its verification.

A query with option ``audit`` has a partition of topic ``__dafka.audit``, named for its id and its
key, with a record for each micro-batch, in order, written before Spark notes the batch as done::

    {"v": 1, "query": "7090e364-...", "batch": 17, "rows": 1000,
     "ranges": [["out", "EB0A...", 16000, 17000, "1000:9F0C..."]],
     "source": "5e884898...", "previous": "c2a1f0..."}

``ranges`` are the offsets of the rows in the sink's partitions, and their row digest.  ``source``
is the digest of the source offsets where the batch begins and ends, from the checkpoint
(``Checkpoint.source_digest``); empty if the sink does not know the checkpoint.  ``previous`` is the
SHA-256 of the previous record in the partition; empty in the first one.

``verified`` compares each record with the rows that the stores have now, with the checkpoint and,
on request, with recomputed rows.  Nothing is changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, Final, NamedTuple, TypeVar

from dafka_core.errors import ConfigError, DafkaError, DataLossError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.names import AUDIT_TOPIC, escape
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.model.values import RowDigest
from dafka_core.queries import query_progress
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.queries.query_progress import is_partition_of
from dafka_core.security.permissions import EVERYBODY, Permissions

T = TypeVar("T")


class AuditedRange(NamedTuple):
    """Rows of a batch: offsets ``start`` to ``end`` (exclusive) of a partition of the sink."""

    topic: str
    partition: str
    start: Natural
    end: Natural
    digest: str

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)


class AuditRecord(JsonMessage, frozen=True):
    """The record of a batch: see the module's documentation."""

    what: ClassVar[str] = "audit record"

    query: str
    batch: Natural
    rows: Natural
    ranges: tuple[AuditedRange, ...] = ()
    source: str = ""
    previous: str = ""


def partition_of(query_id: str, owner: Permissions = EVERYBODY) -> TopicPartition:
    """Return the partition of a query's records: no other key may write it."""
    return query_progress.partition_of(query_id, AUDIT_TOPIC, owner)


def chained(content: bytes) -> str:
    """Return the ``previous`` of the next record."""
    return hashlib.sha256(content).hexdigest() if content else ""


def parsed_record(content: bytes) -> AuditRecord | None:
    """Parse a record; None if it is invalid: any producer may write to the topic."""
    try:
        return AuditRecord.parse(content)
    except ValueError:
        return None


def previous_and_own(contents: Sequence[bytes], batch: int) -> tuple[bytes, AuditRecord | None]:
    """Return the last record before a batch (empty: none), and the batch's own.

    Invalid contents count as records: the chain includes everything in the partition.
    """
    own = [record for record in map(parsed_record, contents) if record and record.batch == batch]
    before = [content for content in contents if parsed_record(content) not in own]
    return before[-1] if before else b"", own[-1] if own else None


def read_contents(
    client: StoreClient, tp: TopicPartition, start: int, end: int, *, timeout_s: float
) -> Iterator[bytes]:
    """Yield the contents of a partition's records; raise as ``StoreClient.read``."""
    batches = client.read(tp, start, end, timeout_s=timeout_s)
    return (bytes(value) for batch in batches for value in batch.values)


# -- verification ----------------------------------------------------------------------------------

PROVED: Final = "proved"
TRIMMED: Final = "trimmed"  # the stores have deleted some of its rows
REPARTITIONED: Final = "repartitioned"  # Spark only cut the query's state into other partitions
WRONG: Final = "wrong"

SAME: Final = "same"
GONE: Final = "gone"  # Spark has deleted the batch's offsets
UNKNOWN: Final = "unknown"
"""As a source: the sink did not know the checkpoint.  As a state: see ``_Chain.append``."""

Recompute = Callable[[int], RowDigest]
"""Computes the rows of a batch again, from the source's records at its offsets."""


class VerifiedBatch(NamedTuple):
    """The result for a batch.

    ``source`` compares the source offsets in the checkpoint with those in the sink's record,
    ``recomputed`` is true if the rows were computed again, and ``why`` is empty if all is well.
    """

    batch: int
    state: str
    rows: int
    source: str
    recomputed: bool
    why: str


class _Wrong(Exception):  # noqa: N818 -- it is caught here
    """The first difference found in a batch; or rows of it that no store has any more."""

    def __init__(self, why: str, state: str = WRONG) -> None:
        super().__init__(why)
        self.state = state


def verified(
    clients: Sequence[StoreClient],
    checkpoint: Checkpoint,
    recompute: Recompute | None = None,
    *,
    from_batch: int = 0,
    partition: str = "",
    timeout_s: float,
) -> Iterator[VerifiedBatch]:
    """Verify the batches of a query in order, up to the first one that is wrong.

    Rows of batches before ``from_batch`` are not read; ``recompute`` computes the others again, to
    compare them.  ``partition`` is that of the query's records, if several keys have written some.

    Raises DafkaError without a record of the query, or if rows cannot be recomputed.
    """
    stores = _Stores(clients, timeout_s)
    chain = _Chain(checkpoint, stores)

    def found() -> Iterator[VerifiedBatch]:
        for content in stores.contents(checkpoint.query_id, partition):
            record = parsed_record(content)
            rows, source, is_recomputed, state, why = 0, UNKNOWN, False, PROVED, ""
            try:
                if record is None:
                    raise _Wrong("the record written for it is invalid")
                rows = record.rows
                yield from chain.append(content, record)
                if record.batch >= from_batch:
                    source = _source(checkpoint, record)
                    digest = _rows(stores, record)
                    if recompute and source != GONE:
                        made = _unless_gone(checkpoint, record.batch, recompute)
                        if made is None:
                            source = GONE
                        else:
                            _compare(made, digest, "recomputed from its source are")
                            is_recomputed = True
            except _Wrong as wrong:
                state, why = wrong.state, str(wrong)
            batch = chain.next_batch if record is None else record.batch
            yield VerifiedBatch(batch, state, rows, source, is_recomputed, why)
        try:
            yield from chain.end()
        except _Wrong as wrong:
            yield VerifiedBatch(chain.next_batch, WRONG, 0, UNKNOWN, False, str(wrong))

    for each in found():
        if each.state == WRONG or each.batch >= from_batch:
            yield each
        if each.state == WRONG:
            return


def passed_through(
    clients: Sequence[StoreClient], checkpoint: Checkpoint, *, timeout_s: float
) -> Recompute:
    """Return what recomputes the rows of a query that writes its source's records unchanged."""
    stores = _Stores(clients, timeout_s)

    def recompute(batch: int) -> RowDigest:
        ranges = (each for _, each in checkpoint.ranges(batch) if each.end > each.start)
        digests = (stores.digest(TopicPartition(*each[:2]), *each[2:4]) for each in ranges)
        return sum(digests, RowDigest())

    return recompute


class _Stores:
    """The records and digests of several stores; each topic's partitions are read once."""

    def __init__(self, clients: Sequence[StoreClient], timeout_s: float) -> None:
        self._clients = clients
        self._timeout_s = timeout_s
        self._heads: dict[str, dict[TopicPartition, list[tuple[StoreClient, PartitionInfo]]]] = {}

    def contents(self, query_id: str, partition: str) -> Iterator[bytes]:
        """Return the records that the sink has written for a query."""
        own = [tp for tp in self._heads_of(AUDIT_TOPIC) if is_partition_of(query_id, tp.partition)]
        names = " and ".join(sorted(escape(tp.partition) for tp in own))
        found = [tp for tp in own if partition in ("", tp.partition)]
        why = "no store has a record of its batches; sinks with option audit = true write them"
        if len(found) > 1:
            why = (
                f"several keys have written records of it, to partitions {names}; choose with "
                "--partition the one with the same first 12 digits as the query's partitions"
            )
        elif not found and own:
            why = f"no record of it is in partition {escape(partition)}, but in {names}"
        elif found:
            (tp,) = found
            # Stores keep records for different times.
            client, info = max(self._held(tp), key=lambda each: (each[1].end, -each[1].earliest))
            if not info.earliest:
                return read_contents(client, tp, 0, info.end, timeout_s=self._timeout_s)
            why = "its first records are trimmed"
        raise DafkaError(f"query {query_id} cannot be verified: {why}")

    def end(self, tp: TopicPartition) -> int:
        """Return the end offset of a partition."""
        return max((info.end for _, info in self._held(tp)), default=0)

    def digest(self, tp: TopicPartition, start: int, end: int) -> RowDigest:
        """Return the digest of some rows, which is equal at all stores that have them."""
        if self.end(tp) < end:
            self._heads.pop(tp.topic)
        held = self._held(tp)
        has_all = [client for client, info in held if info.earliest <= start and end <= info.end]
        found: list[RowDigest] = []
        for client in has_all:
            with suppress(DataLossError):
                found += client.digests([(*tp, "", start, end)], timeout_s=self._timeout_s)
        if not found:
            if has_all:  # until a moment ago
                self._heads.pop(tp.topic)
            if any(info.earliest > start for _, info in self._held(tp)):
                raise _Wrong(f"{tp}: offsets {start} to {end} are trimmed in part", TRIMMED)
            raise _Wrong(f"{tp}: no store has offsets {start} to {end}")
        if any(each != found[0] for each in found):
            raise _Wrong(f"{tp}: stores have different rows at offsets {start} to {end}")
        return found[0]

    def _held(self, tp: TopicPartition) -> list[tuple[StoreClient, PartitionInfo]]:
        return self._heads_of(tp.topic).get(tp, [])

    def _heads_of(
        self, topic: str
    ) -> dict[TopicPartition, list[tuple[StoreClient, PartitionInfo]]]:
        if topic not in self._heads:
            found = self._heads[topic] = {}
            for client in self._clients:
                for info in client.heads([topic], timeout_s=self._timeout_s):
                    found.setdefault(info.tp, []).append((client, info))
        return self._heads[topic]


class _Chain:
    """A query's records, each of which must follow the one before without a gap."""

    def __init__(self, checkpoint: Checkpoint, stores: _Stores) -> None:
        self.next_batch = 0
        self._checkpoint = checkpoint
        self._stores = stores
        self._content = b""
        self._first: int | None = None
        self._ends: dict[TopicPartition, int] = {}

    def append(self, content: bytes, record: AuditRecord) -> Iterator[VerifiedBatch]:
        """Take the next record; yields the batches before it that need none, or raises _Wrong.

        Spark calls no sink for a batch that repartitions state.  It deletes the offsets of old
        batches, so of these it is unknown; the chain proves that no record was removed.
        """
        if record.query != self._checkpoint.query_id:
            raise _Wrong(f"the record is of query {record.query}")
        if record.previous != chained(self._content):
            raise _Wrong("its record does not follow the previous one: one is missing or changed")
        if self._first is None:
            self._first = self.next_batch = record.batch
        planned = self._checkpoint.planned
        if planned and self.next_batch <= planned[0] and self.next_batch < record.batch:
            last = min(record.batch - 1, planned[0])
            why = (
                f"batches {self.next_batch} to {last} have no record, and Spark has deleted their "
                "offsets: they repartitioned state, or ran without option audit"
            )
            yield VerifiedBatch(last, UNKNOWN, 0, GONE, False, why)
            self.next_batch = last + 1
        yield from self._repartitions(record.batch)
        if record.batch != self.next_batch:
            raise _Wrong(f"its record is at the position of that of batch {self.next_batch}")
        for each in record.ranges:
            end = self._ends.get(each.tp, each.start if self._first else 0)
            if end != each.start:
                raise _Wrong(f"{each.tp} begins at {each.start}, not at {end}")
            self._ends[each.tp] = each.end
        self._content, self.next_batch = content, record.batch + 1

    def _repartitions(self, end: int) -> Iterator[VerifiedBatch]:
        while self.next_batch < end and self._checkpoint.is_repartition(self.next_batch):
            yield VerifiedBatch(self.next_batch, REPARTITIONED, 0, SAME, False, "")
            self.next_batch += 1

    def end(self) -> Iterator[VerifiedBatch]:
        """Check that no committed batch, and no row, follows the last record's."""
        committed = self._checkpoint.committed
        yield from self._repartitions(max(committed, default=-1) + 1)
        if later := [number for number in committed if number >= self.next_batch]:
            self.next_batch = min(later)
            raise _Wrong("it is committed, but the sink has no record of it")
        now = Checkpoint.read(str(self._checkpoint.path))
        if now.is_unfinished or now != self._checkpoint:
            return  # the query runs, or some tasks of its last batch are done
        for tp, end in self._ends.items():
            if self._stores.end(tp) > end:
                raise _Wrong(f"{tp}: rows from offset {end} on belong to no batch")


def _source(checkpoint: Checkpoint, record: AuditRecord) -> str:
    """Compare a batch's source offsets with the checkpoint's; raises _Wrong."""
    if not _is_planned(checkpoint, record.batch):
        return GONE
    if not record.source:
        return UNKNOWN
    digest = _unless_gone(checkpoint, record.batch, checkpoint.source_digest)
    if digest is None:
        return GONE
    if digest != record.source:
        raise _Wrong("it was written from other source offsets than those in the checkpoint")
    return SAME


def _is_planned(checkpoint: Checkpoint, batch: int) -> bool:
    """Return whether the checkpoint has the offsets where a batch begins and ends."""
    return {max(batch - 1, 0), batch} <= {*checkpoint.planned}


def _unless_gone(checkpoint: Checkpoint, batch: int, work: Callable[[int], T]) -> T | None:
    """Return a result for a batch; None if Spark, which runs, has deleted its offsets meanwhile."""
    try:
        return work(batch)
    except ConfigError:
        if _is_planned(Checkpoint.read(str(checkpoint.path)), batch):
            raise
        return None


def _rows(stores: _Stores, record: AuditRecord) -> RowDigest:
    """Return the digest of a batch's rows at the stores; raises _Wrong."""
    found = RowDigest()
    for each in record.ranges:
        try:
            recorded = RowDigest.parse(each.digest)
        except ValueError:
            raise _Wrong(f"{each.tp}: the recorded digest is invalid") from None
        digest = stores.digest(each.tp, each.start, each.end)
        _compare(recorded, digest, f"{each.tp}, offsets {each.start} to {each.end}: recorded")
        found += digest
    if found.count != record.rows:
        raise _Wrong(f"it has {found.count} rows, but {record.rows} were written")
    return found


def _compare(wanted: RowDigest, found: RowDigest, what: str) -> None:
    if wanted != found:
        there = f"{found.count} others" if found.count == wanted.count else f"{found.count}"
        raise _Wrong(f"{what} {wanted.count} rows, but stores have {there}")

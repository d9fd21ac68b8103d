"""The sink's record of a written micro-batch, for later verification.

A query with option ``audit`` has a partition of topic ``__dafka.audit``, named for its id and its
key, with a record for each micro-batch, in order, written before Spark notes the batch as done::

    {"v": 1, "query": "7090e364-...", "batch": 17, "rows": 1000,
     "ranges": [["out", "EB0A...", 16000, 17000, "1000:9F0C..."]],
     "source": "5e884898...", "previous": "c2a1f0..."}

``ranges`` are the offsets of the rows in the sink's partitions, and their row digest.  ``source``
is the digest of the source offsets where the batch begins and ends, from the checkpoint
(``Checkpoint.source_digest``); empty if the sink does not know the checkpoint.  ``previous`` is the
SHA-256 of the previous record in the partition; empty in the first one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from dafka_core.flight.store_client import StoreClient
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.names import AUDIT_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries import query_progress
from dafka_core.security.permissions import EVERYBODY, Permissions


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
    """See the module's documentation."""

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


def parsed(content: bytes) -> AuditRecord | None:
    """Parse a record; None if it is invalid: any producer may write to the topic."""
    try:
        return AuditRecord.parse(content)
    except ValueError:
        return None


def split(contents: Sequence[bytes], batch: int) -> tuple[bytes, AuditRecord | None]:
    """Return the last record before a batch (empty: none), and the batch's own.

    Invalid contents count as records: the chain includes everything in the partition.
    """
    own = [record for record in map(parsed, contents) if record and record.batch == batch]
    before = [content for content in contents if parsed(content) not in own]
    return before[-1] if before else b"", own[-1] if own else None


def read_contents(
    client: StoreClient, tp: TopicPartition, start: int, end: int, *, timeout_s: float
) -> Iterator[bytes]:
    """Yield the contents of a partition's records; raise as ``StoreClient.read``."""
    batches = client.read(tp, start, end, timeout_s=timeout_s)
    return (bytes(value) for batch in batches for value in batch.values)

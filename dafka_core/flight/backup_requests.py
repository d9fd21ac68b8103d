"""Backups and checks over Flight: the requests, and the encoding of a log's entries.

The batches of a backup have three columns: the number of the entry's table, its key, its value
(``storage/backup.py`` has the entries and their order).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from typing import Annotated, ClassVar, Final

import pyarrow as pa
from msgspec import Meta

from dafka_core.flight import limits
from dafka_core.flight.requests import ActionRequest, Request
from dafka_core.flight.store_client import Chunks
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.records import TopicPartition
from dafka_core.storage.backup import FACTS, Entry
from dafka_core.storage.log_check import Checked, PartitionLink

SCHEMA: Final = pa.schema(
    [
        pa.field("table", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.large_binary(), nullable=False),
    ]
)

BACKUP_TICKET: Final = re.compile(rb'"v"\s*:\s*2\b')
"""Found in tickets of backups only: JSON escapes quotes in names and conditions."""

BATCH_BYTES: Final = 8 << 20
BATCH_ENTRIES: Final = 10_000
"""Entries of one batch, unless it is a single larger entry."""


class BackupRequest(Request, frozen=True):
    """A ticket: all entries of the store's log at this moment.

    With ``known`` (id, end, history of each partition) those that an earlier backup lacks.
    """

    what: ClassVar[str] = "ticket"
    json_version: ClassVar[int] = 2
    largest_bytes: ClassVar[int] = limits.MAX_TICKET_BYTES

    known: Annotated[
        tuple[tuple[Natural, Natural, Annotated[str, Meta(max_length=16)]], ...],
        Meta(max_length=limits.MAX_KNOWN),
    ] = ()


class FoundLinks(JsonMessage, frozen=True):
    """Links of some partitions."""

    links: tuple[PartitionLink, ...]


class CheckRequest(ActionRequest[Checked], frozen=True):
    """Read all records of these partitions, or all data beside records, and compare checksums."""

    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=limits.MAX_CHECKED)] = ()
    saved: Annotated[tuple[PartitionLink, ...], Meta(max_length=limits.MAX_CHECKED)] = ()


class LinksRequest(ActionRequest[FoundLinks], frozen=True):
    """Return the links of these partitions' records: a chain of digests (docs/backup.md)."""

    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=limits.MAX_CHECKED)]
    newest: bool = False


def batches(entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
    """Encode entries as batches; each is copied before the next one is read."""
    pending: list[tuple[int, bytes, bytes]] = []
    size_bytes = 0
    for table, key, value in entries:
        is_full = size_bytes + len(value) > BATCH_BYTES or len(pending) == BATCH_ENTRIES
        if pending and is_full:
            yield _batch(pending)
            pending, size_bytes = [], 0
        pending.append((table, key, bytes(value)))
        size_bytes += len(key) + len(value)
    if pending:
        yield _batch(pending)


def entries_of(received: Chunks) -> Generator[Entry]:
    """Decode the entries of batches; raise ValueError if they are not those of a backup."""
    for columns, _ in received:
        if columns.schema != SCHEMA:
            raise ValueError("a batch is not of a backup")
        tables, keys, values = columns.columns
        for table, key, value in zip(tables.to_pylist(), keys.to_pylist(), values, strict=True):
            if table > FACTS:
                raise ValueError(f"table {table} is unknown")
            yield Entry(table, key, memoryview(value.as_buffer()))


def _batch(pending: list[tuple[int, bytes, bytes]]) -> pa.RecordBatch:
    columns = zip(*pending, strict=True)
    arrays = [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)

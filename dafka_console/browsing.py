"""Records of stores: read, searched, and as JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dafka_console.cluster_view import ANSWER_S
from dafka_console.decoding import decoded, preview
from dafka_console.snapshot import Snapshot
from dafka_core.cli.store_clients import Holder, read_range
from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.envelope_columns import opened_columns
from dafka_core.model.names import escape, printable, text_of
from dafka_core.model.opened_records import opened_records
from dafka_core.model.records import Record, RecordBatch, TopicPartition
from dafka_core.model.where import Where, matched

MOST_RECORDS: Final = 200
"""Records of one page."""

MOST_PAGE_BYTES: Final = 32 << 20
"""Size at which a page ends: records can be large."""

SEARCH_S: Final = 1.5
"""Time of one search; the next request continues it."""

SEARCH_RECORDS: Final = 20_000
SEARCH_BYTES: Final = 8 << 20
"""Records read at a time by a search."""

MOST_AT_A_TIME: Final = 4
"""Pages made at a time: each may hold a large record."""

UNKNOWN: Final = "no store that answers has records of it"

turns: Final = threading.BoundedSemaphore(MOST_AT_A_TIME)
"""Held while a page is made."""


Matcher = Callable[[RecordBatch], Sequence[int]]
"""Returns the matching rows of a batch."""


class Search(NamedTuple):
    """A search: a text in keys or values, and a condition as in option ``where``."""

    text: str = ""
    where: str = ""

    def matcher(self) -> Matcher | None:
        """Return a function from a batch to its matching rows; None if all match."""
        if not self.text and not self.where:
            return None
        try:
            condition = Where.parse(self.where) if self.where else None
        except ValueError as error:
            raise InvalidRequestError("where", self.where[:100], str(error)) from None
        octets = self.text.encode("utf-8", "surrogateescape")

        def rows(batch: RecordBatch) -> Sequence[int]:
            found = np.ones(batch.count, bool)
            if octets:
                found &= _contains(batch, octets)
            if condition is not None:
                fits = np.zeros(batch.count, bool)
                fits[matched(batch, condition, opens=True).offsets - batch.offset] = True
                found &= fits
            return np.flatnonzero(found).tolist()

        return rows


def one(
    clients: Sequence[StoreClient], snapshot: Snapshot, tp: TopicPartition, offset: int
) -> Record:
    """Return one record."""
    earliest, end = bounds_of(snapshot, tp, offset)
    if not earliest <= offset < end:
        why = f"the partition has offsets {earliest} to {end - 1}"
        raise InvalidRequestError("offset", offset, why)
    with turns:
        (batch,) = batches(clients, snapshot, tp, offset, offset + 1)
        return next(iter(opened_records(batch)))


def row_of(record: Record) -> dict[str, Any]:
    """Return a record's summary as JSON: one line of its value, and its size."""
    value, key = preview(record.value), preview(record.key)
    return {
        "partition": escape(record.partition),
        "offset": record.offset,
        "time_us": record.timestamp_us,
        "key": key.text,
        "key_format": key.format,
        "value": value.text,
        "format": value.format,
        "media": value.media,
        "bytes": 0 if record.value is None else len(record.value),
        "headers": len(record.headers),
    }


def details_of(record: Record, wanted: str, schema: str) -> dict[str, Any]:
    """Return a whole record as JSON, with its value decoded as requested."""
    return {
        **row_of(record),
        "topic": escape(record.topic),
        "value": decoded(record.value, wanted, schema)._asdict(),
        "key": decoded(record.key)._asdict(),
        "headers": [
            {"name": _name(name), "value": decoded(value)._asdict()}
            for name, value in record.headers[:100]
        ],
    }


def _name(name: str | bytes) -> str:
    return printable(text_of(name) if isinstance(name, bytes) else name)


def bounds_of(snapshot: Snapshot, tp: TopicPartition, start: int | None = None) -> tuple[int, int]:
    """Return the bounds of the readable records; ``start`` must be readable if it exists."""
    columns = snapshot.partitions
    row = columns.row_of(tp)
    if row is None:
        name = f"{escape(tp.topic)}/{escape(tp.partition)}"[:300]
        raise InvalidRequestError("partition", name, UNKNOWN)
    earliest, end = int(columns.earliest[row]), int(columns.end[row])
    readable = max(earliest, int(columns.readable[row]))
    is_beyond = start is not None and readable <= start < end
    if readable < end and (is_beyond or readable == earliest):
        raise DafkaError(f"{tp}: no store that has offsets {readable} to {end - 1} answers")
    return earliest, min(end, readable)


def matching(batch: RecordBatch, matcher: Matcher | None) -> Iterator[Record]:
    """Yield a batch's matching records; all without a matcher."""
    if matcher is None:
        yield from opened_records(batch)
    else:
        for row in matcher(batch):
            offset = batch.offset + row
            yield from opened_records(batch.between(offset, offset + 1))


def batches(
    clients: Sequence[StoreClient], snapshot: Snapshot, tp: TopicPartition, start: int, end: int
) -> Iterator[RecordBatch]:
    """Yield the records of a range, from the stores that have them."""
    row, stores = snapshot.partitions.row_of(tp), snapshot.partitions.stores
    assert row is not None, "as bounds_of has checked"
    held = [(client, stores.get(client.location.store)) for client in clients]
    holders = [Holder(client, 0, int(ends[row])) for client, ends in held if ends is not None]
    limits = {"max_records": SEARCH_RECORDS, "max_bytes": SEARCH_BYTES, "timeout_s": ANSWER_S}
    return read_range(tp, start, end, holders, **limits)


def _contains(batch: RecordBatch, octets: bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    opened = opened_columns(batch.values, ("key", "value"))
    columns = [batch.values.to_arrow()] if opened is None else [opened["key"], opened["value"]]
    found = np.zeros(batch.count, bool)
    for column in columns:
        octet_column = column.cast(pa.large_binary())
        mask = pc.match_substring(octet_column, octets, ignore_case=octets.isascii())
        found |= mask.fill_null(False).to_numpy(zero_copy_only=False)
    return found

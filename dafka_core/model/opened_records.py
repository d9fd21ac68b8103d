"""Opens the envelopes of a batch's records, for applications."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from dafka_core.model.envelope import MAGIC, Headers
from dafka_core.model.records import UNKNOWN_US, Record, Records, records
from dafka_core.model.values import Values


def opened_records(batch: Records, *, opens: bool = True) -> Iterator[Record]:
    """Yield the records, in order; without ``opens`` their envelopes stay unopened."""
    found = records(batch, *opened_lists(batch.values, opens=opens))
    if batch.times is None or UNKNOWN_US not in batch.times[:, 1]:
        return found
    return (r._replace(timestamp_us=None) if r.timestamp_us == UNKNOWN_US else r for r in found)


def opened_lists(
    values: Values, *, opens: bool
) -> tuple[Sequence[bytes | None], Iterable[bytes | None], Iterable[Headers]]:
    """Return values, keys and headers."""
    bare = values.to_list()  # which makes the search in few values quicker
    if opens and len(values.starting_with(MAGIC)):
        # Nodes that receive no envelope need not load Arrow.
        from dafka_core.model.envelope_columns import opened_columns  # noqa: PLC0415

        if (columns := opened_columns(values)) is not None:
            rows = columns["headers"].to_pylist()
            headers = [tuple((each["key"], each["value"]) for each in row or ()) for row in rows]
            return columns["value"].to_pylist(), columns["key"].to_pylist(), headers
    return bare, repeat(None), repeat(())

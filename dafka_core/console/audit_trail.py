"""What Spark's queries have noted of their micro-batches, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dafka_core.console.browsing import browsed
from dafka_core.console.snapshot import Snapshot
from dafka_core.flight.store_client import StoreClient
from dafka_core.names import AUDIT_TOPIC, escape
from dafka_core.queries.audit_record import chained, parsed
from dafka_core.records import TopicPartition

MOST_QUERIES: Final = 50
MOST_BATCHES: Final = 100


def audited_queries(
    clients: Sequence[StoreClient], snapshot: Snapshot, *, most: int = MOST_QUERIES
) -> list[dict[str, Any]]:
    """The queries that have noted batches: their ids, partitions and last batches.

    Raises:
        DafkaError: no store could be read from.
    """
    columns, found = snapshot.partitions, []
    own = [(int(columns.last_us[row]), tp) for tp, row in _rows(snapshot)]
    for _, tp in sorted(own, reverse=True)[:most]:
        page = browsed(clients, snapshot, tp, None, 1)
        record = parsed(page.records[-1].value or b"") if page.records else None
        if record is not None:
            found.append(
                {
                    "query": escape(record.query),
                    "partition": escape(tp.partition),
                    "batch": record.batch,
                    "batches": page.end - page.earliest,
                    "time_us": page.records[-1].timestamp_us,
                }
            )
    return found


def noted(snapshot: Snapshot) -> dict[TopicPartition, int]:
    """Where the records of each query end: another one when there is another record."""
    return {tp: int(snapshot.partitions.end[row]) for tp, row in _rows(snapshot)}


def trail(
    clients: Sequence[StoreClient], snapshot: Snapshot, partition: str, *, most: int = MOST_BATCHES
) -> list[dict[str, Any]]:
    """The last batches of a query, the newest first.

    ``chain`` says of each whether it names the record before it as that lies in the partition:
    ``holds``, ``broken``, or ``begins`` for the first one that is shown or was noted.

    Raises:
        DafkaError: the partition is not there, or no store could be read from.
    """
    tp = TopicPartition(AUDIT_TOPIC, partition)
    page = browsed(clients, snapshot, tp, None, most)
    rows: list[dict[str, Any]] = []
    before: bytes | None = None
    for each in page.records:
        content = each.value or b""
        record = parsed(content)
        if record is None:
            rows.append({"offset": each.offset, "time_us": each.timestamp_us, "chain": "no record"})
        else:
            if before is None:
                chain = "begins"
            else:
                chain = "holds" if record.previous == chained(before) else "broken"
            rows.append(
                {
                    "offset": each.offset,
                    "time_us": each.timestamp_us,
                    "query": escape(record.query),
                    "batch": record.batch,
                    "rows": record.rows,
                    "source": record.source,
                    "chain": chain,
                    "ranges": [
                        {
                            "topic": escape(part.topic),
                            "partition": escape(part.partition),
                            "start": part.start,
                            "end": part.end,
                            "digest": part.digest[:200],
                        }
                        for part in record.ranges[:50]
                    ],
                }
            )
        before = content
    rows.reverse()
    return rows


def _rows(snapshot: Snapshot) -> list[tuple[TopicPartition, int]]:
    columns = snapshot.partitions
    rows = np.flatnonzero(columns.readable > columns.earliest).tolist()
    return [(columns.tps[row], row) for row in rows if columns.tps[row].topic == AUDIT_TOPIC]

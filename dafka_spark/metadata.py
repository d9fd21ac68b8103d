"""The tables of option ``metadata``; ``source/batch_reader.py`` fills them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import DataType, StructType

from dafka_spark.schema import columns, struct

TOPICS: Final = "topics"
PARTITIONS: Final = "partitions"
STORES: Final = "stores"
QUERIES: Final = "queries"
LAG: Final = "lag"

_HELD: Final = (
    "records BIGINT, size_bytes BIGINT, first_timestamp TIMESTAMP, last_timestamp TIMESTAMP"
)
"""The bytes are those of the blocks.  C stores report records only: the other columns are null."""

_BEHIND: Final = "records_behind BIGINT, bytes_behind BIGINT, seconds_behind DOUBLE"

_TABLES: Final = {
    TOPICS: f"topic STRING, partitions BIGINT, {_HELD}",
    PARTITIONS: (
        f"topic STRING, partition STRING, earliest BIGINT, end BIGINT, {_HELD}, "
        "stores ARRAY<STRING>"
    ),
    STORES: (
        "store STRING, state STRING, locations ARRAY<STRING>, last_heard TIMESTAMP, "
        "partitions BIGINT, records BIGINT, file_bytes BIGINT, free_bytes BIGINT, leases BIGINT, "
        "oldest_lease_s DOUBLE, clock_ahead_s DOUBLE"
    ),
    QUERIES: (
        f"query STRING, run STRING, state STRING, partitions BIGINT, {_BEHIND}, reported_s DOUBLE"
    ),
    LAG: (
        "query STRING, run STRING, topic STRING, partition STRING, position BIGINT, end BIGINT, "
        f"{_BEHIND}"
    ),
}

COLUMNS: Final[Mapping[str, Mapping[str, DataType]]] = {
    kind: columns(ddl) for kind, ddl in _TABLES.items()
}
"""The columns of each table (docs/spark.md explains them)."""

KINDS: Final = tuple(COLUMNS)


def full(kind: str, table: Mapping[str, str] | None = None) -> StructType:
    """Return all columns of a table, with the options of a SQL table."""
    return struct(COLUMNS[kind], table)

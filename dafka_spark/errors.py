"""Errors that only Spark's side can have."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_core.errors import DafkaError


class ColumnError(DafkaError, ValueError):
    """A column that cannot be read or written: unknown, missing, of the wrong type, or null."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r}: {why}")
        self.column = column
        self.why = why


class FetchError(DafkaError):
    """Records that no place gave which option ``fetch`` allows; ``tried`` says why, of each."""

    def __init__(
        self, topic: str, partition: str, offset: int, end: int, fetch: str, tried: Sequence[str]
    ) -> None:
        reasons = "; ".join(tried) or "no store that can be read so has them"
        super().__init__(
            f"topic {topic!r}, partition {partition}: offsets {offset} to {end} (exclusive) could "
            f"not be had with option fetch = {fetch}: {reasons}"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end = end
        self.fetch = fetch
        self.tried = tuple(tried)

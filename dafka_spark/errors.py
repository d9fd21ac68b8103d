"""Errors that only Spark's side can have."""

from __future__ import annotations

from dafka_core.errors import DafkaError


class ColumnError(DafkaError, ValueError):
    """A column that cannot be read or written: unknown, missing, of the wrong type, or null."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r}: {why}")
        self.column = column
        self.why = why

"""Rows by the values of columns, whatever batches they come in."""

from __future__ import annotations

import pyarrow as pa

from dafka_spark.jobs.support.grouped_batches import grouped


def test_rows_of_one_value_are_together() -> None:
    batches = [
        pa.RecordBatch.from_pydict({"a": a, "b": b, "n": n})
        for a, b, n in (
            (["x", "x"], [1, 2], [0, 1]),
            (["x", "x", "y"], [2, 2, 2], [2, 3, 4]),
            (["y"], [None], [5]),
        )
    ]
    groups = grouped(batches, ("a", "b"))
    found = [(key, [each["n"].to_pylist() for each in rows]) for key, rows in groups]
    assert found == [
        (("x", 1), [[0]]),
        (("x", 2), [[1], [2, 3]]),
        (("y", 2), [[4]]),
        (("y", None), [[5]]),
    ]
    assert [*grouped([], ("a",))] == []

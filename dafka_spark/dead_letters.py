"""Bad values to a topic of their own, beside the rows that are good."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- as all of Spark's users call it

from dafka_spark.errors import ColumnError
from dafka_spark.schema import CORRUPT, ERROR, ERRORS, HEADERS

PREFIX: Final = "dafka.error."
"""Of the headers that a dead letter has more: ``topic``, ``partition``, ``offset`` and ``why``."""


def split_dead_letters(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The good rows, and the others as dead letters that format ``dafka`` writes.

    Write both in ``foreachBatch``, with ``txnAppId`` and ``txnVersion``: then each of them is in
    its topic once.  A source cannot write dead letters itself: Spark reads a batch as often as it
    likes.

    Args:
        rows: of format ``dafka``, read with option ``mode`` = ``PERMISSIVE``.

    Returns:
        The good rows, without the columns of bad ones; and columns ``key``, ``value`` and
        ``headers`` of the bad ones, as they were, with headers that say where they come from.

    Raises:
        ColumnError: the rows have no such columns.
    """
    names = rows.columns
    for name in (*ERRORS, "topic", "partition", "offset"):
        if name not in names:
            raise ColumnError(name, "is missing; read with option mode = PERMISSIVE")
    why = {**{name: F.col(name) for name in ("topic", "partition", "offset")}, "why": F.col(ERROR)}
    added = F.array(
        *(
            F.struct(
                F.lit(PREFIX + name).alias("key"),
                F.encode(column.cast("string"), "UTF-8").alias("value"),
            )
            for name, column in why.items()
        )
    )
    headers = F.concat(F.coalesce(HEADERS, F.array()), added) if HEADERS in names else added
    key = F.col("key") if "key" in names else F.lit(None).cast("binary")
    bad = rows.where(F.col(ERROR).isNotNull())
    letters = bad.select(key.alias("key"), F.col(CORRUPT).alias("value"), headers.alias(HEADERS))
    return rows.where(F.col(ERROR).isNull()).drop(*ERRORS), letters

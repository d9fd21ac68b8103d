"""Dead letters: records with invalid values, to be written to another topic."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the usual name

from dafka_spark.errors import ColumnError
from dafka_spark.schema import CORRUPT, ERROR, ERRORS, HEADERS


def split_dead_letters(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the valid rows, and the invalid ones as rows that format ``dafka`` writes.

    Write both in ``foreachBatch``, with ``txnAppId`` and ``txnVersion``, so that a repeated batch
    writes none twice.  The invalid rows have columns ``key``, ``value`` and ``headers`` of their
    records, with headers ``dafka.error.topic``, ``.partition``, ``.offset`` and ``.why``.

    Args:
        rows: of format ``dafka``, read with option ``mode`` = ``PERMISSIVE``.

    Raises:
        ColumnError: a column is missing.
    """
    position = ("topic", "partition", "offset")
    for name in (*ERRORS, *position):
        if name not in rows.columns:
            raise ColumnError(name, "is missing; read with option mode = PERMISSIVE")
    facts = {**{name: F.col(name).cast("string") for name in position}, "why": F.col(ERROR)}
    headers = F.array(
        *(
            F.struct(
                F.lit(f"dafka.error.{name}").alias("key"), F.encode(text, "UTF-8").alias("value")
            )
            for name, text in facts.items()
        )
    )
    if HEADERS in rows.columns:
        headers = F.concat(F.coalesce(HEADERS, F.array()), headers)
    key = F.col("key") if "key" in rows.columns else F.lit(None).cast("binary")
    letters = rows.where(F.col(ERROR).isNotNull())
    columns = (key.alias("key"), F.col(CORRUPT).alias("value"), headers.alias(HEADERS))
    return rows.where(F.col(ERROR).isNull()).drop(*ERRORS), letters.select(*columns)

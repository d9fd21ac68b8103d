"""The columns of tables about a cluster."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dafka_spark import metadata
from dafka_spark.errors import ColumnError
from dafka_spark.schema import NEVER_NULL, check, is_table, table_options


@pytest.mark.parametrize("kind", metadata.KINDS)
def test_a_table_has_columns_of_its_own(kind: str) -> None:
    schema = metadata.full(kind, {"metadata": kind})
    assert schema.fieldNames() == [*metadata.COLUMNS[kind]]
    check(schema, metadata.full(kind), NEVER_NULL)
    assert table_options(schema) == {"metadata": kind}
    assert not is_table(schema)


def test_some_columns_may_be_named_in_any_case() -> None:
    check(StructType([StructField("Topic", StringType())]), metadata.full("topics"), NEVER_NULL)
    with pytest.raises(ColumnError, match="did you mean 'size_bytes'"):
        check(
            StructType([StructField("size_byte", LongType())]), metadata.full("topics"), NEVER_NULL
        )
    with pytest.raises(ColumnError, match="cannot be NOT NULL"):
        check(
            StructType([StructField("records", LongType(), nullable=False)]),
            metadata.full("topics"),
            NEVER_NULL,
        )
    with pytest.raises(ColumnError, match="is bigint, not string"):
        check(
            StructType([StructField("records", StringType())]), metadata.full("topics"), NEVER_NULL
        )

"""The interface of codecs, the search for bad values, and optional packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType, StringType

_MAX_WHY: Final = 300


class Codec(Protocol):
    """What makes a column of values, and values of a column.

    Attributes:
        kind: the column's type in Spark.
    """

    kind: DataType

    def decode(self, values: pa.Array) -> pa.Array:
        """The column of values of binary, perhaps null.

        Raises:
            ValueError: one of them at least is not of this format and schema, and why.
        """

    def encode(self, column: pa.Array) -> pa.Array:
        """The values of a column, of binary or string; null where it is null."""


class StringCodec:
    """Text in UTF-8."""

    kind: DataType = StringType()

    def decode(self, values: pa.Array) -> pa.Array:
        """See ``Codec``."""
        try:
            return values.cast(pa.utf8())
        except pa.ArrowInvalid:
            raise ValueError("it is not UTF-8") from None

    def encode(self, column: pa.Array) -> pa.Array:
        """See ``Codec``."""
        return column


class Part(NamedTuple):
    """Rows of a column from ``start`` on; with ``why`` it is one bad value, and null."""

    start: int
    column: pa.Array
    why: str = ""


def apart(values: pa.Array, decode: Callable[[pa.Array], pa.Array]) -> Iterator[Part]:
    """Decodes values by column, and finds those that are bad by halving what has some.

    Yields all rows in order: good ones together, each bad one by itself.
    """
    pending = [(0, len(values))]
    while pending:
        start, count = pending.pop()
        part = values.slice(start, count)
        try:
            column = decode(part)
            if len(column) != count:
                raise ValueError("it is more than one value")
        except ValueError as error:
            if count > 1:
                half = count // 2
                pending += [(start + half, count - half), (start, half)]
                continue
            why = " ".join(str(error).split()).removesuffix(" in row 0")
            yield Part(start, pa.nulls(1), why[:_MAX_WHY])
        else:
            yield Part(start, column)


def joined(parts: list[Part], kind: pa.DataType) -> pa.Array:
    """The column of all parts."""
    columns = [pa.nulls(1, kind) if part.why else part.column for part in parts]
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def needed(module: str, *, extra: str) -> Any:
    """A module of a package that comes with ``extra``.

    Raises:
        ImportError: it is not installed here.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        cure = f"pip install 'dafka-spark[{extra}]'"
        why = f"needs {package} on the driver and the executors: {cure}"
        raise ImportError(why) from None

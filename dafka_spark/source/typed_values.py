"""Column ``value`` of option ``valueFormat``, and what becomes of bad values: option ``mode``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from dafka_core.kept_records import Records
from dafka_spark.errors import BadValueError
from dafka_spark.formats.codec import Codec, Part, apart, joined
from dafka_spark.options import SourceOptions
from dafka_spark.schema import CORRUPT, ERROR
from dafka_spark.value_options import DROPMALFORMED, FAILFAST

_LOG: Final = logging.getLogger(__name__)


class Typed(NamedTuple):
    """Columns by their names, and which rows to keep; None: all of them."""

    columns: dict[str, pa.Array]
    kept: pa.Array | None = None


class TypedValues:
    """Decodes the values of a query's batches."""

    def __init__(self, codec: Codec, value_format: str, mode: str) -> None:
        self._codec = codec
        self._arrow = to_arrow_type(codec.kind, timezone="UTC")
        self._format = value_format
        self._mode = mode

    @classmethod
    def of(cls, options: SourceOptions) -> Self | None:
        """What a query needs; None if its values are bytes."""
        codec = options.codec()
        return None if codec is None else cls(codec, options.value_format, options.mode)

    def needed(self, names: set[str]) -> bool:
        """Whether values must be decoded for columns of these names."""
        return self._mode == DROPMALFORMED or not names.isdisjoint({"value", ERROR, CORRUPT})

    def of_values(self, values: pa.Array, batches: Sequence[Records]) -> Typed:
        """The columns of values of binary, which are those of ``batches``.

        Raises:
            BadValueError: a value is bad, and ``mode`` is ``FAILFAST``.
        """
        parts: list[Part] = []
        for part in apart(values, self._codec.decode):
            if part.why and self._mode == FAILFAST:
                raise self._error(part, batches)
            parts.append(part)
        column = joined(parts, self._arrow)
        bad = [part for part in parts if part.why]
        if not bad:
            return Typed({"value": column})
        if self._mode == DROPMALFORMED:
            left_out = f"mode = DROPMALFORMED leaves out {len(bad)} of {len(values)} records: {{}}"
            _LOG.warning(left_out.format(self._error(bad[0], batches)))
        rows = np.array([part.start for part in bad])
        good = np.ones(len(values), np.bool_)
        good[rows] = False
        if self._mode == DROPMALFORMED:
            return Typed({"value": column}, pa.array(good))
        why = np.full(len(values), None, object)
        why[rows] = [part.why for part in bad]
        corrupt = np.where(good, -1, np.arange(len(values)))
        return Typed(
            {
                "value": column,
                ERROR: pa.array(why, pa.utf8()),
                CORRUPT: values.take(pa.array(corrupt, mask=good)),
            }
        )

    def _error(self, part: Part, batches: Sequence[Records]) -> BadValueError:
        row = part.start
        for batch in batches:
            if row < batch.count:
                break
            row -= batch.count
        return BadValueError(*batch.tp, batch.offset_of(row), self._format, part.why)

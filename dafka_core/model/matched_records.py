"""The records of a range that fit a condition, and which range it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dafka_core.model.envelope_columns import opened_columns
from dafka_core.model.names import escape
from dafka_core.model.records import UNKNOWN_US, RecordBatch, TopicPartition
from dafka_core.model.values import Longs, Values
from dafka_core.model.where import KEY, OFFSET, PARTITION, TIMESTAMP, TOPIC, TYPES, VALUE, Where


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """What is kept of the records from ``offset`` up to ``end``, all of which were looked at.

    Attributes:
        tp: the partition.
        offset, end: the range (exclusive).
        offsets: those of the records that were kept, ascending.
        values: their contents.
        times: their timestamps, as those of ``RecordBatch``.
    """

    tp: TopicPartition
    offset: int
    end: int
    offsets: Longs
    values: Values
    times: Longs | None = field(default=None, compare=False)

    @property
    def topic(self) -> str:
        """The partition's topic."""
        return self.tp.topic

    @property
    def partition(self) -> str:
        """The partition's address within its topic."""
        return self.tp.partition

    @property
    def count(self) -> int:
        """How many records were kept."""
        return len(self.offsets)

    def offset_of(self, row: int) -> int:
        """The offset of one that was kept."""
        return int(self.offsets[row])


Records = RecordBatch | KeptRecords


def kept(batch: RecordBatch, where: Where, *, opens: bool) -> KeptRecords:
    """The records of a batch that fit; ``opens`` says whether keys and values are in envelopes."""
    return kept_by(batch, where.condition.mask(_Columns(batch, opens=opens).column))


def kept_by(batch: RecordBatch, mask: pa.BooleanArray) -> KeptRecords:
    """The records of a batch for which a mask is true, and not null."""
    rows = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
    values = batch.values
    if len(rows) < batch.count:
        values = Values.from_arrow(values.to_arrow().take(pa.array(rows)))
    times = None if batch.times is None else _runs_of(batch.times, rows)
    return KeptRecords(batch.tp, batch.offset, batch.end, rows + batch.offset, values, times)


def concat_kept(parts: Sequence[KeptRecords]) -> KeptRecords:
    """What is kept of neighbouring ranges, as one."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    times = [each.times for each in parts if each.times is not None]
    return KeptRecords(
        first.tp,
        first.offset,
        last.end,
        np.concatenate([each.offsets for each in parts]),
        Values.concat([each.values for each in parts]),
        np.concatenate(times) if len(times) == len(parts) else None,
    )


class _Columns:
    """The columns of a batch, each made when it is asked for, once."""

    def __init__(self, batch: RecordBatch, *, opens: bool) -> None:
        self._batch = batch
        self._opens = opens
        self._made: dict[str, pa.Array] = {}

    def column(self, name: str) -> pa.Array:
        """See ``where.Column``."""
        if name not in self._made:
            if name in (KEY, VALUE):
                self._open()
            else:
                self._made[name] = self._other(name)
        return self._made[name]

    def _open(self) -> None:
        values = self._batch.values
        opened = opened_columns(values, (KEY, VALUE)) if self._opens else None
        bare = {VALUE: values.to_arrow(), KEY: pa.nulls(len(values), TYPES[KEY])}
        self._made |= bare if opened is None else opened

    def _other(self, name: str) -> pa.Array:
        batch, kind = self._batch, TYPES[name]
        if name == OFFSET:
            return pa.array(np.arange(batch.offset, batch.end, dtype=np.int64))
        if name in (TOPIC, PARTITION):
            return pa.repeat(pa.scalar(escape(getattr(batch, name)), kind), batch.count)
        assert name == TIMESTAMP
        if batch.times is None:
            return pa.nulls(batch.count, kind)
        stamps = np.repeat(batch.times[:, 1], batch.times[:, 0])
        return pa.array(stamps, pa.int64(), mask=stamps == UNKNOWN_US).view(kind)


def _runs_of(times: Longs, rows: Longs) -> Longs:
    ends = times[:, 0].cumsum()
    counts = np.diff(rows.searchsorted(ends), prepend=0)
    return np.column_stack((counts, times[:, 1]))[counts > 0]

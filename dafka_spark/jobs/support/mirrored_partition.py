"""A partition's copy in another cluster, with the same name, offsets and timestamps.

The offsets say what is there already.  What is added again is compared with it, not written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dafka_core import Producer, Reader
from dafka_core.archive.record_files import SCHEMA
from dafka_core.envelope_columns import close_columns
from dafka_core.errors import DafkaError
from dafka_core.records import TopicPartition

TIMEOUT_S: Final = 120.0
"""For acknowledgements of stores on a busy machine, or on the other side of the world."""

_OTHER: Final = (
    "its copy has other records from offset {} on: somebody else has written it, or the topic was "
    "made anew. Mirror it to a topic of another name"
)
_UNKNOWN: Final = (
    "its copy has {} records already, and no store there says so now. Mirror it when those run "
    "that have them"
)
_ADDRESS: Final = re.compile("[0-9A-F]{32}")


@dataclass(eq=False)
class MirrorError(DafkaError):
    """A partition that cannot be mirrored."""

    sentence = "{tp} cannot be mirrored: {why}"
    tp: TopicPartition
    why: str


class MirroredPartition:
    """One task's turn at the copy.

    Args:
        tower: the other cluster's.
        tp: what the copy is called there.
        acks: how many stores there must have a record.
        keys: the options by which nodes are let in there; none where nobody asks for keys.

    Raises:
        MirrorError: no producer can have the partition's name.
        DafkaError: the other cluster does not answer.
    """

    def __init__(self, tower: str, tp: TopicPartition, acks: int, keys: Mapping[str, str]) -> None:
        if not _ADDRESS.fullmatch(tp.partition):
            raise MirrorError(tp, "it is of a C producer, whose name no other producer can have")
        self._cluster = {"tower": tower, **keys}
        self._tp = tp
        # Contents are as they are to be: in envelopes those that need one.
        options: dict[str, Any] = {**self._cluster, "acks": acks, "envelope": "none"}
        # The topic has its name already.
        options["allow_control_characters"] = True
        self._producer = Producer(tp.topic, address=tp.partition, **options)
        self._first = self._producer.next_offset
        self.count = 0

    def __enter__(self) -> Self:
        self._producer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._producer.__exit__(*error)

    def add(self, records: pa.RecordBatch) -> None:
        """Takes records in the order of their offsets, with the columns of ``SCHEMA``.

        Raises:
            MirrorError: the copy would have a hole, or has other records.
            DafkaError: the other cluster does not take them.
        """
        table = pa.Table.from_batches([records]).select(SCHEMA.names).cast(SCHEMA)
        known = int(pc.sum(pc.less(table["offset"], self._first)).as_py() or 0)
        if known:
            self._check_known(table.slice(0, known))
        for run in _by_time(table.slice(known)):
            start, time = run["offset"][0].as_py(), run["timestamp"][0].as_py()
            if start != self._producer.next_offset:
                why = (
                    f"its next record is of offset {start}, and the copy ends at "
                    f"{self._producer.next_offset}: it would have a hole, as the records between "
                    "are gone, or not read. Mirror a topic before its first records are given up"
                )
                raise MirrorError(self._tp, why)
            self._producer.publish_many(_contents(run), timestamp=time)
            self.count += run.num_rows

    def finish(self) -> int:
        """Waits until all is acknowledged; returns how much of it is new.

        Raises:
            NotAcknowledgedError: stores did not answer.
        """
        self._producer.flush(TIMEOUT_S)
        return self.count

    def _check_known(self, table: pa.Table) -> None:
        first, last = (table["offset"][at].as_py() for at in (0, -1))
        with Reader(**self._cluster) as reader:
            found = reader.partitions([self._tp.topic], timeout_s=TIMEOUT_S)
            held = next((info for info in found if info.tp == self._tp), None)
            if held is None:
                raise MirrorError(self._tp, _UNKNOWN.format(self._first))
            start = max(first, held.earliest)
            for batch in reader.read(self._tp, start, last + 1, timeout_s=TIMEOUT_S):
                part = table.slice(batch.offset - first, len(batch.values))
                if not batch.values.to_arrow().equals(_contents(part)):
                    raise MirrorError(self._tp, _OTHER.format(batch.offset))


def _contents(table: pa.Table) -> pa.Array:
    value, key, headers = (table[name].combine_chunks() for name in ("value", "key", "headers"))
    return close_columns(value, key, headers)


def _by_time(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows:
        times = table["timestamp"].cast(pa.int64()).fill_null(-1).to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist(), table.num_rows]
        yield from (table.slice(start, end - start) for start, end in pairwise(cuts))

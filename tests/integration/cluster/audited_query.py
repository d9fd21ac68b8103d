"""An audited query with its checkpoint, its rows and its audit records."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dafka_core.audit import AuditedRange, AuditRecord, chained, partition_of
from dafka_core.model.records import TopicPartition
from dafka_core.model.values import RowDigest, Values
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import StoreDouble
from tests.unit.queries.test_checkpoint import QUERY, checkpoint

IN = TopicPartition("in", "A")
OUT = [TopicPartition("out", name) for name in "PQ"]


class AuditedQuery:
    """A query that writes three batches of four rows to two partitions, in turn."""

    def __init__(self, directory: Path, stores: Sequence[StoreDouble]) -> None:
        self.ends = [SourceOffset({IN: 4 * end}, {IN: 0} if end == 1 else {}) for end in (1, 2, 3)]
        self.checkpoint = Checkpoint.read(str(checkpoint(directory, self.ends)))
        self.records: list[AuditRecord] = []
        self._stores, self._last = stores, b""
        for number in range(3):
            rows = [b"%d" % row for row in range(4 * number, 4 * number + 4)]
            self.append(IN, rows)
            ranges = []
            for part, tp in enumerate(OUT):
                self.append(tp, rows[part::2])
                digest = RowDigest().add(Values.of(rows[part::2]))
                ranges.append(AuditedRange(*tp, 2 * number, 2 * number + 2, str(digest)))
            source = self.checkpoint.source_digest(number)
            self.records.append(AuditRecord(QUERY, number, 4, tuple(ranges), source))

    def reread(self) -> None:
        """Read the checkpoint again, after a change of its files."""
        self.checkpoint = Checkpoint.read(str(self.checkpoint.path))

    def append(self, tp: TopicPartition, rows: Sequence[bytes]) -> None:
        """Append rows at all stores."""
        for store in self._stores:
            store.append(tp, rows)

    def audit(self, records: Sequence[AuditRecord | bytes] | None = None) -> None:
        """Append the query's records, or others, each chained to the one before."""
        for each in self.records if records is None else records:
            if isinstance(each, bytes):
                self._last = each
            else:
                previous = each.previous or chained(self._last)
                self._last = replace(each, previous=previous).packed()
            self.append(partition_of(QUERY), [self._last])

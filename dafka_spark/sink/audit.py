"""Option ``audit``: a record of each micro-batch, for ``dafka checkpoint verify``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa

from dafka_core.audit import (
    AuditedRange,
    AuditRecord,
    chained,
    partition_of,
    read_contents,
    split,
)
from dafka_core.errors import ConfigError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import AUDIT_TOPIC
from dafka_core.model.values import RowDigest
from dafka_core.queries.checkpoint import Checkpoint
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.application import Application
from dafka_spark.sink.staging import WriterFactory, WrittenRange
from dafka_spark.sink.store_session import PickedStore

_LAST: Final = 2  # records to read: that of the batch, if it is repeated, and the one before


class _AuditTrail(Application):
    """The records of a query: versions of one partition."""

    @property
    def _prefixes(self) -> tuple[str, str]:
        partition = partition_of(self.app_id, self.owner).partition
        return partition, partition


def write_record(
    options: SinkOptions,
    picked: PickedStore,
    query: Application,
    written: Sequence[WrittenRange],
    checkpoint: str,
) -> None:
    """Write the record of a committed batch, exactly once like its rows."""
    query_id, batch = query.app_id, query.version
    tp = partition_of(query_id, query.owner)
    deadline = Deadline(options.delivery_timeout_s)

    def last_at(client: StoreClient) -> tuple[int, list[bytes]]:
        ((end, *_),) = client.transaction_states([tp], timeout_s=timing.REQUEST_TIMEOUT_S)
        start = max(0, end - _LAST)
        return end, [*read_contents(client, tp, start, end, timeout_s=timing.REQUEST_TIMEOUT_S)]

    with WriterFactory(options, picked) as factory, factory.open(tp) as writer:
        _, last = max(answer for _, answer in factory.session.ask(last_at, deadline))
        before, own = split(last, batch)
        source = ""  # if the checkpoint's path or its files are unknown here
        with suppress(ConfigError):
            source = Checkpoint.read(checkpoint).source_digest(batch) if checkpoint else ""
        if own and not (own.source and source):  # only one of the runs may know the checkpoint
            source = own.source
        # Trimmed rows of a repeated batch have no digest now.
        recorded = {each[:4]: each.digest for each in own.ranges} if own else {}
        ranges = []
        for each in written:
            place, count = (*each.tp, each.start, each.end), each.end - each.start
            digest = each.digest or recorded.get(place) or str(RowDigest(count))
            ranges.append(AuditedRange(*place, digest))
        rows = sum(each.end - each.start for each in written)
        record = AuditRecord(query_id, batch, rows, tuple(sorted(ranges)), source, chained(before))
        writer.write(pa.array([record.packed()], pa.binary()))
        staged = writer.finish(deadline)
    trail = _AuditTrail(query_id, batch, AUDIT_TOPIC, query.owner, is_query=True)
    commit_coordinator.commit(options, picked, [staged], trail)

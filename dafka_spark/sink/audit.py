"""Has the driver note what a micro-batch has written (``dafka_core.audit.audit_record``)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dafka_core.audit.audit_record import (
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
from dafka_core.queries.checkpoint import Checkpoint
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.applications import Application
from dafka_spark.sink.commit_messages import PickedStore, WrittenRange
from dafka_spark.sink.writer_factory import WriterFactory

_LAST = 2
"""Records to read: that of the batch, if it is repeated, and the one before."""


class _AuditTrail(Application):
    """A query's records, which are versions of one partition."""

    @property
    def _prefixes(self) -> tuple[str, str]:
        partition = partition_of(self.app_id).partition
        return partition, partition


def note(
    options: SinkOptions,
    picked: PickedStore,
    application: Application,
    written: Sequence[WrittenRange],
    checkpoint: str,
) -> None:
    """Write the record of a batch whose rows are visible, exactly once, as the rows themselves.

    Args:
        options: the sink's.
        picked: the store where the batch is committed.
        application: the query, at the batch.
        written: where its rows are, with their digests.
        checkpoint: where it is, if Spark has given that to the sink.

    Raises what writing a transaction raises (``TransactionalWriter``), and committing one.
    """
    query_id, batch = application.app_id, application.version
    tp = partition_of(query_id)
    ranges = sorted(AuditedRange(*each.tp, each.start, each.end, each.digest) for each in written)
    deadline = Deadline(options.delivery_timeout_s)
    with WriterFactory(options, picked=picked, goes_on=True) as factory, factory.open(tp) as writer:

        def last_at(client: StoreClient) -> tuple[int, list[bytes]]:
            ((end, *_),) = client.transaction_states([tp], timeout_s=timing.ANSWER_S)
            start = max(0, end - _LAST)
            return end, [*read_contents(client, tp, start, end, timeout_s=timing.ANSWER_S)]

        _, last = factory.largest(last_at, deadline)
        before, own = split(last, batch)
        source = _source_digest(checkpoint, batch)
        if own and not (own.source and source):  # one run only may have been given the checkpoint
            source = own.source
        rows = sum(each.end - each.start for each in written)
        record = AuditRecord(query_id, batch, rows, tuple(ranges), source, chained(before))
        writer.write(pa.array([record.packed()], pa.binary()))
        staged = writer.finish(deadline)
    trail = _AuditTrail(query_id, batch, AUDIT_TOPIC, application.owner, is_query=True)
    commit_coordinator.commit(options, picked, [staged], trail)


def _source_digest(checkpoint: str, batch: int) -> str:
    """Empty where the checkpoint is not on this machine, or has no source of ours."""
    if not checkpoint:
        return ""
    try:
        return Checkpoint.read(checkpoint).source_digest(batch)
    except ConfigError:
        return ""

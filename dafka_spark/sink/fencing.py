"""Ending what earlier attempts of a unit have left at stores that the unit is not written to."""

from __future__ import annotations

import uuid
from contextlib import suppress

import pyarrow as pa

from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.log_entries import Discard
from dafka_core.records import TopicPartition, TransactionState
from dafka_spark.cluster import timing


def end_attempt(
    host: StoreClient, tp: TopicPartition, info: TransactionState, version: int
) -> None:
    """Discards what a store has staged of a partition, so far as it answers.

    Args:
        info: what the store has said of the partition.
        number: that of the unit that is to be written.
    """
    with suppress(DafkaError):
        attempt = info.attempt or _taken_over(host, tp, info.end, version)
        host.discard([Discard(tp, attempt)], timeout_s=timing.DISCARD_S)


def _taken_over(host: StoreClient, tp: TopicPartition, end: int, version: int) -> str:
    """An attempt that takes the place of a unit which came to a store only in part.

    The store it came from is lost.  What is left of it must not be joined with what comes from
    the unit's new host, which has the same offsets, and may have the rows in another order.
    """
    attempt = uuid.uuid4().hex.upper()
    with host.put(tp, end, attempt=attempt, version=version, timeout_s=timing.DISCARD_S) as put:
        put.write(pa.array([b""], pa.binary()))
        put.wait_durable(end + 1, timeout_s=timing.DISCARD_S)
    return attempt

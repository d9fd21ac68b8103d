"""At least once: publishers that write to stores of ours where there are enough, or to the mesh."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

import pyarrow as pa

from dafka_core import Producer
from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.records import TopicPartition
from dafka_spark.cluster.store_registry import StoreRegistry
from dafka_spark.option_values import ALL, ALL_STORES
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_messages import WrittenRange
from dafka_spark.sink.hosted_writer import HostedWriter


class AtLeastOnceWriter:
    """At least once: what a task has written to a partition, through a publisher of any kind."""

    def __init__(self, tp: TopicPartition, publisher: Producer | HostedWriter) -> None:
        self.publisher = publisher
        self._tp = tp
        self._start = publisher.next_offset

    def publish_many(self, values: pa.Array) -> None:
        """Takes binary or string values without nulls."""
        self.publisher.publish_many(values)

    def finish(self, timeout_s: float) -> WrittenRange:
        """Waits until everything is acknowledged.

        Raises:
            NotAcknowledgedError: it is not within ``timeout_s`` seconds.
        """
        self.publisher.flush(timeout_s)
        address, end = self.publisher.address, self.publisher.next_offset
        return WrittenRange(self._tp, min(self._start, end), end)

    def __enter__(self) -> Self:
        self.publisher.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.publisher.__exit__(kind, error, traceback)


def open_at_least_once(options: SinkOptions, tp: TopicPartition) -> AtLeastOnceWriter:
    """A publisher that goes on after the last record the stores have of ``address``.

    Stores of ours host the partition, if there are as many as must acknowledge; else it is
    published to the mesh, where stores of any kind do.

    Raises:
        ConfigError: all stores are to acknowledge, and there is none of ours to count them by.
    """
    hosts = StoreRegistry(options.via)
    try:
        for find in (hosts.current, hosts.anew):
            known = find()
            if len(known) < max(options.acks, 1):
                continue
            with suppress(StoreUnreachableError):
                hosted = HostedWriter(
                    tp,
                    known,
                    hosts,
                    acks=options.acks,
                    timeout_s=options.delivery_timeout_s,
                )
                return AtLeastOnceWriter(tp, hosted)
    except BaseException:
        hosts.close()
        raise
    hosts.close()
    if options.acks == ALL_STORES:
        raise ConfigError(
            "acks", ALL, "counts stores with Arrow Flight, and none answers: name a number"
        )
    producer = Producer(
        tp.topic, tower=options.tower, host=options.host, address=tp.partition, acks=options.acks
    )
    return AtLeastOnceWriter(tp, producer)

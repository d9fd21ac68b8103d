"""Which writer a task's partition gets: transactional, or the mesh where there are no stores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from dafka_core import Producer
from dafka_core.closing import Closing
from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import NO_VERSION, TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.cluster.deadline import Deadline
from dafka_spark.cluster.store_session import StoreSession
from dafka_spark.option_values import ALL, ALL_STORES
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_messages import WrittenRange
from dafka_spark.sink.stream_limit import StreamLimit
from dafka_spark.sink.task_writer import PartitionWriter
from dafka_spark.sink.transactional_writer import TransactionalWriter


class PickedStore(NamedTuple):
    """What the driver has found, for its tasks: they need not look for themselves.

    ``store`` is the one where all of them stage their rows, ``locations`` are all there were.
    """

    store: str
    locations: tuple[StoreLocation, ...]


NOT_PICKED: Final = PickedStore("", ())
"""Each task looks for itself, for a store of its own."""


class WriterFactory(Closing):
    """Opens the writers of one task; to be closed.

    Args:
        version: the transactions'; ``NO_VERSION`` for those of batch writes and at-least-once.
        picked: the store that the driver has picked: the tasks stage there, the driver commits.
        goes_on: whether other stores may have more of the partitions than that one.
    """

    def __init__(
        self,
        options: SinkOptions,
        version: int = NO_VERSION,
        *,
        picked: PickedStore = NOT_PICKED,
        goes_on: bool = False,
    ) -> None:
        self._options = options
        self._version = version
        self._commits = not picked.store
        self._goes_on = goes_on
        self._session = StoreSession(options.mesh_address, picked.locations, only=picked.store)
        self._streams = StreamLimit()

    def close(self) -> None:
        """Gives the stores' clients back."""
        self._session.close()

    def open(self, tp: TopicPartition) -> PartitionWriter:
        """The writer of one partition.

        Raises:
            ConfigError: exactly-once cannot be had, or all stores are to acknowledge and there
                is none to count them by.
            StoreUnreachableError: the store that was picked is not there.
        """
        if not self._options.is_exact:
            return self._open_at_least_once(tp)
        deadline = Deadline(self._options.delivery_timeout_s)
        known = self._session.require(self._options.acks, deadline)
        only = self._session.only
        if only:
            known = self._catch_up(known, tp) if self._goes_on else known
            known = [client for client in known if client.location.store == only]
        return self._transactional(tp, known, deadline.left_s)

    def _transactional(
        self, tp: TopicPartition, known: Sequence[StoreClient], find_s: float
    ) -> TransactionalWriter:
        return TransactionalWriter(
            tp,
            self._version,
            self._session,
            known,
            self._streams,
            commits=self._commits,
            acks=self._options.acks,
            timeout_s=self._options.delivery_timeout_s,
            find_s=find_s,
        )

    def _open_at_least_once(self, tp: TopicPartition) -> PartitionWriter:
        """A transaction without a version; where too few stores take one, the mesh."""
        options = self._options
        for find in (self._session.current, self._session.refresh):
            known = find()
            if len(known) >= max(options.acks, 1):
                with suppress(StoreUnreachableError):
                    return self._transactional(tp, known, timing.SILENT_S)
        if options.acks == ALL_STORES:
            why = "counts stores with Arrow Flight, and none answers: name a number"
            raise ConfigError("acks", ALL, why)
        return MeshWriter(tp, options)

    def _catch_up(self, known: Sequence[StoreClient], tp: TopicPartition) -> list[StoreClient]:
        """Waits until the picked store has what any other has of the partition; the stores then."""

        def end_at(client: StoreClient) -> int:
            return client.transaction_states([tp], timeout_s=timing.ANSWER_S)[0].end

        session, why = self._session, "it is not there"
        deadline = Deadline(self._options.delivery_timeout_s)
        for attempt in deadline.attempts():
            known = session.refresh() if attempt else known
            heard = session.ask_all(known, end_at, deadline)
            end = max(found for _, found in heard)
            for client in (each for each, _ in heard if each.location.store == session.only):
                with suppress(StoreUnreachableError):
                    has = client.wait(tp, end, timeout_s=deadline.left_s)
                    if has >= end:
                        return [each for each, _ in heard]
                    why = f"it has the partition up to {has}, another store up to {end}"
        raise StoreUnreachableError(session.only, why)


class MeshWriter:
    """Publishes one partition to the mesh, where stores of any kind take it: at least once."""

    def __init__(self, tp: TopicPartition, options: SinkOptions) -> None:
        self._tp = tp
        self._producer = Producer(
            tp.topic,
            tower=options.tower,
            host=options.host,
            address=tp.partition,
            acks=options.acks,
        )
        self._start = self._producer.next_offset

    def write(self, values: pa.Array) -> None:
        """Takes binary or string values without nulls."""
        self._producer.publish_many(values)

    def finish(self, deadline: Deadline) -> WrittenRange:
        """Waits until everything is acknowledged.

        Raises:
            NotAcknowledgedError: it is not until the deadline.
        """
        self._producer.flush(deadline.left_s)
        return WrittenRange(self._tp, self._start, self._producer.next_offset)

    def __enter__(self) -> MeshWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._producer.__exit__(*error)

"""Which writer a task's partition gets: transactional, or the mesh where there are no stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import pyarrow as pa

from dafka_core import Producer
from dafka_core.config.missing_stores import ALL
from dafka_core.config.node_options import ProducerOptions
from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.envelope import NONE
from dafka_core.model.records import TopicPartition, TransactionState
from dafka_core.system.closing import Closing
from dafka_spark.cluster import timing
from dafka_spark.cluster.store_session import StoreSession
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_values import ALL_STORES
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_messages import NOT_PICKED, PickedStore, WrittenRange
from dafka_spark.sink.task_writer import PartitionWriter
from dafka_spark.sink.transactional_writer import TaskSetup, TransactionalWriter
from dafka_spark.spark_options import settings_of

T = TypeVar("T", bound=tuple[int, Sequence[bytes]])


class WriterFactory(Closing):
    """Opens the writers of one task; to be closed.

    Args:
        picked: see ``TaskSetup``.
        goes_on: whether other stores may have more of the partitions than the picked one.
        hints: where stores may be, for a process that knows nothing.
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        picked: PickedStore = NOT_PICKED,
        goes_on: bool = False,
        hints: Sequence[StoreLocation] = (),
    ) -> None:
        session = StoreSession(options.mesh_address, picked.locations, hints)
        self._task = TaskSetup(options, session, {}, picked.store)
        self._goes_on = goes_on

    @property
    def stores(self) -> tuple[StoreLocation, ...]:
        """Where the stores are that have answered."""
        return tuple(self._task.session.locations)

    def largest(self, ask: Callable[[StoreClient], T], deadline: Deadline) -> T:
        """The largest of the stores' answers, when all that are there have answered.

        Raises:
            StoreUnreachableError: one that may have more does not until the deadline.
        """
        session = self._task.session
        for heard, lost in session.looks(session.current(), ask, deadline):
            if lost is None:
                return max(answer for _, answer in heard)
        assert lost is not None  # there is one look at least
        raise lost

    def close(self) -> None:
        """Gives the stores' clients back."""
        self._task.session.close()

    def open(self, tp: TopicPartition) -> PartitionWriter:
        """The writer of one partition.

        Raises:
            ConfigError: exactly-once cannot be had, or all stores are to acknowledge and there
                is none to count them by.
            StoreUnreachableError: the store that was picked is not there.
        """
        options, session, *_ = self._task
        if not options.is_exact:
            return self._open_at_least_once(tp)
        deadline = Deadline(options.delivery_timeout_s)
        known = session.require(options.acks_needed, deadline)
        if self._task.picked and self._goes_on:
            known = self._catch_up(known, tp, deadline)
        return TransactionalWriter(tp, self._task, known, deadline)

    def _open_at_least_once(self, tp: TopicPartition) -> PartitionWriter:
        """A transaction without a version; where too few stores take one, the mesh."""
        options, session, *_ = self._task
        for find in (session.current, session.refresh):
            known = find()
            if len(known) >= max(options.acks_needed, 1):
                # Until those that do not answer are given up, and those that do are taken.
                deadline = Deadline(timing.SILENT_S + timing.LOOK_AGAIN_S)
                with suppress(StoreUnreachableError):
                    return TransactionalWriter(tp, self._task, known, deadline)
        if options.stores:
            why = "too few of them take rows now, and there is no mesh to write to without them"
            raise ConfigError("stores", ",".join(options.stores), why)
        if options.acks_needed == ALL_STORES:
            why = "counts stores with Arrow Flight, and none answers: name a number"
            raise ConfigError("acks", ALL, why)
        return MeshWriter(tp, options)

    def _catch_up(
        self, known: Sequence[StoreClient], tp: TopicPartition, deadline: Deadline
    ) -> list[StoreClient]:
        """Waits until the picked store has what any other has of the partition; the stores then."""

        def state_at(client: StoreClient) -> TransactionState:
            return client.transaction_states([tp], timeout_s=timing.ANSWER_S)[0]

        store, given_up = self._task.picked, Deadline(timing.SILENT_S)
        for heard, lost in self._task.session.looks(known, state_at, deadline):
            why = "it is not there"
            picked = [each for each in heard if each[0].location.store == store]
            if picked and lost is None:
                (client, state), end = picked[0], max(each.end for _, each in heard)
                with suppress(StoreUnreachableError):
                    has = state.end
                    if has < end:
                        has = client.wait(tp, end, timeout_s=deadline.left_s)
                    if has >= end:
                        return [each for each, _ in heard]
                    why = f"it has the partition up to {has}, another store up to {end}"
            elif lost is None and given_up.is_over:
                break  # other stores are there: the job's next attempt need not wait
        raise lost or StoreUnreachableError(store, why)


class MeshWriter(PartitionWriter):
    """Publishes one partition to the mesh, where stores of any kind take it: at least once."""

    def __init__(self, tp: TopicPartition, options: SinkOptions) -> None:
        self._tp = tp
        self._producer = Producer(
            tp.topic,
            address=tp.partition,
            tower=options.tower,
            host=options.host,
            port=options.port,
            acks=options.acks_needed,
            envelope=NONE,  # they are closed already, where they need to be
            allow_control_characters=options.allow_control_characters,
            **settings_of(ProducerOptions, options.node),
        )
        self._start = self._producer.next_offset

    def write(self, contents: pa.Array) -> None:
        """Takes binary or string without nulls."""
        self._producer.publish_many(contents)

    def finish(self, deadline: Deadline) -> WrittenRange:
        """Waits until all rows are acknowledged.

        Raises:
            NotAcknowledgedError: they are not until the deadline.
        """
        self._producer.flush(deadline.left_s)
        return WrittenRange(self._tp, self._start, self._producer.next_offset)

    def __exit__(self, *error: object) -> None:
        self._producer.__exit__(*error)

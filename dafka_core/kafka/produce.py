"""Produce and InitProducerId: what Kafka's producers write.

Requests are pipelined: a connection's next one begins before the one before it is on disk.  What
goes to one partition goes through its ``PartitionWriter``, in the order in which it came; a
response leaves when all of its partitions are on disk, and with ``acks=all`` at all stores that are
there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dafka_core.errors import ProtocolError
from dafka_core.kafka import schemas
from dafka_core.kafka.api_versions import Api
from dafka_core.kafka.gateway_node import (
    Client,
    EncodedResponse,
    Feature,
    GatewayNode,
    Handler,
    Response,
)
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.number_table import NumberedPartition
from dafka_core.kafka.partition_writer import Put, Written
from dafka_core.kafka.produce_layout import PartitionAnswer, encoded_answers
from dafka_core.kafka.produce_rounds import ProduceRounds
from dafka_core.kafka.produced_records import BATCH_VERSION, NO_TRANSACTIONS
from dafka_core.kafka.producer_states import NOTES, ProducerStates
from dafka_core.kafka.refusal import RefusedError
from dafka_core.names import INTERNAL
from dafka_core.records import TopicPartition

_log: Final = logging.getLogger("dafka.kafka")

ALL: Final = -1
"""``acks``: all stores that are there."""

MAX_TIMEOUT_S: Final = 600.0
"""A client is not waited for longer, whatever it says."""

ASK_AGAIN_S: Final = 10.0
"""So long a topic for which no partition could be made is refused for the same reason: clients try
again and again, and each turn would be written down."""

ELSEWHERE: Final = -1
"""The base offset of what was written to another partition than the one that it was sent to."""


class _Part(NamedTuple):
    """One partition of a request, and what becomes of it: nothing where there are no records."""

    topic: str
    number: int
    put: Put | RefusedError | None

    @property
    def outcome(self) -> Written | RefusedError | None:
        """What has become of it."""
        if not isinstance(self.put, Put):
            return self.put
        if self.put.outcome.cancelled() or not self.put.outcome.done():
            return RefusedError(KafkaError.REQUEST_TIMED_OUT, "it is not on disk in time")
        return self.put.outcome.result()


class Produce(Feature):
    """Writes what Kafka's producers send."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self._states = ProducerStates()
        self._rounds = ProduceRounds(node, self._states)
        self._replication = node.replication
        self._hosting: dict[str, asyncio.Task[None]] = {}
        self._unheard: set[asyncio.Task[Any]] = set()  # requests whose clients have gone
        self._not_hosted: dict[str, tuple[float, RefusedError]] = {}  # when, and why not
        self.handlers: Mapping[int, Handler] = {
            Api.PRODUCE: self._produce,
            Api.INIT_PRODUCER_ID: self._init_producer_id,
        }

    async def start(self) -> None:
        """Reads what is known of idempotent producers."""
        self._states.restore(await self._node.in_thread(self._node.store.log.notes, NOTES))

    async def close(self) -> None:
        """Ends what no client waits for."""
        ending = (*self._hosting.values(), *self._unheard)
        for each in ending:
            each.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def settle(self, topic: str) -> None:
        """Waits until nothing more is written of a topic whose numbers were taken away."""
        await self._rounds.settle(topic)

    async def _produce(self, request: Any, client: Client) -> Response:
        timeout_s = MAX_TIMEOUT_S
        if request.acks == ALL:  # for the others: Kafka appends before it looks at the time
            timeout_s = min(max(request.timeout_ms, 0) / 1000, timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        # Nothing is awaited before all is with its writer: the next request comes behind it.
        refusal = _refusal(request)
        parts = [
            _Part(topic.name, part.index, refusal or self._begin(topic.name, part, client.version))
            for topic in request.topic_data
            for part in topic.partition_data
        ]
        waiting = [each.put.outcome for each in parts if isinstance(each.put, Put)]
        if waiting:
            await self._wait(waiting, timeout_s, is_awaited=request.acks != 0)
        if request.acks == 0:
            failed = [each.outcome for each in parts if isinstance(each.outcome, RefusedError)]
            if failed:
                # As Kafka does: the client has no other way to hear of it.
                raise ProtocolError(f"a Produce request with acks=0 has failed: {failed[0].why}")
            return None
        outcomes = [each.outcome for each in parts]
        if request.acks == ALL:
            left_s = deadline - asyncio.get_running_loop().time()
            outcomes = await self._replicated(parts, outcomes, left_s)
        answers = map(_answer, parts, outcomes)
        return EncodedResponse([encoded_answers(answers, client.version)])

    async def _wait(
        self, waiting: Sequence[asyncio.Future[Any]], timeout_s: float, *, is_awaited: bool
    ) -> None:
        """Waits for outcomes; what is late is given up, and what nobody waits for any more.

        Of a request with acks=0 the client may have gone: it is written all the same.
        """
        try:
            await asyncio.wait(waiting, timeout=timeout_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not is_awaited and task is not None:
                self._unheard.add(task)
                task.add_done_callback(self._unheard.discard)
                await asyncio.wait(waiting, timeout=timeout_s)
            raise
        finally:
            for each in waiting:
                each.cancel()

    def _begin(self, topic: str, part: Any, version: int) -> Put | RefusedError | None:
        if not part.records:
            if version < BATCH_VERSION:
                return None
            return RefusedError(KafkaError.INVALID_RECORD, "there is no record batch")
        partition = self._node.numbers.get(topic, part.index)
        if partition is None or topic.startswith(INTERNAL):
            error = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            if topic.startswith(INTERNAL):
                error = KafkaError.INVALID_TOPIC_EXCEPTION
            return RefusedError(error, f"there is no partition {part.index} to write to")
        if partition.gateway != self._node.gateways.own.address:
            why = f"gateway {partition.gateway} takes what is written there"
            return RefusedError(KafkaError.NOT_LEADER_OR_FOLLOWER, why)
        tp = self._hosted(partition)
        if tp is None:
            return self._host(topic)
        put = Put(partition, tp, memoryview(part.records), version)
        self._rounds.put(put)
        return put

    def _hosted(self, partition: NumberedPartition) -> TopicPartition | None:
        """The partition to which is written what is sent to this number.

        Nobody else writes to a Dafka producer's own partition: one that this gateway hosts is taken
        in its place, always the same one.
        """
        if partition.hosted:
            return partition.tp
        own = self._node.gateways.own.address
        hosted = [
            each
            for each in self._node.numbers.partitions(partition.topic)
            if each.hosted and each.gateway == own
        ]
        return hosted[partition.number % len(hosted)].tp if hosted else None

    def _host(self, topic: str) -> RefusedError:
        """Has this gateway host partitions of a topic that only Dafka's producers have written.

        Until it does, a client is to ask again.
        """
        if not self._node.options.auto_create_topics:
            why = "it is a Dafka producer's, and this gateway hosts no other one of the topic"
            return RefusedError(KafkaError.POLICY_VIOLATION, why)
        tried = self._not_hosted.get(topic)
        if tried is not None and time.monotonic() < tried[0] + ASK_AGAIN_S:
            return tried[1]
        if topic not in self._hosting:
            self._hosting[topic] = asyncio.create_task(self._extend(topic))
        why = "it is a Dafka producer's, and one is made beside it to which clients write"
        return RefusedError(KafkaError.NOT_LEADER_OR_FOLLOWER, why)

    async def _extend(self, topic: str) -> None:
        numbers, own = self._node.numbers, self._node.gateways.own.address
        count = len(numbers.partitions(topic)) + self._node.options.num_partitions
        try:
            await numbers.extend(topic, count, gateways=[own])
            self._not_hosted.pop(topic, None)
        except RefusedError as refused:
            self._not_hosted[topic] = time.monotonic(), refused
            _log.warning("no partition of %r is made for Kafka clients: %s", topic, refused.why)
        finally:
            del self._hosting[topic]

    async def _replicated(
        self, parts: list[_Part], outcomes: list[Written | RefusedError | None], timeout_s: float
    ) -> list[Written | RefusedError | None]:
        """The outcomes when all other stores have the records, or have not had them in time."""
        ends: dict[TopicPartition, int] = {}
        for part, outcome in zip(parts, outcomes, strict=True):
            if isinstance(part.put, Put) and isinstance(outcome, Written):
                ends[part.put.tp] = max(ends.get(part.put.tp, 0), outcome.end)
        if not ends or await self._replication.wait(ends, timeout_s):
            return outcomes
        late = RefusedError(KafkaError.REQUEST_TIMED_OUT, "not all other stores have it in time")
        return [late if isinstance(each, Written) else each for each in outcomes]

    async def _init_producer_id(self, request: Any, client: Client) -> Response:
        """Ids are drawn at random, so gateways need not agree on them."""
        if request.transactional_id is not None:
            error = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return schemas.InitProducerIdResponse(
                throttle_time_ms=0, error_code=int(error), producer_id=-1, producer_epoch=-1
            )
        return schemas.InitProducerIdResponse(
            throttle_time_ms=0, error_code=0, producer_id=secrets.randbits(63), producer_epoch=0
        )


def _refusal(request: Any) -> RefusedError | None:
    """Why nothing of a request is done; None if there is no reason."""
    if request.acks not in (ALL, 0, 1):
        why = f"acks are -1 (all), 0 or 1, not {request.acks}"
        return RefusedError(KafkaError.INVALID_REQUIRED_ACKS, why)
    if request.transactional_id is not None:
        return RefusedError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    return None


def _answer(part: _Part, outcome: Written | RefusedError | None) -> PartitionAnswer:
    offset = _base_offset(part, outcome)
    if isinstance(outcome, RefusedError):
        return PartitionAnswer(part.topic, part.number, outcome.code, offset, outcome.why)
    return PartitionAnswer(part.topic, part.number, 0, offset)


def _base_offset(part: _Part, outcome: Written | RefusedError | None) -> int:
    if not isinstance(part.put, Put) or not isinstance(outcome, Written):
        return ELSEWHERE
    return outcome.offset if part.put.tp == part.put.partition.tp else ELSEWHERE

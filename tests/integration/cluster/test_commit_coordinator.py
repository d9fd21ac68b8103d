"""What a batch write's tasks have staged is seen as a whole, or not at all."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, FencedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition, TransactionState
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.application import Application, partition_address
from dafka_spark.sink.commit_coordinator import pick_store
from dafka_spark.sink.staging import WriterFactory
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import DafkaBatchWriter, DafkaStreamWriter
from tests.forked import ForkedCluster
from tests.integration.cluster.batch_job import VALUES, BatchJob
from tests.integration.cluster.transactions import (
    PARTITION,
    PATIENCE_S,
    held,
    numbers,
    options,
    publish,
    soon,
    texts_of,
)

MUCH = pa.array([b"x" * 1000] * 30_000)
"""Enough for a store to take a moment with it."""


def test_what_is_staged_is_seen_on_commit(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, shared, topic)
    messages = [job.task(0, numbers(0, 10)), job.task(1, numbers(10, 30))]
    assert [job.info(each).staged_end for each in messages] == [10, 20]
    assert job.seen() == 0
    job.writer.commit(messages)
    assert job.seen() == 30
    job.writer.commit(messages)  # Spark may not have heard of it
    assert job.seen() == 30
    assert job.info(messages[0]).transaction is None


def test_what_an_aborted_job_has_staged_is_discarded(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, shared, topic)
    done = job.task(0, numbers(0, 10))
    killed = [job.task(number, numbers(0, 20)) for number in (1, 2)]  # Spark heard of neither
    assert [job.info(each).staged_end for each in killed] == [20, 20]
    job.writer.abort([done, None, None, None])  # and the last one was never begun
    for each in (done, *killed):
        assert job.info(each) == TransactionState(0, 0, "", None)
    assert job.seen() == 0


def test_a_task_run_twice_is_seen_once(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, shared, topic)
    first = job.task(0, numbers(0, 10))
    second = job.task(0, numbers(0, 10)[::-1])
    job.writer.commit([second])
    (tp,) = {each.tp for written in (first, second) for each in written.ranges}
    assert held(shared, topic, 0, tp.partition).values == texts_of(numbers(0, 10)[::-1])


def test_one_stage_that_is_gone_is_the_whole_jobs_failure(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, shared, topic)
    messages = [job.task(number, numbers(0, 10)) for number in range(3)]
    job.task(1, numbers(0, 10))  # another attempt, of which the driver knows nothing
    with pytest.raises(FencedError):
        job.writer.commit(messages)
    assert job.seen() == 0


def test_more_partitions_than_can_appear_at_once(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    monkeypatch.setattr(commit_coordinator, "MAX_TRANSACTIONS", 2)
    job = BatchJob(monkeypatch, shared, topic)
    messages = [job.task(number, numbers(0, 10)) for number in range(3)]
    with pytest.raises(ConfigError, match="3 partitions cannot appear at once"):
        job.writer.commit(messages)
    assert job.seen() == 0


def test_no_rows_need_no_commit(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, shared, topic)
    done = job.task(0, numbers(0, 0))
    assert done.ranges == ()
    job.writer.commit([done, None])
    assert job.seen() == 0


def test_writes_of_one_query_go_on_in_its_partitions(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    for start in (0, 10):
        job = BatchJob(monkeypatch, shared, topic)
        job.writer.commit([job.task(0, numbers(start, start + 10), query="q")])
    found = held(shared, topic, 0, partition_address("q", topic, 0))
    assert found.values == texts_of(numbers(0, 20))
    assert found.info.transaction is None


def test_writes_of_one_writer_id_go_on_in_its_partitions(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    given = {"writerId": "nightly"}
    partitions = set()
    for start, query in ((0, ""), (10, "q"), (20, "")):  # in foreachBatch, too
        job = BatchJob(monkeypatch, shared, topic, **given)
        written = job.task(0, numbers(start, start + 10), query=query)
        job.writer.commit([written])
        partitions |= {each.tp.partition for each in written.ranges}
    (partition,) = partitions
    assert held(shared, topic, 0, partition).values == texts_of(numbers(0, 30))
    assert partition != partition_address("nightly", topic, 0)  # which a query might be called


def test_of_two_jobs_with_one_writer_id_at_a_time_one_fails_whole(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    first, second = (BatchJob(monkeypatch, shared, topic, writerId="etl") for _ in range(2))
    of_first = [first.task(number, numbers(0, 10)) for number in range(3)]
    of_second = [second.task(number, numbers(10, 30)) for number in range(1, 3)]
    with pytest.raises(FencedError) as caught:
        first.writer.commit(of_first)  # nor of the partition that the second has not written
    (note,) = caught.value.__notes__
    assert "option writerId = 'etl': another job with this name" in note
    first.writer.abort(of_first)
    second.writer.commit(of_second)
    assert first.seen() == 40
    third = BatchJob(monkeypatch, shared, topic, writerId="etl")
    third.writer.commit([third.task(number, numbers(30, 40)) for number in range(3)])
    (last,) = of_second[0].ranges
    assert held(shared, topic, 0, last.tp.partition).values == texts_of(numbers(10, 40))
    assert first.seen() == 70


def test_a_streaming_query_has_no_writer_id(topic: str, shared: EmbeddedCluster) -> None:
    with pytest.raises(ConfigError, match="is for batch writes: a streaming query has partitions"):
        DafkaStreamWriter(VALUES, options(shared, topic=topic, writerId="w"))
    with pytest.raises(ConfigError, match="is for batch writes: each micro-batch"):
        DafkaStreamWriter(VALUES, options(shared, topic=topic, txnAppId="a", txnVersion=1))


def test_all_stores_have_it_and_the_picked_one_catches_up(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, own, topic, acks="all")
    written = job.task(0, numbers(0, 10), query="q")
    # Nothing is to be seen yet, so no other store has it.
    (picked,) = (index for index in range(2) if job.info(written, index).staged_end)
    job.writer.commit([written])
    partition = partition_address("q", topic, 0)
    for index in range(2):
        assert held(own, topic, index, partition).values == texts_of(numbers(0, 10))
    own.kill_store(picked)
    publish(own, topic, numbers(10, 20), partition)
    own.start_store(picked)
    with StoreSession(options(own).mesh_address) as session:
        session.refresh()  # the store is at another port now
    job.writer.commit([job.task(0, numbers(20, 30), query="q")])
    assert held(own, topic, picked, partition).values == texts_of(numbers(0, 30))


def test_many_partitions_are_acknowledged_in_few_requests(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, own, topic, acks="all")
    messages = [job.task(number, numbers(0, 10)) for number in range(5)]
    waited: list[TopicPartition] = []
    current, wait = StoreSession.current, StoreClient.wait

    def when_all_have_all(session: StoreSession) -> list[StoreClient]:
        found = current(session)
        for client, message in product(found, messages):
            wait(client, message.ranges[0].tp, 10, timeout_s=PATIENCE_S)
        return found

    def counted(client: StoreClient, tp: TopicPartition, end: int, **given: Any) -> int:
        waited.append(tp)
        return wait(client, tp, end, **given)

    monkeypatch.setattr(StoreSession, "current", when_all_have_all)
    monkeypatch.setattr(StoreClient, "wait", counted)
    job.writer.commit(messages)
    assert waited == [messages[-1].ranges[0].tp]


def test_the_store_is_started_again_before_the_commit(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    with ForkedCluster() as own:
        job = BatchJob(monkeypatch, own, topic)
        messages = [job.task(0, numbers(0, 10)), job.task(1, numbers(10, 30))]
        own.kill_store(0)
        own.start_store(0)
        job.writer.commit(messages)
        assert job.seen() == 30


def test_a_job_needs_a_store_with_flight(topic: str) -> None:
    with ForkedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        writer = DafkaBatchWriter(VALUES, options(cluster, topic=topic))
        with pytest.raises(ConfigError, match="with 'dafka store") as caught:
            writer.begin()
        assert cluster.stores[0] in str(caught.value)


def test_a_commit_waits_for_stores_that_came_after_the_job_began(own: EmbeddedCluster) -> None:
    own.kill_store(1)
    given = options(own, acks="all", topic="t")
    picked = pick_store(given)
    own.start_store(1)
    tp = TopicPartition("t", PARTITION)
    with WriterFactory(given, picked) as factory, factory.open(tp) as writer:
        writer.write(MUCH)
        staged = writer.finish(soon())
    # By another name of this mesh nothing is known of it, as in another process that commits.
    elsewhere = options(own, acks="all", topic="t", host="127.0.0.1")
    commit_coordinator.commit(elsewhere, picked, [staged], Application.of(elsewhere))
    for index in range(2):
        assert len(held(own, "t", index).values) == len(MUCH)


def test_a_store_that_is_gone_is_not_picked(own: EmbeddedCluster) -> None:
    with StoreSession(options(own).mesh_address) as session:
        assert len(session.refresh()) == 2
    # The one that is left is asked, and its word is not enough.
    gone = sorted(own.stores)[1]
    own.kill_store(own.stores.index(gone))
    picked = {pick_store(options(own, topic=f"t{number}")).store for number in range(8)}
    assert picked == set(own.stores) - {gone}

"""A batch write appears as a whole, or not at all."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, FencedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition, TransactionState
from dafka_core.testing import PATIENCE_S
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.application import Application, partition_address
from dafka_spark.sink.commit_coordinator import pick_store
from dafka_spark.sink.staging import WriterFactory
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import DafkaBatchWriter
from tests.forked import ForkedCluster
from tests.integration.cluster.batch_job import VALUES, BatchJob, MicroBatch, partition, run
from tests.integration.cluster.transactions import (
    PARTITION,
    held,
    numbers,
    options,
    publish,
    soon,
    texts_of,
)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str) -> BatchJob:
    return BatchJob(monkeypatch, shared, topic)


def test_staged_rows_appear_on_commit(job: BatchJob) -> None:
    messages = [job.task(0, numbers(0, 10)), job.task(1, numbers(10, 30))]
    assert [job.info(each).staged_end for each in messages] == [10, 20]
    assert job.seen() == 0
    for _ in range(2):  # Spark repeats a commit if its answer is lost
        job.commit(messages)
        assert job.seen() == 30
    assert job.info(messages[0]).transaction is None


def test_an_aborted_job_discards_its_staged_rows(job: BatchJob) -> None:
    done = job.task(0, numbers(0, 10))
    killed = [job.task(number, numbers(0, 20)) for number in (1, 2)]  # without a report to Spark
    assert [job.info(each).staged_end for each in killed] == [20, 20]
    job.writer.abort([done, None, None, None])  # the last task never began
    for each in (done, *killed):
        assert job.info(each) == TransactionState(0, 0, "", None)


def test_an_aborted_micro_batch_discards_its_staged_rows(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    batch = MicroBatch(monkeypatch, shared, 0, topic)
    done = batch.task(0, numbers(0, 10), topic)
    assert held(shared, topic, 0, partition(done)).info.staged_end == 10
    batch.abort([done, None])
    assert held(shared, topic, 0, partition(done)).info.staged_end == 0
    batch.abort([None])
    batch.commit([])


def test_more_partitions_than_can_appear_at_once(
    job: BatchJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_coordinator, "MAX_TRANSACTIONS", 2)
    messages = [job.task(number, numbers(0, 10)) for number in range(3)]
    with pytest.raises(ConfigError, match="a write to 3 partitions cannot appear at once; 2 can"):
        job.commit(messages)
    job.writer.abort(messages)  # in more than one request
    assert [job.info(each).staged_end for each in messages] == [0, 0, 0]


def test_no_rows_need_no_commit(job: BatchJob) -> None:
    done = job.task(0, numbers(0, 0))
    assert done.ranges == ()
    job.commit([done, None])
    assert job.seen() == 0


# -- names of partitions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "queries"),
    [({}, ["q", "q"]), ({"writerId": "nightly"}, ["", "q", ""])],
    ids=["query", "writerId"],
)
def test_writes_of_one_writer_id_continue_in_its_partitions(
    monkeypatch: pytest.MonkeyPatch,
    shared: EmbeddedCluster,
    topic: str,
    given: dict[str, str],
    queries: list[str],
) -> None:
    names = set()
    for index, query in enumerate(queries):  # the query is that of a foreachBatch
        job = BatchJob(monkeypatch, shared, topic, **given)
        message = job.task(0, numbers(10 * index, 10 * index + 10), query=query)
        job.commit([message])
        names.add(partition(message))
    (name,) = names
    found = held(shared, topic, 0, name)
    assert (found.values, found.info.transaction) == (texts_of(numbers(0, 10 * len(queries))), None)
    # The partitions of a writerId differ from those of a query with this id.
    assert (name == partition_address("q", topic, 0)) is (not given)
    assert name != partition_address("nightly", topic, 0)


def test_of_two_jobs_with_one_writer_id_at_a_time_one_fails_whole(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    first, second = (BatchJob(monkeypatch, shared, topic, writerId="etl") for _ in range(2))
    of_first = [first.task(number, numbers(0, 10)) for number in range(3)]
    of_second = [second.task(number, numbers(10, 30)) for number in range(1, 3)]
    with pytest.raises(FencedError) as caught:
        first.commit(of_first)
    (note,) = caught.value.__notes__
    assert "option writerId = 'etl': another job with this name" in note
    first.writer.abort(of_first)
    second.commit(of_second)
    assert first.seen() == 40
    third = BatchJob(monkeypatch, shared, topic, writerId="etl")
    run(third, [numbers(30, 40)] * 3)
    assert held(shared, topic, 0, partition(of_second[0])).values == texts_of(numbers(10, 40))
    assert first.seen() == 70


# -- stores ----------------------------------------------------------------------------------------


def test_all_stores_have_it_and_the_picked_one_catches_up(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, own, topic, acks="all")
    message = job.task(0, numbers(0, 10), query="q")
    picked = own.stores.index(message.picked.store)
    assert job.info(message, 1 - picked).staged_end == 0
    job.commit([message])
    name = partition_address("q", topic, 0)
    for index in range(2):
        assert held(own, topic, index, name).values == texts_of(numbers(0, 10))
    own.kill_store(picked)
    publish(own, topic, numbers(10, 20), name)
    own.start_store(picked)
    with StoreSession(options(own).mesh_address) as session:
        session.refresh()  # the store is at another port now
    job.commit([job.task(0, numbers(20, 30), query="q")])
    assert held(own, topic, picked, name).values == texts_of(numbers(0, 30))


def test_many_partitions_are_acknowledged_in_few_requests(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster, topic: str
) -> None:
    job = BatchJob(monkeypatch, own, topic, acks="all")
    messages = [job.task(number, numbers(0, 10)) for number in range(5)]
    waited: list[TopicPartition] = []
    wait_for_acks, wait = StoreSession.wait_for_acks, StoreClient.wait

    def when_all_have_all(session: StoreSession, *given: Any) -> None:
        for client, message in product(session.clients(), messages):
            wait(client, message.ranges[0].tp, 10, timeout_s=PATIENCE_S)
        wait_for_acks(session, *given)

    def counted(client: StoreClient, tp: TopicPartition, end: int, **given: Any) -> int:
        waited.append(tp)
        return wait(client, tp, end, **given)

    monkeypatch.setattr(StoreSession, "wait_for_acks", when_all_have_all)
    monkeypatch.setattr(StoreClient, "wait", counted)
    job.commit(messages)
    assert waited == [messages[-1].ranges[0].tp]


def test_the_store_restarts_before_the_commit(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster, topic: str
) -> None:
    own.kill_store(1)
    job = BatchJob(monkeypatch, own, topic)
    messages = [job.task(0, numbers(0, 10)), job.task(1, numbers(10, 30))]
    own.kill_store(0)
    own.start_store(0)
    job.commit(messages)
    assert job.seen() == 30


def test_a_job_needs_a_store_with_flight(topic: str) -> None:
    with ForkedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        writer = DafkaBatchWriter(VALUES, options(cluster, topic=topic))
        with pytest.raises(ConfigError, match="with 'dafka store") as caught:
            writer.begin()
        assert cluster.stores[0] in str(caught.value)


def test_a_commit_waits_for_stores_that_came_after_the_job_began(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster
) -> None:
    own.kill_store(1)
    given = options(own, acks="all", topic="t")
    picked = pick_store(given)
    own.start_store(1)
    tp = TopicPartition("t", PARTITION)
    with WriterFactory(given, picked) as factory, factory.open(tp) as writer:
        writer.write(numbers(0, 10))
        staged = writer.finish(soon())
    waited: set[str] = set()
    wait = StoreClient.wait

    def recorded(client: StoreClient, *args: Any, **given: Any) -> int:
        waited.add(client.location.store)
        return wait(client, *args, **given)

    monkeypatch.setattr(StoreClient, "wait", recorded)
    # By another name of this mesh the store is unknown, as in another process that commits.
    elsewhere = options(own, acks="all", topic="t", host="127.0.0.1")
    commit_coordinator.commit(elsewhere, picked, [staged], Application.of(elsewhere))
    assert waited == {own.stores[1]}


def test_a_store_that_is_gone_is_not_picked(own: EmbeddedCluster) -> None:
    with StoreSession(options(own).mesh_address) as session:
        assert len(session.refresh()) == 2
    # The other store still reports it.
    gone = sorted(own.stores)[1]
    own.kill_store(own.stores.index(gone))
    picked = {pick_store(options(own, topic=f"t{number}")).store for number in range(8)}
    assert picked == set(own.stores) - {gone}

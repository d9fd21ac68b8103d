"""A batch write appears as a whole, or not at all."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, FencedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TransactionState
from dafka_core.testing import PATIENCE_S
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.application import Application, partition_address
from dafka_spark.sink.commit_coordinator import pick_store
from dafka_spark.sink.staging import WriterFactory
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import TaskCommit
from tests.forked import ForkedCluster
from tests.integration.cluster.sinks import Sink, numbers, partition, run, stage, store_of, texts
from tests.integration.cluster.stores import Patch


def state(sink: Sink, message: TaskCommit, store: int = 0) -> TransactionState:
    """Return a store's state of the only partition that a task has written."""
    return sink.held(store, partition(message)).info


def acknowledged(patch: Patch) -> list[tuple[str, str]]:
    """Return the store and the partition of each wait for an acknowledgement from now on."""
    waited, wait = list[tuple[str, str]](), StoreClient.wait

    def recorded(client: StoreClient, *args: Any, **given: Any) -> int:
        waited.append((store_of(client), args[0].partition))
        return wait(client, *args, **given)

    patch.setattr(StoreClient, "wait", recorded)
    return waited


def test_staged_rows_appear_on_commit(sink: Sink) -> None:
    job = sink.job()
    messages = [
        job.task(0, numbers(0, 10)),
        job.task(1, numbers(10, 30)),
        job.task(2, numbers(0, 0)),
    ]
    assert [state(sink, each).staged_end for each in messages[:2]] == [10, 20]
    assert messages[2].ranges == ()
    job.commit([messages[2], None])  # no rows need no commit
    assert sink.seen() == 0
    for _ in range(2):  # Spark repeats a commit if its answer is lost
        job.commit(messages)
        assert sink.seen() == 30
    assert state(sink, messages[0]).transaction is None


def test_an_abort_discards_staged_rows(sink: Sink) -> None:
    sink.patch.setattr(commit_coordinator, "MAX_TRANSACTIONS", 2)
    job = sink.job()
    done = [job.task(number, numbers(0, 10)) for number in range(3)]
    killed = [job.task(number, numbers(0, 20)) for number in (3, 4)]  # without a report to Spark
    assert [state(sink, each).staged_end for each in killed] == [20, 20]
    with pytest.raises(ConfigError, match="a write to 3 partitions cannot appear at once; 2 can"):
        job.commit(done)
    job.abort([*done, None, None, None])  # the last task never began
    for each in (*done, *killed):
        assert state(sink, each) == TransactionState(0, 0, "", None)
    batch = sink.micro_batch(0)
    staged = batch.task(0, numbers(0, 10))
    assert state(sink, staged).staged_end == 10
    batch.abort([staged, None])
    assert state(sink, staged).staged_end == 0
    batch.abort([None])
    batch.commit([])


# -- names of partitions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "queries"),
    [({}, ["q", "q"]), ({"writerId": "nightly"}, ["", "q", ""])],
    ids=["query", "writerId"],
)
def test_writes_of_one_writer_id_continue_in_its_partitions(
    sink: Sink, given: dict[str, str], queries: list[str]
) -> None:
    names = set()
    for index, query in enumerate(queries):  # the query is that of a foreachBatch
        job = sink.job(**given)
        message = job.task(0, numbers(10 * index, 10 * index + 10), query=query)
        job.commit([message])
        names.add(partition(message))
    (name,) = names
    found = sink.held(0, name)
    assert (found.values, found.info.transaction) == (texts(0, 10 * len(queries)), None)
    # The partitions of a writerId differ from those of a query with this id.
    assert (name == partition_address("q", sink.topic, 0)) is (not given)
    assert name != partition_address("nightly", sink.topic, 0)


def test_of_two_jobs_with_one_writer_id_at_a_time_one_fails_whole(sink: Sink) -> None:
    first, second = (sink.job(writerId="etl") for _ in range(2))
    of_first = [first.task(number, numbers(0, 10)) for number in range(3)]
    of_second = [second.task(number, numbers(10, 30)) for number in range(1, 3)]
    with pytest.raises(FencedError) as caught:
        first.commit(of_first)
    (note,) = caught.value.__notes__
    assert "option writerId = 'etl': another job with this name" in note
    first.abort(of_first)
    second.commit(of_second)
    assert sink.seen() == 40
    run(sink.job(writerId="etl"), [numbers(30, 40)] * 3)
    assert sink.held(0, partition(of_second[0])).values == texts(10, 40)
    assert sink.seen() == 70


# -- stores ----------------------------------------------------------------------------------------


def test_all_stores_have_it_and_the_picked_one_catches_up(pair: Sink) -> None:
    job, cluster = pair.job(acks="all"), pair.cluster
    message = job.task(0, numbers(0, 10), query="q")
    picked = cluster.stores.index(message.picked.store)
    assert state(pair, message, 1 - picked).staged_end == 0
    job.commit([message])
    name = partition_address("q", pair.topic, 0)
    for index in range(2):
        assert pair.held(index, name).values == texts(0, 10)
    cluster.kill_store(picked)
    pair.publish(numbers(10, 20), name)
    cluster.start_store(picked)
    with pair.session() as session:
        session.refresh()  # the store is at another port now
    job.commit([job.task(0, numbers(20, 30), query="q")])
    assert pair.held(picked, name).values == texts(0, 30)


def test_many_partitions_are_acknowledged_in_few_requests(pair: Sink) -> None:
    job = pair.job(acks="all")
    messages = [job.task(number, numbers(0, 10)) for number in range(5)]
    wait_for_acks, wait = StoreSession.wait_for_acks, StoreClient.wait
    waited = acknowledged(pair.patch)

    def when_all_have_all(session: StoreSession, *given: Any) -> None:
        for client, message in product(session.clients(), messages):
            wait(client, message.ranges[0].tp, 10, timeout_s=PATIENCE_S)
        wait_for_acks(session, *given)

    pair.patch.setattr(StoreSession, "wait_for_acks", when_all_have_all)
    job.commit(messages)
    assert [name for _, name in waited] == [partition(messages[-1])]


def test_the_store_restarts_before_the_commit(pair: Sink) -> None:
    pair.cluster.kill_store(1)
    job = pair.job()
    messages = [job.task(0, numbers(0, 10)), job.task(1, numbers(10, 30))]
    pair.cluster.kill_store(0)
    pair.cluster.start_store(0)
    job.commit(messages)
    assert pair.seen() == 30


def test_a_job_needs_a_store_with_flight(patch: Patch) -> None:
    with ForkedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        with pytest.raises(ConfigError, match="with 'dafka store") as caught:
            Sink(cluster, "t", patch).job()
        assert cluster.stores[0] in str(caught.value)


def test_a_commit_waits_for_stores_that_came_after_the_job_began(pair: Sink) -> None:
    pair.cluster.kill_store(1)
    options = pair.options(acks="all")
    picked = pick_store(options)
    pair.cluster.start_store(1)
    with WriterFactory(options, picked) as factory, factory.open(pair.tp) as writer:
        staged = stage(writer, numbers(0, 10))
    waited = acknowledged(pair.patch)
    # By another name of this mesh the store is unknown, as in another process that commits.
    elsewhere = pair.options(acks="all", host="127.0.0.1")
    commit_coordinator.commit(elsewhere, picked, [staged], Application.of(elsewhere))
    assert {store for store, _ in waited} == {pair.cluster.stores[1]}


def test_a_store_that_is_gone_is_not_picked(own: EmbeddedCluster, pair: Sink) -> None:
    with pair.session() as session:
        assert len(session.refresh()) == 2
    # The other store still reports it.
    gone = sorted(own.stores)[1]
    own.kill_store(own.stores.index(gone))
    picked = {pick_store(pair.options(topic=f"t{number}")).store for number in range(8)}
    assert picked == set(own.stores) - {gone}

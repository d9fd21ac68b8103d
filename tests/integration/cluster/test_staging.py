"""A task's writer: its rows are staged once at the picked store, whatever happens to it."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import (
    ConfigError,
    FencedError,
    NotAcknowledgedError,
    StoreBusyError,
    StoreUnreachableError,
)
from dafka_core.flight.store_client import PutStream, StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.log_entries import Discard
from dafka_core.model.records import TopicPartition, Transaction, TransactionState
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import DirectRecordBatch, RecordBatchMessage
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.sink import commit_coordinator, staging
from dafka_spark.sink.commit_coordinator import Application, partition_address, pick_store
from dafka_spark.sink.staging import StagingWriter, WriterFactory, WrittenRange, fence
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import TaskCommit
from tests.forked import ForkedCluster
from tests.integration.cluster.sinks import (
    PARTITION,
    Sink,
    count_restarts,
    numbers,
    partition,
    run,
    soon,
    stage,
    store_of,
    texts,
)
from tests.integration.cluster.stores import Patch
from tests.integration.cluster.test_cluster_reader import have_met
from tests.integration.nodes.peers import RawPeer
from tests.unit.protocol.strategies import packed

pytestmark = pytest.mark.usefixtures("small_blocks")


def test_transactions_follow_each_other(sink: Sink) -> None:
    with sink.open() as writer:
        assert stage(writer, numbers(0, 0)) == WrittenRange(sink.tp, 0, 0, writer.attempt)
    assert sink.held().info == TransactionState(0, 0, "", None)
    for start in (0, 10, 20):
        with sink.open() as writer:
            writer.write(numbers(start, start + 4))
            written = stage(writer, numbers(start + 4, start + 10))
        assert written == WrittenRange(sink.tp, start, start + 10, writer.attempt)
        found = sink.held().info
        assert (found.end, found.staged_end, found.attempt) == (start, start + 10, writer.attempt)
        sink.commit(written)
        assert sink.held().values == texts(0, start + 10)
    with sink.open() as writer:  # it continues behind a commit that comes meanwhile
        sink.publish(numbers(30, 60))
        written = stage(writer, numbers(60, 70))
    assert (written.start, written.end) == (60, 70)
    sink.commit(written)
    assert sink.held().values == texts(0, 70)


# -- attempts of one task --------------------------------------------------------------------------


def test_an_attempt_that_fails_leaves_nothing(sink: Sink) -> None:
    with pytest.raises(KeyboardInterrupt), sink.open() as writer:  # noqa: PT012
        writer.write(numbers(0, 95))
        writer.pause(soon())
        assert sink.held().info.staged_end == 90
        raise KeyboardInterrupt
    found = sink.held().info
    assert found.end == found.staged_end == 0


def test_a_later_attempt_replaces_an_earlier_one(sink: Sink) -> None:
    with sink.open() as zombie:
        zombie.write(numbers(0, 50))
        zombie.pause(soon())
        with sink.open() as writer:
            writer.write(numbers(0, 95)[::-1])  # in another order
            writer.pause(soon())
            with pytest.raises(FencedError):
                stage(zombie, numbers(50, 95))
            sink.commit(writer.finish(soon()))
    assert sink.held().values == texts(0, 95)[::-1]


def test_a_replaced_attempt_does_not_take_over_after_a_restart(pair: Sink) -> None:
    pair.patch.setattr(staging, "HOLD_S", PATIENCE_S)
    pair.cluster.kill_store(1)
    with pair.open() as zombie:
        zombie.write(numbers(0, 50))
        with pair.open() as writer:
            written = stage(writer, numbers(0, 95))
        pair.cluster.kill_store(0)  # and the zombie's stream
        pair.cluster.start_store(0)
        with pytest.raises(FencedError):
            stage(zombie, numbers(50, 95))
    pair.commit(written)
    assert pair.held().values == texts(0, 95)


def test_parts_of_two_attempts_are_never_joined(pair: Sink) -> None:
    """Both stores have a part of a transaction, and its store is lost; one of them is picked."""
    stores, lost = pair.cluster.stores, packed([b"lost"] * 10)
    with RawPeer(pair.cluster.tower) as peer:
        for store in stores:
            peer.wait_until_subscribed(subscription(DirectRecordBatch, store))
        peer.send(RecordBatchMessage(*pair.tp, 0, 10, lost, Transaction(0, 0, 20)))
        wait_until(lambda: [pair.held(index).info.staged_end for index in (0, 1)] == [10, 10])
    # As the same version, which the stores would join with their part.
    factory = pair.factory(txnAppId="a", txnVersion=0)
    with factory, factory.open(pair.tp) as writer:
        written = stage(writer, numbers(0, 20))
        assert pair.held(1 - stores.index(factory.picked)).info.staged_end == 0
        pair.commit(written, store=factory.picked)
    assert [pair.held(index).values for index in (0, 1)] == [texts(0, 20)] * 2


def test_only_the_open_transaction_of_other_attempts_is_discarded() -> None:
    discarded: list[Discard] = []
    taken_over: list[int] = []

    class Store(StoreClient):
        def put(self, tp: TopicPartition, start: int, **given: Any) -> PutStream:
            taken_over.append(start)
            raise StoreUnreachableError(self.location.store, "it has gone meanwhile")

        def discard(self, discards: Sequence[Discard], *, timeout_s: float) -> None:
            discarded.extend(discards)

    tp = TopicPartition("t", PARTITION)
    picked, other = (Store(StoreLocation(name, ("grpc://127.0.0.1:1",))) for name in "AB")
    older = TransactionState(10, 15, "", Transaction(3, 0, 10))
    this = TransactionState(20, 25, "", Transaction(4, 10, 20))
    zombie = TransactionState(10, 15, "F" * 32, Transaction(3, 0, 10))
    for state in (older, this, zombie):
        fence(tp, [(picked, zombie), (other, state)], picked, 20)
    assert taken_over == [this.end]
    assert discarded == [Discard(tp, zombie.attempt)]


# -- the store is lost -----------------------------------------------------------------------------


@pytest.fixture(params=[300, 1 << 20])
def retained(request: pytest.FixtureRequest, patch: Patch) -> int:
    """A bound of the rows in memory: for some of a test's rows, or for all."""
    bound: int = request.param
    patch.setattr(staging, "RETAINED_BYTES", bound)
    return bound


def test_the_store_restarts(pair: Sink, retained: int) -> None:
    pair.cluster.kill_store(1)
    with pair.open() as writer:
        writer.write(numbers(0, 155))
        assert writer.is_whole is (retained > 300)
        pair.cluster.kill_store(0)
        pair.cluster.start_store(0)
        written = stage(writer, numbers(155, 300))
    pair.commit(written)
    assert pair.held().values == texts(0, 300)


@pytest.mark.usefixtures("retained")
def test_a_store_that_is_given_up_fails_the_task_at_once(pair: Sink) -> None:
    """Not after two minutes: Spark can try again at the other store."""
    pair.patch.setattr(timing, "STORE_TIMEOUT_S", 1.0)
    with pair.open(pair.cluster.stores[0]) as writer:
        writer.write(numbers(0, 155))
        pair.cluster.kill_store(0)
        with pytest.raises(NotAcknowledgedError, match="after 1 s") as caught:
            stage(writer, numbers(155, 300))
    assert "it alone had rows of the job, and is gone" in str(caught.value.__cause__)
    assert pair.held().values == []  # of the other store


def test_the_only_store_is_waited_for_until_the_deadline(pair: Sink) -> None:
    pair.patch.setattr(timing, "STORE_TIMEOUT_S", 0.5)
    pair.cluster.kill_store(1)
    with pair.open(pair.cluster.stores[0]) as writer:
        writer.write(numbers(0, 15))
        pair.cluster.kill_store(0)
        writer.write(numbers(15, 19))
        with pytest.raises(NotAcknowledgedError, match="after 2 s"):
            writer.finish(Deadline(2.0))


def test_the_store_is_lost_again_while_rows_are_staged_again(sink: Sink) -> None:
    put, sent = PutStream.write, 0

    def broken(stream: PutStream, values: pa.Array) -> None:
        nonlocal sent
        sent += 1
        is_lost = sent in (6, 8)
        put(stream, values[: len(values) // 2] if is_lost else values)
        if is_lost:
            stream.wait_durable(stream.end, timeout_s=PATIENCE_S)
            raise StoreUnreachableError(sink.cluster.stores[0], "the connection was lost")

    sink.patch.setattr(PutStream, "write", broken)
    with sink.open() as writer:
        written = stage(writer, numbers(0, 100))
    sink.commit(written)
    assert sink.held().values == texts(0, 100)


@pytest.mark.parametrize("catches_up", [True, False])
def test_the_picked_store_catches_up_before_the_first_row(pair: Sink, catches_up: bool) -> None:
    picked, _ = pair.cluster.stores
    waited: list[tuple[str, int]] = []
    real = StoreClient.transaction_states

    def states(client: StoreClient, *args: Any, **given: Any) -> list[TransactionState]:
        if store_of(client) == picked or (waited and catches_up):
            return real(client, *args, **given)
        return [TransactionState(10, 10, "", None)]

    def wait(client: StoreClient, tp: TopicPartition, end: int, **_: Any) -> int:
        waited.append((store_of(client), end))
        return end

    with pair.session() as session:
        wait_until(lambda: len(session.refresh()) == 2)
    pair.patch.setattr(StoreClient, "transaction_states", states)
    pair.patch.setattr(StoreClient, "wait", wait)
    if catches_up:
        pair.open(picked)
        assert waited == [(picked, 10)]
        return
    with pytest.raises(StoreUnreachableError, match="up to offset 0, and another store up to 10"):
        pair.open(picked, deliveryTimeoutMs=1000)


def test_a_store_that_is_away_refuses_the_writer(pair: Sink) -> None:
    away = pair.cluster.stores[1]
    pair.cluster.kill_store(1)
    with pytest.raises(StoreUnreachableError, match=away):
        pair.open(away, deliveryTimeoutMs=1000)


# -- memory and streams ----------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "bound"), [(b"a number", 2000), (b"", 200)])
def test_retained_rows_are_bounded(sink: Sink, value: bytes, bound: int) -> None:
    sink.patch.setattr(staging, "RETAINED_BYTES", bound)
    sink.patch.setattr(staging, "HOLD_S", PATIENCE_S)  # a pause on a busy machine releases all
    wait_durable = PutStream.wait_durable

    def wait_exactly(stream: PutStream, end: int, *, timeout_s: float) -> int:
        wait_durable(stream, end, timeout_s=timeout_s)
        return end

    sink.patch.setattr(PutStream, "wait_durable", wait_exactly)
    block = 10 * (len(value) + 4)
    with sink.open() as writer:
        for count in range(1, 101):
            writer.write(pa.array([value] * 10))
            # Only the oldest rows are released: later ones may not be on disk.
            assert min(bound, count * block) - block < writer.retained_bytes <= bound
        assert not writer.is_whole
        written = writer.finish(soon())
        assert writer.retained_bytes == 0
    sink.commit(written)
    assert sink.held().values == [value] * 1000


def stage_in_turn(
    sink: Sink, topics: int, rows: int, check: Callable[[WriterFactory, list[StagingWriter]], bool]
) -> None:
    """Write to topics in turn, some rows at a time; ``check`` holds after each time."""
    names = [f"{sink.topic}-{index}" for index in range(topics)]
    with sink.factory() as task, ExitStack() as stack:
        writers = [
            stack.enter_context(task.open(TopicPartition(name, PARTITION))) for name in names
        ]
        for start in range(0, 10 * rows, rows):
            for writer in writers:
                writer.write(numbers(start, start + rows))
                assert check(task, writers)
        sink.commit(*(writer.finish(soon()) for writer in writers))
    assert [sink.held(topic=name).values for name in names] == [texts(0, 10 * rows)] * topics


def test_rows_of_all_topics_are_bounded_together(sink: Sink) -> None:
    sink.patch.setattr(staging, "RETAINED_BYTES", 2000)
    sink.patch.setattr(staging, "BLOCK_ROWS", 20)

    def are_bounded(task: WriterFactory, writers: list[StagingWriter]) -> bool:
        return sum(each.buffer.size_bytes + each.retained_bytes for each in writers) <= 2000

    stage_in_turn(sink, 9, 15, are_bounded)


def test_many_topics_share_few_streams(sink: Sink) -> None:
    sink.patch.setattr(staging, "MAX_STREAMS", 2)
    stage_in_turn(sink, 5, 20, lambda task, writers: len(task.streams) <= 2)


def test_two_hundred_slow_writers_share_the_places_of_a_store(sink: Sink) -> None:
    """Each has some rows staged while it computes the others; a store serves 32 streams."""
    sink.patch.setattr(staging, "HOLD_S", 0.05)
    all_staged = threading.Barrier(200)
    store = sink.cluster.stores[0]

    def work(number: int) -> int:
        with sink.open(store, f"{number:032X}") as writer:
            writer.write(numbers(0, 10))
            writer._wait_durable(10, PATIENCE_S)  # and leave it to the timer to close the stream
            all_staged.wait(PATIENCE_S)
            return stage(writer, numbers(10, 25)).end

    with ThreadPoolExecutor(200) as tasks:
        assert list(tasks.map(work, range(200))) == [25] * 200


@pytest.mark.parametrize("moves", [True, False])
def test_a_busy_store_is_waited_for_as_long_as_it_serves_others(sink: Sink, moves: bool) -> None:
    put = StoreClient.put
    waited: list[float] = []

    def busy(client: StoreClient, *args: Any, waited_s: float, **given: Any) -> PutStream:
        waited.append(waited_s)
        if len(waited) <= 6:
            raise StoreBusyError(store_of(client), "it has no place", waited_s + 30, moves)
        return put(client, *args, waited_s=waited_s, **given)

    sink.patch.setattr(StoreClient, "put", busy)
    again = count_restarts(sink.patch)
    with sink.open(deliveryTimeoutMs=500) as writer:
        writer.write(numbers(0, 9))  # less than a block
        if moves:
            assert writer.finish(soon()).end == 9
            assert len(again) == 6
            assert waited == [0, 30, 60, 90, 120, 150, 180]  # it keeps its place in the queue
        else:
            with pytest.raises(NotAcknowledgedError):
                writer.finish(Deadline(0.5))


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


def test_two_writes_of_one_query_at_a_time_are_told_the_remedy(sink: Sink) -> None:
    """As by threads of a foreachBatch."""
    first, second = sink.job(), sink.job()
    of_first, of_second = (each.task(0, numbers(0, 10), query="q") for each in (first, second))
    with pytest.raises(FencedError) as caught:
        first.commit([of_first])
    assert "give each write of a foreachBatch its own writerId" in caught.value.__notes__[0]
    second.commit([of_second])
    assert sink.seen() == 10


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
    wait_until(lambda: have_met(pair))  # a store that no other one knows yet is not waited for
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

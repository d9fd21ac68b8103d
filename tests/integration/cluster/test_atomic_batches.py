"""A numbered write appears as a whole, and once: a micro-batch, or a version of a batch write."""

import threading
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from dafka_core.errors import DafkaError, FencedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import StagedTransaction, TopicPartition, Transaction
from dafka_core.storage import Log
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.errors import ApplicationError, OldCheckpointError, TransactionChangedError
from dafka_spark.options import COUNT_BITS, MAX_TXN_VERSION
from dafka_spark.sink.commit_coordinator import Application
from dafka_spark.sink.writer import TaskCommit
from tests.forked import ForkedCluster
from tests.integration.cluster.sinks import Sink, Write, numbers, partition, run, texts
from tests.integration.cluster.stores import Logged, Patch

Cut = Sequence[tuple[int, int]]


class Versions:
    """The versions of one application: of a query, or of option ``txnAppId``."""

    def __init__(self, sink: Sink, kind: str) -> None:
        self.sink, self.is_query = sink, kind == "query"
        self.changed: type[DafkaError] = (
            TransactionChangedError if self.is_query else ApplicationError
        )

    def begin(self, version: int, app: str = "etl") -> Write:
        if self.is_query:
            return self.sink.micro_batch(version, topic=self.sink.topic)
        return self.sink.job(txnAppId=app, txnVersion=version)

    def run(self, version: int, *cut: tuple[int, int], step: int = 1) -> list[TaskCommit]:
        """Run tasks with the rows from the first of two numbers to the second, exclusive."""
        return run(self.begin(version), [numbers(*each)[::step] for each in cut])

    @property
    def seen(self) -> int:
        return self.sink.seen()

    def leave_part(self, version: int, rows: pa.Array, *, task: int = 0, of: int = 2) -> None:
        """Commit one of several partitions, as a store has them after its source is lost."""
        topic = self.sink.topic
        application = Application("etl", version, topic)
        if self.is_query:
            application = Application.of_query(self.sink.options(), topic, version)
        tp = TopicPartition(topic, application.address(topic, task))
        last, attempt = application.transaction_version(of), uuid.uuid4().hex.upper()
        with self.sink.session() as session:
            (client,) = session.refresh()
            with client.put(tp, 0, attempt=attempt, version=last, timeout_s=PATIENCE_S) as put:
                put.write(rows)
                put.finish(PATIENCE_S)
            staged = StagedTransaction(*tp, attempt, 0, len(rows), last)
            client.commit([staged], timeout_s=PATIENCE_S)


of_both_kinds = pytest.mark.parametrize("kind", ["query", "txnVersion"])


@pytest.fixture
def kind() -> str:
    return "txnVersion"


@pytest.fixture
def versions(sink: Sink, kind: str) -> Versions:
    return Versions(sink, kind)


@pytest.fixture
def topics(topic: str) -> list[str]:
    return [topic, topic + "-2"]


def test_a_batch_appears_at_once_in_all_partitions_and_topics(
    sink: Sink, topics: list[str]
) -> None:
    for number, start in enumerate((0, 30)):
        batch = sink.micro_batch(number)
        tasks = numbers(start, start + 10), numbers(start + 10, start + 30), numbers(0, 0)
        messages = [batch.task(task, rows, *topics) for task, rows in enumerate(tasks)]
        assert [*map(sink.seen, topics)] == [start // 2] * 2
        for _ in range(2):  # Spark repeats a commit if its answer is lost
            batch.commit(messages)
            assert [*map(sink.seen, topics)] == [start // 2 + 15] * 2
    (written,) = [each for each in messages[1].ranges if each.tp.topic == sink.topic]
    assert (written.start, written.end) == (10, 20)
    last = sink.held(0, written.tp.partition).info.transaction
    assert last == Transaction(1 << COUNT_BITS | 4, 10, 20)


def test_a_reader_never_sees_a_part_of_a_batch(sink: Sink) -> None:
    topics = [f"{sink.topic}-{index}" for index in range(3)]
    found: list[tuple[int, ...]] = []
    is_over = threading.Event()

    def read(*, watches: bool) -> None:
        ends: dict[TopicPartition, int] = {}
        cursor, is_last = "", False
        with sink.session() as session:
            (client,) = session.refresh()
            while not is_last:
                is_last = is_over.is_set()
                heads = []
                if watches:
                    changes = client.watch(topics, cursor, wait_s=0.2, timeout_s=PATIENCE_S)
                    cursor, heads = changes.cursor, [*changes.heads]
                else:
                    heads = [*client.heads(topics, timeout_s=PATIENCE_S)]
                ends |= {info.tp: info.end for info in heads}
                found.append(tuple(ends.values()))

    threads = [threading.Thread(target=read, kwargs={"watches": each}) for each in (0, 1, 1)]
    for thread in threads:
        thread.start()
    for number in range(30):
        run(sink.micro_batch(number), [numbers(0, 3)] * 2, *topics)
    is_over.set()
    for thread in threads:
        thread.join()
    assert [each for each in found if each and each != (each[0],) * 6] == []
    assert found[-1] == (30,) * 6
    assert len(set(found)) > 10


# -- a repeated version ----------------------------------------------------------------------------

CUTS: dict[str, Cut] = {
    "same": [(0, 10), (10, 10), (10, 30)],
    "more": [(0, 5), (5, 6), (6, 12), (12, 30)],
    "fewer": [(0, 12), (12, 30)],
    "one": [(0, 30)],
    "without the first": [(0, 0), (0, 0), (0, 0), (0, 30)],
}
"""Ways to cut 30 rows into tasks."""


@pytest.mark.parametrize(
    ("kind", "first"), [*(("query", cut) for cut in CUTS), ("txnVersion", "more")]
)
def test_a_repeated_batch_is_recognised_however_it_is_cut(
    versions: Versions, first: str, logged: Logged
) -> None:
    versions.run(3, (0, 4))
    versions.run(4, *CUTS[first])
    for cut in CUTS.values():
        logged.clear()
        messages = versions.run(4, *cut, step=-1)
        assert "version 4 of application" in logged.text
        assert ": 0 partitions are left to write" in logged.text
        assert versions.seen == 34
        for written in (each for message in messages for each in message.ranges):
            info = versions.sink.held(0, written.tp.partition).info
            assert info.staged_end == info.end
    versions.run(5, *[(0, 2)] * 4)
    assert versions.seen == 42


@pytest.mark.parametrize("given", [{}, {"txnVersion": 4}], ids=["query", "txnVersion"])
def test_a_repeated_batch_to_several_topics_is_recognised(
    sink: Sink, topics: list[str], given: dict[str, int]
) -> None:
    def begin() -> Write:
        if given:
            return sink.job(topic="", txnAppId=sink.topic, **given)
        return sink.micro_batch(4)

    for cut in CUTS.values():
        run(begin(), [numbers(*each) for each in cut], *topics)
        assert [*map(sink.seen, topics)] == [15, 15]
    with pytest.raises((TransactionChangedError, ApplicationError)):
        run(begin(), [numbers(0, 30)], *topics[::-1])


@of_both_kinds
@pytest.mark.parametrize("cut", [[(0, 29)], [(0, 30), (0, 1)], [(1, 31)], [(20, 50)], [(0, 0)]])
def test_a_repeated_batch_with_other_rows_is_refused(versions: Versions, cut: Cut) -> None:
    versions.run(4, (0, 10), (10, 30))
    with pytest.raises(versions.changed, match="30 rows of it are committed to 2 of 2 partitions"):
        versions.run(4, *cut)
    assert versions.seen == 30


def test_rows_of_a_repeated_batch_that_are_trimmed_are_counted(
    patch: Patch, logged: Logged
) -> None:
    with ForkedCluster() as own:
        versions = Versions(Sink(own, "t", patch), "query")
        done, _ = versions.run(0, (0, 10), (0, 5))
        own.kill_store(0)
        with Log(own.store_directory()) as log:
            log.trim(TopicPartition("t", partition(done)), 5)
        own.start_store(0)
        versions.run(0, (0, 15))
        assert "rows of a write that is repeated are only counted" in logged.text
        with pytest.raises(TransactionChangedError, match="it has 14 now"):
            versions.run(0, (0, 14))


@of_both_kinds
def test_an_older_version_is_refused(versions: Versions) -> None:
    """Its rows may never have been written: two writes may come in another order."""
    slow = versions.begin(1)
    messages = [slow.task(task, numbers(0, 10)) for task in (0, 5)]
    versions.run(3, *[(0, 10)] * 3)
    error: type[DafkaError] = ApplicationError
    why = "version 3 is written already"
    if versions.is_query:
        error, why = OldCheckpointError, "batch 1 cannot be written, as batch 3 of this query al"
    else:
        with pytest.raises(error, match=why):
            versions.begin(2)
    for message in messages:
        with pytest.raises(error, match=why):
            slow.commit([message])
    assert versions.seen == 30


@pytest.mark.parametrize("version", [0, MAX_TXN_VERSION])
def test_a_commit_is_repeated_after_its_answer_is_lost(
    versions: Versions, patch: Patch, version: int
) -> None:
    commit = StoreClient.commit

    def unanswered(client: StoreClient, *given: Any, **named: Any) -> None:
        patch.setattr(StoreClient, "commit", commit)
        commit(client, *given, **named)
        raise StoreUnreachableError(client.location.store, "the connection was lost")

    patch.setattr(StoreClient, "commit", unanswered)
    write = versions.begin(version)
    messages = [write.task(0, numbers(0, 10)), write.task(1, numbers(10, 30))]
    for _ in range(2):
        write.commit(messages)
        assert versions.seen == 30
    assert MAX_TXN_VERSION == (1 << 63 - COUNT_BITS) - 1
    run(versions.begin(0, "another"), [numbers(0, 10)])  # it has its own versions
    assert versions.seen == 40


@of_both_kinds
def test_of_two_runs_at_one_time_one_is_written(versions: Versions) -> None:
    old, new = versions.begin(1), versions.begin(1)
    tasks = numbers(0, 10), numbers(10, 30)
    of_old = [old.task(number, rows) for number, rows in enumerate(tasks)]
    of_new = [new.task(0, tasks[0])]
    with pytest.raises(FencedError) as caught:
        old.commit(of_old)
    if not versions.is_query:
        assert "option txnAppId = 'etl': another job with this name" in caught.value.__notes__[0]
    assert versions.seen == 0
    new.commit([*of_new, new.task(1, tasks[1])])
    old.commit([old.task(number, rows[::-1]) for number, rows in enumerate(tasks)])  # again
    assert versions.seen == 30


# -- the store is lost -----------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "moment"), [("query", "staged"), ("txnVersion", "committed")])
def test_another_store_takes_over(pair: Sink, kind: str, moment: str) -> None:
    pair.patch.setattr(timing, "STORE_TIMEOUT_S", 5.0)
    versions, cluster = Versions(pair, kind), pair.cluster
    versions.run(1, (0, 10))
    write = versions.begin(2)
    messages = [write.task(0, numbers(0, 10)), write.task(1, numbers(10, 30))]
    picked = cluster.stores.index(messages[0].picked.store)
    if moment == "committed":
        write.commit(messages)  # and Spark never receives the answer
    cluster.kill_store(picked)
    if moment == "staged":
        with pytest.raises(StoreUnreachableError):  # Spark tries a task again meanwhile
            write.task(0, numbers(0, 10))
    versions.run(2, (0, 10), (10, 30))
    assert versions.seen == 40
    cluster.start_store(picked)
    versions.run(3, (10, 20))
    values = texts(0, 10) + texts(0, 10) + texts(10, 20), texts(10, 30)

    def has_all(index: int, name: str, wanted: list[bytes]) -> bool:
        return pair.held(index, name).values == wanted

    for message, wanted in zip(messages, values, strict=True):
        for index in (0, 1):  # one store acknowledges, and the other follows
            wait_until(partial(has_all, index, partition(message), wanted))


@of_both_kinds
def test_what_another_store_got_in_part_is_completed(versions: Versions, logged: Logged) -> None:
    tasks = numbers(0, 10), numbers(10, 30), numbers(30, 35)
    versions.leave_part(1, tasks[0], of=3)
    versions.leave_part(1, tasks[2], task=2, of=3)
    assert versions.seen == 15
    if not versions.is_query:
        why = "version 1, the one before, is written in part"
        with pytest.raises(ApplicationError, match=why):
            versions.begin(2)
    run(versions.begin(1), [tasks[0][::-1], *tasks[1:]])
    assert "to 2 of 3 partitions: 1 partitions are left to write" in logged.text
    for _ in range(2):
        assert versions.seen == 35
        run(versions.begin(1), tasks)
    versions.run(2, (20, 30))
    assert versions.seen == 45


@of_both_kinds
@pytest.mark.parametrize(
    ("cut", "now"),
    [
        ([(1, 11), (0, 5)], "15"),
        ([(0, 9), (9, 15)], "15"),
        ([(0, 10), (10, 12), (12, 15)], "15"),
        ([(0, 0), (0, 5)], "5"),
        ([(0, 10)], "10 others"),
    ],
)
def test_other_rows_than_those_written_in_part_are_refused(
    versions: Versions, cut: Cut, now: str
) -> None:
    versions.leave_part(1, numbers(0, 10))
    why = f"to 1 of 2 partitions .*it has {now} now.*adaptive execution"
    with pytest.raises(versions.changed, match=why):
        versions.run(1, *cut)
    assert versions.seen == 10


@pytest.mark.parametrize("before", ["option", "column"])
def test_a_changed_topic_is_warned_of_once(
    sink: Sink, topics: list[str], logged: Logged, before: str
) -> None:
    topic, other = topics
    given = {"topic": topic} if before == "option" else {}
    run(sink.micro_batch(0, **given), [numbers(0, 10)], topic)
    assert "has written to topic" not in logged.text
    for number in (1, 2):
        run(sink.micro_batch(number, topic=other), [numbers(10, 20)])
    text = f"has written to topic '{topic}' up to batch 0, and writes batch 1 to topic '{other}'"
    assert logged.text.count("has written to topic") == logged.text.count(text) == 1

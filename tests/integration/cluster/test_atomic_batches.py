"""A numbered write appears as a whole, and once: a micro-batch, or a version of a batch write."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import DafkaError, FencedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import StagedTransaction, TopicPartition, Transaction
from dafka_core.storage import Log
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.errors import ApplicationError, OldCheckpointError, TransactionChangedError
from dafka_spark.options import COUNT_BITS, MAX_TXN_VERSION
from dafka_spark.sink.application import Application
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import TaskCommit
from tests.forked import ForkedCluster
from tests.integration.cluster.batch_job import BatchJob, MicroBatch, partition, run, seen
from tests.integration.cluster.transactions import held, numbers, options, texts_of

Cut = Sequence[tuple[int, int]]


class Versions:
    """The versions of one application: of a query, or of option ``txnAppId``."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cluster: EmbeddedCluster, topic: str, kind: str
    ) -> None:
        self.cluster, self.topic, self.is_query = cluster, topic, kind == "query"
        self.changed: type[DafkaError] = (
            TransactionChangedError if self.is_query else ApplicationError
        )
        self._monkeypatch = monkeypatch

    def begin(self, version: int, app: str = "etl") -> BatchJob | MicroBatch:
        if self.is_query:
            return MicroBatch(
                self._monkeypatch, self.cluster, version, self.topic, topic=self.topic
            )
        given = {"txnAppId": app, "txnVersion": version}
        return BatchJob(self._monkeypatch, self.cluster, self.topic, **given)

    def run(self, version: int, *tasks: pa.Array) -> list[TaskCommit]:
        return run(self.begin(version), tasks)

    def cut(self, version: int, cut: Cut, step: int = 1) -> list[TaskCommit]:
        """Run tasks with the rows from the first of two numbers to the second, exclusive."""
        return self.run(version, *(numbers(*each)[::step] for each in cut))

    @property
    def seen(self) -> int:
        return seen(self.cluster, self.topic)

    def application(self, version: int) -> Application:
        if self.is_query:
            return Application.of_query(options(self.cluster), self.topic, version)
        return Application("etl", version, self.topic)

    def leave_part(self, version: int, rows: pa.Array, *, task: int = 0, of: int = 2) -> None:
        """Commit one of several partitions, as a store has them after its source is lost."""
        application = self.application(version)
        tp = TopicPartition(self.topic, application.address(self.topic, task))
        last, attempt = application.transaction_version(of), uuid.uuid4().hex.upper()
        with StoreSession(options(self.cluster).mesh_address) as session:
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
def versions(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str, kind: str
) -> Versions:
    return Versions(monkeypatch, shared, topic, kind)


@pytest.fixture
def micro_batch(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> Callable[..., MicroBatch]:
    """Begin a micro-batch, by its number, of a query that is named as the topic."""
    return lambda number, **given: MicroBatch(monkeypatch, shared, number, topic, **given)


def test_a_batch_appears_at_once_in_all_partitions_and_topics(
    micro_batch: Callable[..., MicroBatch], shared: EmbeddedCluster, topic: str
) -> None:
    topics = [topic, topic + "-2"]
    for number, start in enumerate((0, 30)):
        batch = micro_batch(number)
        tasks = numbers(start, start + 10), numbers(start + 10, start + 30), numbers(0, 0)
        messages = [batch.task(task, rows, *topics) for task, rows in enumerate(tasks)]
        assert [seen(shared, each) for each in topics] == [start // 2] * 2
        for _ in range(2):  # Spark repeats a commit if its answer is lost
            batch.commit(messages)
            assert [seen(shared, each) for each in topics] == [start // 2 + 15] * 2
    (written,) = [each for each in messages[1].ranges if each.tp.topic == topic]
    assert (written.start, written.end) == (10, 20)
    last = held(shared, topic, 0, written.tp.partition).info.transaction
    assert last == Transaction(1 << COUNT_BITS | 4, 10, 20)


def test_a_reader_never_sees_a_part_of_a_batch(
    micro_batch: Callable[..., MicroBatch], shared: EmbeddedCluster, topic: str
) -> None:
    topics = [f"{topic}-{index}" for index in range(3)]
    found: list[tuple[int, ...]] = []
    is_over = threading.Event()

    def read(*, watches: bool) -> None:
        ends: dict[TopicPartition, int] = {}
        cursor = ""
        with StoreSession(options(shared).mesh_address) as session:
            (client,) = session.refresh()
            is_last = False
            while not is_last:
                is_last = is_over.is_set()
                if watches:
                    changes = client.watch(topics, cursor, wait_s=0.2, timeout_s=PATIENCE_S)
                    cursor, heads = changes.cursor, changes.heads
                else:
                    heads = tuple(client.heads(topics, timeout_s=PATIENCE_S))
                ends |= {info.tp: info.end for info in heads}
                found.append(tuple(ends.values()))

    threads = [threading.Thread(target=read, kwargs={"watches": each}) for each in (0, 1, 1)]
    for thread in threads:
        thread.start()
    for number in range(30):
        run(micro_batch(number), [numbers(0, 3)] * 2, *topics)
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


@of_both_kinds
@pytest.mark.parametrize("first", CUTS)
def test_a_repeated_batch_is_recognised_however_it_is_cut(
    versions: Versions, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    versions.run(3, numbers(0, 4))
    versions.cut(4, CUTS[first])
    for cut in CUTS.values():
        caplog.clear()
        messages = versions.cut(4, cut, step=-1)
        assert "version 4 of application" in caplog.text
        assert ": 0 partitions are left to write" in caplog.text
        assert versions.seen == 34
        for written in (each for message in messages for each in message.ranges):
            info = held(versions.cluster, versions.topic, 0, written.tp.partition).info
            assert info.staged_end == info.end
    versions.run(5, *[numbers(0, 2)] * 4)
    assert versions.seen == 42


def test_a_repeated_batch_to_several_topics_is_recognised(
    micro_batch: Callable[..., MicroBatch], shared: EmbeddedCluster, topic: str
) -> None:
    topics = [topic, topic + "-2"]
    for cut in CUTS.values():
        run(micro_batch(4), [numbers(*each) for each in cut], *topics)
        assert [seen(shared, each) for each in topics] == [15, 15]
    with pytest.raises(TransactionChangedError):
        run(micro_batch(4), [numbers(0, 30)], *topics[::-1])


@of_both_kinds
@pytest.mark.parametrize("cut", [[(0, 29)], [(0, 30), (0, 1)], [(1, 31)], [(20, 50)], [(0, 0)]])
def test_a_repeated_batch_with_other_rows_is_refused(versions: Versions, cut: Cut) -> None:
    versions.cut(4, [(0, 10), (10, 30)])
    with pytest.raises(versions.changed, match="30 rows of it are committed to 2 of 2 partitions"):
        versions.cut(4, cut)
    assert versions.seen == 30


def test_rows_of_a_repeated_batch_that_are_trimmed_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ForkedCluster() as own:
        versions = Versions(monkeypatch, own, "t", "query")
        done, _ = versions.cut(0, [(0, 10), (0, 5)])
        own.kill_store(0)
        with Log(own.store_directory()) as log:
            log.trim(TopicPartition("t", partition(done)), 5)
        own.start_store(0)
        versions.cut(0, [(0, 15)])
        assert "rows of a write that is repeated are only counted" in caplog.text
        with pytest.raises(TransactionChangedError, match="it has 14 now"):
            versions.cut(0, [(0, 14)])


def test_a_batch_older_than_the_last_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    versions = Versions(monkeypatch, shared, topic, "query")
    versions.run(4, *[numbers(0, 10)] * 3)
    older = versions.begin(3)
    for task in (0, 5):
        message = older.task(task, numbers(0, 10))
        why = "batch 3 cannot be written, as batch 4 of this query already is"
        with pytest.raises(OldCheckpointError, match=why):
            older.commit([message])
    assert versions.seen == 30


def test_an_older_version_is_refused(versions: Versions) -> None:
    """Its rows may never have been written: two writes may come in another order."""
    slow = versions.begin(1)
    message = slow.task(0, numbers(0, 10))
    versions.run(3, numbers(0, 10))
    with pytest.raises(ApplicationError, match="version 3 is written already"):
        versions.begin(2)
    with pytest.raises(ApplicationError, match="version 3 is written already"):
        slow.commit([message])
    assert versions.seen == 10


@pytest.mark.parametrize("version", [0, MAX_TXN_VERSION])
def test_a_repeated_commit_writes_nothing(versions: Versions, version: int) -> None:
    write = versions.begin(version)
    messages = [write.task(0, numbers(0, 10)), write.task(1, numbers(10, 30))]
    for _ in range(2):
        write.commit(messages)
        assert versions.seen == 30
    assert MAX_TXN_VERSION == (1 << 63 - COUNT_BITS) - 1


def test_the_answer_to_a_commit_is_lost(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = StoreClient.commit

    def unanswered(
        client: StoreClient, some: Sequence[StagedTransaction], *, timeout_s: float
    ) -> None:
        monkeypatch.setattr(StoreClient, "commit", commit)
        commit(client, some, timeout_s=timeout_s)
        raise StoreUnreachableError(client.location.store, "the connection was lost")

    monkeypatch.setattr(StoreClient, "commit", unanswered)
    versions.run(1, numbers(0, 10), numbers(10, 20))
    assert versions.seen == 20


# -- two drivers -----------------------------------------------------------------------------------


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
def test_another_store_takes_over(
    monkeypatch: pytest.MonkeyPatch, own: EmbeddedCluster, topic: str, kind: str, moment: str
) -> None:
    monkeypatch.setattr(timing, "STORE_TIMEOUT_S", 5.0)
    versions = Versions(monkeypatch, own, topic, kind)
    tasks = numbers(0, 10), numbers(10, 30)
    versions.run(1, tasks[0])
    write = versions.begin(2)
    messages = [write.task(number, rows) for number, rows in enumerate(tasks)]
    picked = own.stores.index(messages[0].picked.store)
    if moment == "committed":
        write.commit(messages)  # and Spark never receives the answer
    own.kill_store(picked)
    if moment == "staged":
        with pytest.raises(StoreUnreachableError):  # Spark tries a task again meanwhile
            write.task(0, tasks[0])
    versions.run(2, *tasks)
    assert versions.seen == 40
    own.start_store(picked)
    versions.run(3, numbers(10, 20))
    values = pa.concat_arrays([numbers(0, 10), numbers(0, 10), numbers(10, 20)])
    for message, wanted in zip(messages, (values, tasks[1]), strict=True):
        for index in (0, 1):

            def has_all(at: int, of: str, wanted: pa.Array) -> bool:
                return held(own, topic, at, of).values == texts_of(wanted)

            # One store acknowledges, and the other follows.
            wait_until(partial(has_all, index, partition(message), wanted))


@of_both_kinds
def test_what_another_store_got_in_part_is_completed(
    versions: Versions, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = numbers(0, 10), numbers(10, 30), numbers(30, 35)
    versions.leave_part(1, tasks[0], of=3)
    versions.leave_part(1, tasks[2], task=2, of=3)
    assert versions.seen == 15
    versions.run(1, tasks[0][::-1], *tasks[1:])
    assert "to 2 of 3 partitions: 1 partitions are left to write" in caplog.text
    for _ in range(2):
        assert versions.seen == 35
        versions.run(1, *tasks)


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
        versions.cut(1, cut)
    assert versions.seen == 10


def test_nothing_is_written_behind_a_version_in_part(versions: Versions) -> None:
    versions.leave_part(1, numbers(0, 10))
    with pytest.raises(ApplicationError, match="version 1, the one before, is written in part"):
        versions.begin(2)
    versions.cut(1, [(0, 10), (10, 20)])
    versions.cut(2, [(20, 30)])
    assert versions.seen == 30


# -- topics and applications -----------------------------------------------------------------------


def test_each_topic_and_application_has_its_own_versions(
    versions: Versions, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    other = Versions(monkeypatch, versions.cluster, topic + "-2", "txnVersion")
    for write in (versions.begin(1, "a"), versions.begin(1, "b"), other.begin(1, "a")):
        run(write, [numbers(0, 10)])
    assert (versions.seen, other.seen) == (20, 10)


def test_topics_of_a_column_share_the_versions_of_an_application(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    topics = topic, topic + "-2"
    for _ in range(2):
        job = BatchJob(monkeypatch, shared, "", txnAppId=topic, txnVersion=1)
        run(job, [numbers(0, 4)], *topics)
        assert [seen(shared, each) for each in topics] == [2, 2]


@pytest.mark.parametrize("before", ["option", "column"])
def test_a_changed_topic_is_warned_of_once(
    micro_batch: Callable[..., MicroBatch],
    topic: str,
    caplog: pytest.LogCaptureFixture,
    before: str,
) -> None:
    other = topic + "-2"
    given = {"topic": topic} if before == "option" else {}
    run(micro_batch(0, **given), [numbers(0, 10)], topic)
    assert "has written to topic" not in caplog.text
    for number in (1, 2):
        run(micro_batch(number, topic=other), [numbers(10, 20)])
    text = f"has written to topic '{topic}' up to batch 0, and writes batch 1 to topic '{other}'"
    assert caplog.text.count("has written to topic") == caplog.text.count(text) == 1

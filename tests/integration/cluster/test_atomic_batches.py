"""A micro-batch appears as a whole, and once, whatever dies and however it is cut into tasks."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, FencedError, StoreUnreachableError
from dafka_core.model.records import StagedTransaction, TopicPartition, Transaction
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from dafka_spark.cluster import timing
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from dafka_spark.options import COUNT_BITS
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.application import Application
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import BATCH_ID, QUERY_ID, DafkaStreamWriter, TaskCommit
from tests.forked import ForkedCluster
from tests.integration.cluster.batch_job import seen
from tests.integration.cluster.transactions import (
    PATIENCE_S,
    held,
    numbers,
    options,
    texts_of,
)
from tests.unit.dafka_spark.tasks import Task

SCHEMA = StructType([StructField(name, StringType()) for name in ("value", "topic")])
QUERY = "7f6c"


class MicroBatch:
    """What Spark does with the writers of a micro-batch."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cluster: EmbeddedCluster,
        number: int,
        query: str = QUERY,
        **given: object,
    ) -> None:
        self.number, self.query = number, query
        self._monkeypatch = monkeypatch
        self._options = options(cluster, **given)
        self._sent = pickle.dumps(self.writer())

    def writer(self) -> DafkaStreamWriter:
        """One of those that Spark makes in the driver."""
        return DafkaStreamWriter(SCHEMA, self._options)

    def task(self, number: int, rows: pa.Array, *topics: str) -> TaskCommit:
        """Runs a task; a row's number says to which of the topics it goes."""
        Task(number, {QUERY_ID: self.query, BATCH_ID: str(self.number)}).begin(self._monkeypatch)
        names = [topics[int(row) % len(topics)] for row in rows.to_pylist()]
        batch = pa.record_batch({"value": rows, "topic": pa.array(names, pa.string())})
        writer: DafkaStreamWriter = pickle.loads(self._sent)
        told: TaskCommit = pickle.loads(pickle.dumps(writer.write(iter([batch]))))
        return told

    def commit(self, messages: Sequence[TaskCommit | None]) -> None:
        self.writer().commit(messages, self.number)

    def abort(self, messages: Sequence[TaskCommit | None]) -> None:
        self.writer().abort(messages, self.number)


def run(batch: MicroBatch, tasks: Sequence[pa.Array], *topics: str) -> list[TaskCommit]:
    """Runs and commits a batch; returns what its tasks said."""
    messages = [batch.task(number, rows, *topics) for number, rows in enumerate(tasks)]
    batch.commit(messages)
    return messages


def partition(message: TaskCommit) -> str:
    """The address of the only partition that a task has written."""
    (only,) = message.ranges
    return only.tp.partition


def test_a_batch_appears_at_once_in_all_partitions_and_topics(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    topics = [topic, topic + "-2"]
    for number, start in enumerate((0, 30)):
        batch = MicroBatch(monkeypatch, shared, number, topic)
        messages = [
            batch.task(0, numbers(start, start + 10), *topics),
            batch.task(1, numbers(start + 10, start + 30), *topics),
            batch.task(2, numbers(0, 0), *topics),
        ]
        assert [seen(shared, each) for each in topics] == [start // 2] * 2
        for _ in range(2):  # the second time Spark has not heard of the first
            batch.commit(messages)
            assert [seen(shared, each) for each in topics] == [start // 2 + 15] * 2
    ranges = [each for each in messages[1].ranges if each.tp.topic == topic]
    assert [(each.start, each.end) for each in ranges] == [(10, 20)]
    last = held(shared, topic, 0, ranges[0].tp.partition).info.transaction
    assert last == Transaction(1 << COUNT_BITS | 4, 10, 20)


def test_who_looks_all_the_time_sees_no_half_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    topics = [f"{topic}-{index}" for index in range(3)]
    looks: list[tuple[int, ...]] = []
    is_over = threading.Event()

    def look(*, watches: bool) -> None:
        ends: dict[TopicPartition, int] = {}
        cursor = ""
        with StoreSession(options(shared).mesh_address) as session:
            (client,) = session.refresh()
            while not is_over.is_set():
                if watches:
                    found = client.watch(topics, cursor, wait_s=0.2, timeout_s=PATIENCE_S)
                    cursor, heads = found.cursor, found.heads
                else:
                    heads = tuple(client.heads(topics, timeout_s=PATIENCE_S))
                ends |= {info.tp: info.end for info in heads}
                looks.append(tuple(ends.values()))

    threads = [threading.Thread(target=look, kwargs={"watches": each}) for each in (0, 1, 1)]
    for thread in threads:
        thread.start()
    for number in range(30):
        batch = MicroBatch(monkeypatch, shared, number, topic)
        batch.commit([batch.task(task, numbers(0, 3), *topics) for task in range(2)])
    is_over.set()
    for thread in threads:
        thread.join()
    wrong = [each for each in looks if each and each != (each[0],) * 6]
    assert wrong == []
    assert looks[-1] == (30,) * 6
    assert len(set(looks)) > 10


CUTS: dict[str, list[tuple[int, int]]] = {
    "same": [(0, 10), (10, 10), (10, 30)],
    "more": [(0, 5), (5, 6), (6, 12), (12, 30)],
    "fewer": [(0, 12), (12, 30)],
    "one": [(0, 30)],
    "without the first": [(0, 0), (0, 0), (0, 0), (0, 30)],
}
"""Ways to cut 30 rows into tasks: the first and the last row of each, exclusive."""


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("first", CUTS)
def test_a_repeated_batch_is_recognised_however_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str, first: str, cut: str
) -> None:
    topics = [topic, topic + "-2"]
    given = {"topic": topic} if cut == "one" else {}  # or column topic names two
    if given:
        topics = topics[:1]
    run(MicroBatch(monkeypatch, shared, 3, topic, **given), [numbers(0, 4)], *topics)
    run(
        MicroBatch(monkeypatch, shared, 4, topic, **given),
        [numbers(*x) for x in CUTS[first]],
        *topics,
    )
    for _ in range(2):
        again = MicroBatch(monkeypatch, shared, 4, topic, **given)
        messages = run(again, [numbers(*each)[::-1] for each in CUTS[cut]], *topics)
        assert sum(seen(shared, each) for each in topics) == 34
        for written in (each for message in messages for each in message.ranges):
            info = held(shared, written.tp.topic, 0, written.tp.partition).info
            assert info.staged_end == info.end
    run(MicroBatch(monkeypatch, shared, 5, topic, **given), [numbers(0, 2)] * 4, *topics)
    assert sum(seen(shared, each) for each in topics) == 42


@pytest.mark.parametrize("rows", [[(0, 29)], [(0, 30), (0, 1)], [(1, 31)], [(0, 0)], []])
def test_a_repeated_batch_with_other_rows_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    shared: EmbeddedCluster,
    topic: str,
    rows: list[tuple[int, int]],
) -> None:
    run(MicroBatch(monkeypatch, shared, 4, topic), [numbers(0, 10), numbers(10, 30)], topic)
    tasks = [numbers(*each) for each in rows] or [numbers(0, 30)]
    to = topic if rows else topic + "-2"  # the same rows, of another topic
    again = MicroBatch(monkeypatch, shared, 4, topic)
    messages = [again.task(number, each, to) for number, each in enumerate(tasks)]
    with pytest.raises(TransactionChangedError, match="30 rows of it are committed to 2 of 2 part"):
        again.commit(messages)
    again.abort(messages)
    assert seen(shared, topic) == 30
    assert seen(shared, topic + "-2") == 0


def test_rows_of_a_repeated_batch_that_are_trimmed_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ForkedCluster() as own:
        (done, _) = run(MicroBatch(monkeypatch, own, 0, "t"), [numbers(0, 10), numbers(0, 5)], "t")
        own.kill_store(0)
        with Log(own.store_directory()) as log:
            log.trim(TopicPartition("t", partition(done)), 5)
        own.start_store(0)
        run(MicroBatch(monkeypatch, own, 0, "t"), [numbers(0, 15)], "t")
        assert "rows of a write that is repeated are only counted" in caplog.text
        with pytest.raises(TransactionChangedError, match="it has 14 now"):
            run(MicroBatch(monkeypatch, own, 0, "t"), [numbers(0, 14)], "t")


def test_a_batch_older_than_the_last_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    run(MicroBatch(monkeypatch, shared, 4, topic), [numbers(0, 10)] * 3, topic)
    for task in (0, 5):
        older = MicroBatch(monkeypatch, shared, 3, topic)
        messages = [older.task(task, numbers(0, 10), topic)]
        with pytest.raises(
            OldCheckpointError,
            match="batch 3 cannot be written, as batch 4 of this query already is",
        ):
            older.commit(messages)
        older.abort(messages)
    assert seen(shared, topic) == 30


def test_an_older_driver_commits_nothing(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    old, new = (MicroBatch(monkeypatch, shared, 0, topic) for _ in range(2))
    of_old = [old.task(number, numbers(0, 10), topic) for number in range(2)]
    of_new = [new.task(0, numbers(0, 10), topic)]
    with pytest.raises(FencedError):
        old.commit(of_old)
    old.abort(of_old)
    assert seen(shared, topic) == 0
    new.commit([*of_new, new.task(1, numbers(0, 10), topic)])
    assert seen(shared, topic) == 20


def test_more_partitions_than_can_appear_at_once_name_the_option(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    monkeypatch.setattr(commit_coordinator, "MAX_TRANSACTIONS", 2)
    batch = MicroBatch(monkeypatch, shared, 0, topic)
    messages = [batch.task(number, numbers(0, 10), topic) for number in range(3)]
    with pytest.raises(ConfigError, match="a write to 3 partitions cannot appear at once; 2 can"):
        batch.commit(messages)
    batch.abort(messages)
    infos = [held(shared, topic, 0, partition(message)).info for message in messages]
    assert [(info.end, info.staged_end) for info in infos] == [(0, 0)] * 3


def test_what_a_batch_that_fails_has_staged_is_discarded(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    batch = MicroBatch(monkeypatch, shared, 0, topic)
    done = batch.task(0, numbers(0, 10), topic)
    assert held(shared, topic, 0, partition(done)).info.staged_end == 10
    batch.abort([done, None])
    assert held(shared, topic, 0, partition(done)).info.staged_end == 0
    batch.abort([None])
    batch.commit([])


@pytest.mark.parametrize("moment", ["staged", "committed"])
def test_another_store_takes_over(monkeypatch: pytest.MonkeyPatch, topic: str, moment: str) -> None:
    monkeypatch.setattr(timing, "STORE_TIMEOUT_S", 5.0)
    rows = numbers(0, 10), numbers(10, 30)
    with ForkedCluster(stores=2) as own:
        first = MicroBatch(monkeypatch, own, 0, topic)
        first.commit([first.task(0, numbers(0, 10), topic)])
        batch = MicroBatch(monkeypatch, own, 1, topic)
        messages = [batch.task(number, each, topic) for number, each in enumerate(rows)]
        picked = own.stores.index(messages[0].picked.store)
        if moment == "committed":
            batch.commit(messages)  # and Spark does not hear of it
        own.kill_store(picked)
        if moment == "staged":
            with pytest.raises(StoreUnreachableError):  # a task that is tried again, meanwhile
                batch.task(0, rows[0], topic)
        again = MicroBatch(monkeypatch, own, 1, topic)
        messages = [again.task(number, each, topic) for number, each in enumerate(rows)]
        again.commit(messages)
        assert seen(own, topic) == 40
        own.start_store(picked)
        last = MicroBatch(monkeypatch, own, 2, topic)
        last.commit([last.task(0, numbers(10, 20), topic)])
        wanted = texts_of(pa.concat_arrays([numbers(0, 10), numbers(0, 10), numbers(10, 20)]))
        for index in (0, 1):

            def has_all(at: int = index) -> bool:
                return held(own, topic, at, partition(messages[0])).values == wanted

            # Who commits may not have heard yet that it is back: the other gives them to it.
            wait_until(has_all, f"store {index} has all records")
            assert held(own, topic, index, partition(messages[1])).values == texts_of(rows[1])


def leave_part(
    cluster: EmbeddedCluster, query: str, batch: int, rows: pa.Array, *, task: int = 0, of: int = 2
) -> None:
    """Leaves one of several partitions, as at a store that got no more from one that is lost."""
    application = Application.of_query(options(cluster), query, batch)
    tp = TopicPartition(query, application.address(query, task))
    version, attempt = application.transaction_version(of), uuid.uuid4().hex.upper()
    with StoreSession(options(cluster).mesh_address) as session:
        (client,) = session.refresh()
        with client.put(tp, 0, attempt=attempt, timeout_s=PATIENCE_S) as put:
            put.write(rows)
            put.finish(PATIENCE_S)
        staged = StagedTransaction(*tp, attempt, 0, len(rows), version)
        client.commit([staged], timeout_s=PATIENCE_S)


def test_a_part_that_another_store_got_is_completed(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    leave_part(shared, topic, 0, numbers(0, 10))
    run(MicroBatch(monkeypatch, shared, 0, topic), [numbers(0, 10)[::-1], numbers(10, 15)], topic)
    assert seen(shared, topic) == 15


@pytest.mark.parametrize("rows", [[(0, 15)], [(0, 9), (9, 15)], [(0, 10), (10, 12), (12, 15)]])
def test_a_part_is_not_completed_by_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
    shared: EmbeddedCluster,
    topic: str,
    rows: list[tuple[int, int]],
) -> None:
    leave_part(shared, topic, 0, numbers(0, 10))
    with pytest.raises(TransactionChangedError, match=r"1 of 2 partitions .*adaptive execution"):
        run(MicroBatch(monkeypatch, shared, 0, topic), [numbers(*each) for each in rows], topic)
    assert seen(shared, topic) == 10


@pytest.mark.parametrize("before", ["option", "column"])
def test_a_changed_topic_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
    shared: EmbeddedCluster,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    before: str,
) -> None:
    other = topic + "-2"
    given = {"topic": topic} if before == "option" else {}
    run(MicroBatch(monkeypatch, shared, 0, topic, **given), [numbers(0, 10)], topic)
    assert "has written to topic" not in caplog.text
    for number in (1, 2):
        changed = MicroBatch(monkeypatch, shared, number, topic, topic=other)
        run(changed, [numbers(10, 20)], topic)
    text = f"has written to topic '{topic}' up to batch 0, and writes batch 1 to topic '{other}'"
    assert caplog.text.count("has written to topic") == 1
    assert text in caplog.text

"""With ``commit`` = ``batch`` a micro-batch is seen as a whole, and once, whoever dies."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, FencedError, NotAcknowledgedError, StoreUnreachableError
from dafka_core.records import TopicPartition, Transaction
from dafka_core.testing import wait_until
from dafka_spark.cluster import timing
from dafka_spark.cluster.store_session import StoreSession
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.commit_messages import TaskCommit
from dafka_spark.sink.task_writer import partition_address
from dafka_spark.sink.writers import BATCH_ID, QUERY_ID, DafkaStreamWriter
from tests.forked import ForkedCluster
from tests.integration.cluster.batch_job import seen
from tests.integration.cluster.transactions import (
    PATIENCE_S,
    held,
    numbers,
    options,
    soon,
    texts_of,
    transaction,
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
        **given: object,
    ) -> None:
        self.number = number
        self._monkeypatch = monkeypatch
        self._options = options(cluster, commit="batch", **given)
        self._sent = pickle.dumps(self.writer())

    def writer(self) -> DafkaStreamWriter:
        """One of those that Spark makes in the driver."""
        return DafkaStreamWriter(SCHEMA, self._options)

    def task(self, number: int, rows: pa.Array, *topics: str) -> TaskCommit:
        """Runs a task; its rows go to the topics in turn."""
        Task(number, {QUERY_ID: QUERY, BATCH_ID: str(self.number)}).begin(self._monkeypatch)
        names = [topics[index % len(topics)] for index in range(len(rows))]
        batch = pa.record_batch({"value": rows, "topic": pa.array(names, pa.string())})
        writer: DafkaStreamWriter = pickle.loads(self._sent)
        told: TaskCommit = pickle.loads(pickle.dumps(writer.write(iter([batch]))))
        return told

    def commit(self, messages: Sequence[TaskCommit | None]) -> None:
        self.writer().commit(messages, self.number)

    def abort(self, messages: Sequence[TaskCommit | None]) -> None:
        self.writer().abort(messages, self.number)


def address(topic: str, task_number: int = 0) -> str:
    return partition_address(QUERY, topic, task_number)


def test_a_batch_appears_at_once_in_all_partitions_and_topics(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    topics = [topic, topic + "-2"]
    for number, start in enumerate((0, 30)):
        batch = MicroBatch(monkeypatch, shared, number)
        messages = [
            batch.task(0, numbers(start, start + 10), *topics),
            batch.task(1, numbers(start + 10, start + 30), *topics),
            batch.task(2, numbers(0, 0), *topics),
        ]
        assert [seen(shared, each) for each in topics] == [start // 2] * 2
        for _ in range(2):  # the second time Spark has not heard of the first
            batch.commit(messages)
            assert [seen(shared, each) for each in topics] == [start // 2 + 15] * 2
    found = held(shared, topic, 0, address(topic, 1))
    assert found.info.transaction == Transaction(1, 10, 20)


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
        batch = MicroBatch(monkeypatch, shared, number)
        batch.commit([batch.task(task, numbers(0, 3), *topics) for task in range(2)])
    is_over.set()
    for thread in threads:
        thread.join()
    wrong = [each for each in looks if each and each != (each[0],) * 6]
    assert wrong == []
    assert looks[-1] == (30,) * 6
    assert len(set(looks)) > 10


def test_a_batch_that_is_run_again_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    rows = numbers(0, 10), numbers(10, 30)
    for values in (rows, (rows[0][::-1], rows[1])):
        batch = MicroBatch(monkeypatch, shared, 4)
        messages = [batch.task(number, each, topic) for number, each in enumerate(values)]
        batch.commit(messages)
        assert seen(shared, topic) == 30
    assert {each.attempt for message in messages for each in message.ranges} == {""}
    with pytest.raises(TransactionChangedError, match="has written 10 rows here"):
        MicroBatch(monkeypatch, shared, 4).task(0, numbers(0, 9), topic)
    with pytest.raises(OldCheckpointError):
        MicroBatch(monkeypatch, shared, 3).task(0, rows[0], topic)


def test_an_older_driver_commits_nothing(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    old, new = (MicroBatch(monkeypatch, shared, 0) for _ in range(2))
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
    batch = MicroBatch(monkeypatch, shared, 0)
    messages = [batch.task(number, numbers(0, 10), topic) for number in range(3)]
    why = (
        r"option 'commit' = 'batch': a micro-batch that writes to 3 partitions .*set commit = task"
    )
    with pytest.raises(ConfigError, match=why):
        batch.commit(messages)
    batch.abort(messages)
    infos = [held(shared, topic, 0, address(topic, number)).info for number in range(3)]
    assert [(info.end, info.staged_end) for info in infos] == [(0, 0)] * 3


def test_what_a_batch_that_fails_has_staged_is_discarded(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    batch = MicroBatch(monkeypatch, shared, 0)
    done = batch.task(0, numbers(0, 10), topic)
    assert held(shared, topic, 0, address(topic)).info.staged_end == 10
    batch.abort([done, None])
    assert held(shared, topic, 0, address(topic)).info.staged_end == 0
    batch.abort([None])
    batch.commit([])


def test_it_takes_turns_with_tasks_that_commit(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    """A query's option may be changed between two runs, also of an unfinished batch."""
    with transaction(shared, topic, 0, partition=address(topic)) as writer:
        writer.write(numbers(0, 10))
        writer.finish(soon())
    rows = numbers(0, 10), numbers(10, 30)
    batch = MicroBatch(monkeypatch, shared, 0)
    batch.commit([batch.task(number, each, topic) for number, each in enumerate(rows)])
    assert seen(shared, topic) == 30
    with transaction(shared, topic, 0, partition=address(topic, 1)) as writer:
        writer.write(rows[1])
        writer.finish(soon())
    assert seen(shared, topic) == 30


@pytest.mark.parametrize("moment", ["staged", "committed"])
def test_another_store_takes_over(monkeypatch: pytest.MonkeyPatch, topic: str, moment: str) -> None:
    monkeypatch.setattr(timing, "SILENT_S", 5.0)
    rows = numbers(0, 10), numbers(10, 30)
    with ForkedCluster(stores=2) as own:
        first = MicroBatch(monkeypatch, own, 0)
        first.commit([first.task(0, numbers(0, 10), topic)])
        batch = MicroBatch(monkeypatch, own, 1)
        messages = [batch.task(number, each, topic) for number, each in enumerate(rows)]
        picked = own.stores.index(messages[0].picked)
        if moment == "committed":
            batch.commit(messages)  # and Spark does not hear of it
        own.kill_store(picked)
        if moment == "staged":
            with pytest.raises(StoreUnreachableError):  # a task that is tried again, meanwhile
                batch.task(0, rows[0], topic)
        again = MicroBatch(monkeypatch, own, 1)
        messages = [again.task(number, each, topic) for number, each in enumerate(rows)]
        again.commit(messages)
        assert seen(own, topic) == 40
        own.start_store(picked)
        last = MicroBatch(monkeypatch, own, 2)
        last.commit([last.task(0, numbers(10, 20), topic)])
        wanted = texts_of(pa.concat_arrays([numbers(0, 10), numbers(0, 10), numbers(10, 20)]))
        for index in (0, 1):

            def has_all(at: int = index) -> bool:
                return held(own, topic, at, address(topic)).values == wanted

            # Who commits may not have heard yet that it is back: the other gives them to it.
            wait_until(has_all, f"store {index} has all records")
            assert held(own, topic, index, address(topic, 1)).values == texts_of(rows[1])


@pytest.mark.usefixtures("small_blocks")
def test_a_task_does_not_wait_for_the_picked_store_when_it_is_gone(
    own: EmbeddedCluster, topic: str
) -> None:
    """Since another one is there, the next attempt of the batch need not wait either."""
    began = time.monotonic()
    with transaction(own, topic, 0, own.stores[0]) as writer:
        writer.write(numbers(0, 55))
        own.kill_store(0)
        with pytest.raises(NotAcknowledgedError) as caught:
            writer.finish(soon())
    assert "it alone had rows of the job, and is gone" in str(caught.value.__cause__)
    assert time.monotonic() - began < PATIENCE_S / 2


def test_what_another_store_got_in_part_is_completed(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    part = MicroBatch(monkeypatch, shared, 0)
    part.commit([part.task(0, numbers(0, 10), topic)])  # the other task's did not come here
    batch = MicroBatch(monkeypatch, shared, 0)
    messages = [batch.task(0, numbers(0, 10)[::-1], topic), batch.task(1, numbers(0, 5), topic)]
    assert [bool(message.ranges[0].attempt) for message in messages] == [False, True]
    batch.commit(messages)
    assert seen(shared, topic) == 15

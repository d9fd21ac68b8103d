"""A batch write with ``txnAppId`` and ``txnVersion`` is written once, however often it is run."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core import EmbeddedCluster
from dafka_core.errors import FencedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import StagedTransaction, TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.errors import ApplicationError
from dafka_spark.options import COUNT_BITS, MAX_TXN_VERSION
from dafka_spark.sink.application import Application
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import DafkaBatchWriter, TaskCommit
from tests.forked import ForkedCluster
from tests.integration.cluster.batch_job import BatchJob, seen
from tests.integration.cluster.transactions import (
    PATIENCE_S,
    held,
    numbers,
    options,
    texts_of,
)

Rows = Sequence[pa.Array]


class Runs:
    """Runs the same job, as often as a test wants."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cluster: EmbeddedCluster, topic: str
    ) -> None:
        self.monkeypatch, self.cluster, self.topic = monkeypatch, cluster, topic

    def job(self, version: int, app: str = "etl") -> BatchJob:
        transaction = {"txnAppId": app, "txnVersion": version}
        return BatchJob(self.monkeypatch, self.cluster, self.topic, **transaction)

    def run(self, version: int, *tasks: pa.Array, app: str = "etl") -> list[TaskCommit]:
        """The whole job; what its tasks say."""
        job = self.job(version, app)
        messages = [job.task(number, rows) for number, rows in enumerate(tasks)]
        job.writer.commit(messages)
        return messages

    @property
    def seen(self) -> int:
        return seen(self.cluster, self.topic)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str) -> Runs:
    return Runs(monkeypatch, shared, topic)


def half(runs: Runs, version: int, rows: pa.Array, task: int = 0, of: int = 2) -> None:
    """Leaves one of several partitions, as at a store that had no more of it from a lost one."""
    application = Application("etl", version, runs.topic)
    tp = TopicPartition(runs.topic, application.address(runs.topic, task))
    last, attempt = application.transaction_version(of), uuid.uuid4().hex.upper()
    with StoreSession(options(runs.cluster).mesh_address) as session:
        (client,) = session.refresh()
        with client.put(tp, 0, attempt=attempt, version=last, timeout_s=PATIENCE_S) as put:
            put.write(rows)
            put.finish(PATIENCE_S)
        staged = StagedTransaction(*tp, attempt, 0, len(rows), last)
        client.commit([staged], timeout_s=PATIENCE_S)


def test_a_version_is_written_once(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    tasks = numbers(0, 10), numbers(0, 0), numbers(10, 30)
    runs.run(3, *tasks)
    assert runs.seen == 30
    for again in (tasks, tasks[::-1], [numbers(0, 30)[::-1]], [numbers(15, 30), numbers(0, 15)]):
        caplog.clear()
        runs.run(3, *again)
        assert "version 3 of application 'etl' is committed already, to 2 of 2" in caplog.text
        assert runs.seen == 30
    runs.run(4, numbers(30, 40))  # in fewer tasks
    runs.run(7, numbers(40, 45), numbers(45, 50), numbers(50, 60))
    assert runs.seen == 60
    with pytest.raises(ApplicationError, match="20 rows of it are committed"):
        runs.run(7)
    partition = Application("etl", 0, runs.topic).address(runs.topic, 0)
    assert held(runs.cluster, runs.topic, 0, partition).values == texts_of(
        pa.concat_arrays([numbers(0, 10), numbers(30, 45)])
    )


@pytest.mark.parametrize("other", [[(0, 9)], [(0, 10), (0, 1)], [(5, 15)], [(10, 20), (0, 0)]])
def test_other_rows_under_a_version_are_refused(runs: Runs, other: list[tuple[int, int]]) -> None:
    """Two writes of one ``foreachBatch`` with the same pair, for instance."""
    runs.run(3, numbers(0, 5), numbers(5, 10))
    with pytest.raises(ApplicationError, match=r"10 rows of it are committed.*Nothing was written"):
        runs.run(3, *(numbers(*each) for each in other))
    assert runs.seen == 10


def test_an_older_version_is_refused(runs: Runs) -> None:
    """Its rows may have never been written: two writes may come in another order."""
    runs.run(3, numbers(0, 10))
    with pytest.raises(ApplicationError, match="version 3 is written already"):
        runs.job(2)
    assert runs.seen == 10


def test_each_topic_and_application_has_its_own_versions(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster
) -> None:
    for app, topic in (("a", runs.topic), ("b", runs.topic), ("a", runs.topic + "-2")):
        Runs(monkeypatch, shared, topic).run(1, numbers(0, 10), app=app)
    assert runs.seen == 20
    assert seen(shared, runs.topic + "-2") == 10


def test_rows_that_name_their_topics_are_one_write(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [StructField(name, StringType()) for name in ("value", "topic")]
    schema = StructType(names)
    given = options(runs.cluster, txnAppId=runs.topic, txnVersion=1)
    rows = pa.record_batch({"value": numbers(0, 4), "topic": [runs.topic, f"{runs.topic}-2"] * 2})
    job = runs.job(0)  # makes this process a task's
    job.task(0, numbers(0, 0))
    for _ in range(2):
        writer = DafkaBatchWriter(schema, given)
        writer.begin()
        written = writer.write(iter([rows]))
        writer.commit([written])
    assert [seen(runs.cluster, topic) for topic in (runs.topic, f"{runs.topic}-2")] == [2, 2]


def test_a_job_that_died_before_its_commit_is_written_by_the_next(runs: Runs) -> None:
    dead = runs.job(1)
    staged = [dead.task(number, numbers(0, 10)) for number in range(3)]
    runs.run(1, numbers(0, 10), numbers(10, 20))
    assert runs.seen == 20
    with pytest.raises(FencedError):
        dead.writer.commit(staged)  # a driver that was only cut off
    assert runs.seen == 20


def test_a_commit_is_repeated(runs: Runs) -> None:
    job = runs.job(1)
    messages = [job.task(0, numbers(0, 10)), job.task(1, numbers(10, 30))]
    for _ in range(2):
        job.writer.commit(messages)
        assert runs.seen == 30


def test_of_two_runs_at_one_time_one_is_written(runs: Runs) -> None:
    first, second = runs.job(1), runs.job(1)
    rows = numbers(0, 10), numbers(10, 30)
    of_first = [first.task(number, each) for number, each in enumerate(rows)]
    of_second = [second.task(0, rows[0])]
    with pytest.raises(FencedError) as caught:
        first.writer.commit(of_first)
    assert "option txnAppId = 'etl': another job with this name" in caught.value.__notes__[0]
    of_second.append(second.task(1, rows[1]))
    second.writer.commit(of_second)
    late = [first.task(number, each[::-1]) for number, each in enumerate(rows)]  # tried again
    first.writer.commit(late)
    assert runs.seen == 30


def test_other_partitions_under_the_same_version_at_one_time_are_refused(runs: Runs) -> None:
    first, second = runs.job(1), runs.job(1)
    of_first = [first.task(0, numbers(0, 10)), first.task(1, numbers(0, 0))]
    of_second = [second.task(0, numbers(0, 0)), second.task(1, numbers(10, 20))]
    second.writer.commit(of_second)
    with pytest.raises(ApplicationError, match=r"it has 10 others now.*a txnAppId or a txnVersion"):
        first.writer.commit(of_first)
    assert runs.seen == 10


def test_a_newer_version_meanwhile(runs: Runs) -> None:
    slow = runs.job(1)
    staged = [slow.task(0, numbers(0, 10))]
    runs.run(2, numbers(10, 20))
    with pytest.raises(ApplicationError, match="version 2 is written already"):
        slow.writer.commit(staged)
    assert runs.seen == 10


def test_what_another_store_got_in_part_is_completed(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    rows = numbers(0, 10), numbers(10, 30), numbers(30, 35)
    half(runs, 1, rows[0], of=3)
    half(runs, 1, rows[2], task=2, of=3)
    assert runs.seen == 15
    runs.run(1, rows[0][::-1], *rows[1:])  # in another order
    assert "to 2 of 3 partitions: 1 partitions are left to write" in caplog.text
    assert runs.seen == 35
    runs.run(1, *rows)
    assert runs.seen == 35


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([numbers(1, 11), numbers(0, 5)], "it has 15 now"),
        ([numbers(0, 9), numbers(0, 5)], "it has 14 now"),
        ([numbers(0, 0), numbers(0, 5)], "it has 5 now"),
        ([numbers(0, 10)], "it has 10 others now"),
        ([numbers(0, 10)] * 3, "it has 30 now"),
    ],
)
def test_other_rows_than_those_written_in_part_are_refused(
    runs: Runs, tasks: Rows, says: str
) -> None:
    half(runs, 1, numbers(0, 10))
    with pytest.raises(ApplicationError, match=f"to 1 of 2 .*{says}.*adaptive execution"):
        runs.run(1, *tasks)
    assert runs.seen == 10


def test_nothing_is_written_behind_a_version_in_part(runs: Runs) -> None:
    half(runs, 1, numbers(0, 10))
    with pytest.raises(ApplicationError, match="version 1, the one before, is written in part"):
        runs.job(2)
    runs.run(1, numbers(0, 10), numbers(10, 20))
    runs.run(2, numbers(20, 30))
    assert runs.seen == 30


@pytest.mark.parametrize("moment", ["staged", "committed"])
def test_another_store_takes_over(monkeypatch: pytest.MonkeyPatch, topic: str, moment: str) -> None:
    rows = numbers(0, 10), numbers(10, 30)
    with ForkedCluster(stores=2) as own:
        runs = Runs(monkeypatch, own, topic)
        runs.run(1, numbers(0, 10))
        job = runs.job(2)
        messages = [job.task(number, each) for number, each in enumerate(rows)]
        has = [held(own, topic, i, messages[0].ranges[0].tp.partition).info for i in (0, 1)]
        (picked,) = (index for index in (0, 1) if has[index].staged_end > has[index].end)
        if moment == "committed":
            job.writer.commit(messages)  # and nobody hears of it
        own.kill_store(picked)
        runs.run(2, *rows)
        own.start_store(picked)
        runs.run(3, numbers(30, 40))
        partition = messages[0].ranges[0].tp.partition
        values = texts_of(pa.concat_arrays([numbers(0, 10), numbers(0, 10), numbers(30, 40)]))
        for index in (0, 1):  # one of them acknowledges, and the other one follows
            wait_until(partial(lambda at: held(own, topic, at, partition).values == values, index))
        assert runs.seen == 50


def test_the_answer_to_a_commit_is_lost(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = StoreClient.commit

    def unanswered(
        client: StoreClient, some: Sequence[StagedTransaction], *, timeout_s: float
    ) -> None:
        monkeypatch.setattr(StoreClient, "commit", commit)
        commit(client, some, timeout_s=timeout_s)
        raise StoreUnreachableError(client.location.store, "the connection was lost")

    monkeypatch.setattr(StoreClient, "commit", unanswered)
    runs.run(1, numbers(0, 10), numbers(10, 20))
    assert runs.seen == 20


def test_the_largest_version(runs: Runs) -> None:
    runs.run(MAX_TXN_VERSION, numbers(0, 10))
    runs.run(MAX_TXN_VERSION, numbers(0, 10))
    assert runs.seen == 10
    assert MAX_TXN_VERSION == (1 << 63 - COUNT_BITS) - 1

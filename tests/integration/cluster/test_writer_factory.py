"""At least once: a partition is complete whatever happens to the store that hosts it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster, Reader
from dafka_core.errors import (
    ConfigError,
    FencedError,
    NotAcknowledgedError,
    OffsetConflictError,
    StoreUnreachableError,
)
from dafka_core.flight.store_client import PutStream, StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import StagedTransaction, TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.sink.commit_messages import WrittenRange
from dafka_spark.sink.transaction_writer import MeshWriter
from tests.forked import ForkedCluster
from tests.integration.cluster.transactions import (
    PARTITION,
    PATIENCE_S,
    held,
    host_of,
    hosted,
    numbers,
    opened,
    soon,
    texts_of,
    write,
)


def written(topic: str, start: int, end: int) -> WrittenRange:
    return WrittenRange(TopicPartition(topic, PARTITION), start, end)


def test_rows_are_put_in_order_and_a_writer_goes_on(shared: EmbeddedCluster, topic: str) -> None:
    for start in (0, 10, 20):
        with hosted(shared, topic) as writer:
            writer.write(numbers(start, start + 4))
            assert write(writer, start + 4, start + 10) == written(topic, start, start + 10)
    found = held(shared, topic)
    assert found.values == texts_of(numbers(0, 30))
    assert found.info.transaction is None  # nothing says that they were written


@pytest.mark.usefixtures("small_blocks")
def test_rows_are_seen_when_the_task_is_done(shared: EmbeddedCluster, topic: str) -> None:
    with hosted(shared, topic) as writer:
        writer.write(numbers(0, 95))
        writer.pause()
        found = held(shared, topic)
        assert (found.info.end, found.info.staged_end) == (0, 90)
        writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_values_of_any_kind_become_bytes(
    shared: EmbeddedCluster, topic: str, kind: pa.DataType
) -> None:
    with hosted(shared, topic) as writer:
        writer.write(pa.array(["é", ""]).cast(kind))
        writer.finish(soon())
    assert held(shared, topic).values == ["é".encode(), b""]


# -- two attempts of one task ----------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_another_attempt_beside_it_costs_no_row(shared: EmbeddedCluster, topic: str) -> None:
    with hosted(shared, topic) as late, hosted(shared, topic) as early:
        assert write(late, 0, 10) == written(topic, 0, 10)
        assert write(early, 100, 130) == written(topic, 10, 40)
    with hosted(shared, topic) as writer:
        assert write(writer, 10, 30) == written(topic, 40, 60)
    rows = [*range(10), *range(100, 130), *range(10, 30)]
    assert held(shared, topic).values == [b"%d" % row for row in rows]


@pytest.mark.usefixtures("small_blocks")
def test_of_two_attempts_at_a_time_one_is_fenced(shared: EmbeddedCluster, topic: str) -> None:
    with hosted(shared, topic) as zombie:
        zombie.write(numbers(0, 10))
        zombie.pause()
        with hosted(shared, topic) as writer:
            writer.write(numbers(0, 15)[::-1])
            writer.pause()
            with pytest.raises(FencedError):
                write(zombie, 10, 15)
            assert writer.finish(soon()) == written(topic, 0, 15)
    assert held(shared, topic).values == texts_of(numbers(0, 15)[::-1])


@pytest.mark.usefixtures("small_blocks")
def test_an_attempt_that_fails_leaves_nothing(shared: EmbeddedCluster, topic: str) -> None:
    with pytest.raises(KeyboardInterrupt), hosted(shared, topic) as writer:  # noqa: PT012
        writer.write(numbers(0, 95))
        writer.pause()
        raise KeyboardInterrupt
    found = held(shared, topic).info
    assert found.end == found.staged_end == 0


# -- acknowledgements, and the mesh ----------------------------------------------------------------


def test_without_flight_the_mesh_takes_the_rows() -> None:
    with ForkedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        for start in (0, 10):
            with opened(cluster, "t") as writer:
                assert isinstance(writer, MeshWriter)
                assert write(writer, start, start + 10) == written("t", start, start + 10)
        with Reader(tower=cluster.tower) as reader:
            found = reader.read(TopicPartition("t", PARTITION), 0, 20, timeout_s=PATIENCE_S)
            rows = [value for batch in found for value in batch.values]
    assert rows == texts_of(numbers(0, 20))


def test_more_acknowledgements_than_hosts_are_the_meshs_matter(
    shared: EmbeddedCluster, topic: str
) -> None:
    writer = opened(shared, topic, acks=2)
    assert isinstance(writer, MeshWriter)
    writer.write(numbers(0, 1))
    with pytest.raises(NotAcknowledgedError) as caught:
        writer.finish(Deadline(0.5))
    writer.__exit__(NotAcknowledgedError, caught.value, None)


def test_stores_that_only_the_mesh_reaches_are_the_meshs_matter(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(client: StoreClient, *_: object, timeout_s: float) -> None:
        raise StoreUnreachableError(client.location.store, "there is a wall")

    monkeypatch.setattr(timing, "SILENT_S", 0.5)
    monkeypatch.setattr(StoreClient, "transaction_states", refused)
    with opened(shared, topic) as writer:
        assert isinstance(writer, MeshWriter)
        write(writer, 0, 10)
    monkeypatch.undo()
    assert held(shared, topic).values == texts_of(numbers(0, 10))


def test_all_stores_are_those_with_flight() -> None:
    with ForkedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        with pytest.raises(ConfigError, match="Arrow Flight, and none answers: name a number"):
            opened(cluster, "t", acks="all")


def test_all_stores_must_have_the_rows(own: EmbeddedCluster, topic: str) -> None:
    with hosted(own, topic, acks="all") as writer:
        write(writer, 0, 1000)
    assert held(own, topic, 0).values == held(own, topic, 1).values == texts_of(numbers(0, 1000))


def test_acks_are_of_distinct_stores(own: EmbeddedCluster, topic: str) -> None:
    with hosted(own, topic, acks=2) as writer:
        write(writer, 0, 1000)
    assert held(own, topic, 0).values == held(own, topic, 1).values == texts_of(numbers(0, 1000))
    with hosted(own, topic, acks=2) as writer:
        own.kill_store(1 - host_of(own, writer))
        writer.write(numbers(1000, 1010))
        with pytest.raises(NotAcknowledgedError):
            writer.finish(Deadline(1.0))


def test_a_store_that_flight_does_not_reach_is_given_up(
    own: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is in the mesh, so it may have more: until it has not answered for long enough.
    lost = own.stores[1]
    describe = StoreClient.describe

    def refused(client: StoreClient, *, timeout_s: float) -> StoreLocation:
        if client.location.store == lost:
            raise StoreUnreachableError(lost, "there is a wall")
        return describe(client, timeout_s=timeout_s)

    monkeypatch.setattr(StoreClient, "describe", refused)
    monkeypatch.setattr(timing, "SILENT_S", 1.0)
    with hosted(own, topic) as writer:
        assert host_of(own, writer) == 0
        write(writer, 0, 10)
    assert held(own, topic).values == texts_of(numbers(0, 10))


# -- the host is lost ------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_it_goes_on_at_the_other_store_when_the_host_dies(own: EmbeddedCluster, topic: str) -> None:
    with hosted(own, topic, acks=2) as writer:
        write(writer, 0, 1000)
    with hosted(own, topic, acks=1) as writer:
        writer.write(numbers(1000, 1555))
        own.kill_store(host_of(own, writer))
        assert write(writer, 1555, 2000) == written(topic, 1000, 2000)
        assert host_of(own, writer) == 0  # the only one left
    assert held(own, topic, 0).values == texts_of(numbers(0, 2000))


@pytest.mark.usefixtures("small_blocks")
def test_it_goes_on_at_the_same_store_started_again(own: EmbeddedCluster, topic: str) -> None:
    own.kill_store(1)
    with hosted(own, topic) as writer:
        write(writer, 0, 1000)
    with hosted(own, topic) as writer:
        writer.write(numbers(1000, 1555))
        own.kill_store(0)
        own.start_store(0)
        write(writer, 1555, 2000)
    assert held(own, topic).values == texts_of(numbers(0, 2000))


def test_rows_that_only_the_dead_host_had_are_not_silently_lost(
    own: EmbeddedCluster, topic: str
) -> None:
    own.kill_store(1)
    with hosted(own, topic, deliveryTimeoutMs=1500) as writer:
        write(writer, 0, 10)
    with hosted(own, topic, deliveryTimeoutMs=1500) as writer:
        own.kill_store(0)
        own.start_store(1)  # it has none of them
        writer.write(numbers(10, 20))
        with pytest.raises(NotAcknowledgedError, match="10 records are not acknowledged"):
            writer.finish(Deadline(3.0))


def test_a_lost_answer_to_a_commit_does_not_double(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = StoreClient.commit

    def unanswered(client: StoreClient, some: Any, *, timeout_s: float) -> None:
        monkeypatch.undo()
        commit(client, some, timeout_s=timeout_s)
        raise StoreUnreachableError(client.location.store, "the connection was lost")

    monkeypatch.setattr(StoreClient, "commit", unanswered)
    with hosted(shared, topic) as writer:
        assert write(writer, 0, 10) == written(topic, 0, 10)
    assert held(shared, topic).values == texts_of(numbers(0, 10))


def test_a_commit_that_was_not_heard_is_repeated(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unheard(client: StoreClient, some: Any, *, timeout_s: float) -> None:
        monkeypatch.undo()
        raise StoreUnreachableError(client.location.store, "the connection was lost")

    monkeypatch.setattr(StoreClient, "commit", unheard)
    with hosted(shared, topic) as writer:
        assert write(writer, 0, 10) == written(topic, 0, 10)
    assert held(shared, topic).values == texts_of(numbers(0, 10))


def test_rows_are_there_though_the_host_dies_before_it_answers(
    own: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other store has got them, and cannot say that they are this attempt's."""
    with hosted(own, topic) as writer:
        host, commit = host_of(own, writer), StoreClient.commit

        def killed(
            client: StoreClient, some: Sequence[StagedTransaction], *, timeout_s: float
        ) -> None:
            monkeypatch.undo()
            commit(client, some, timeout_s=timeout_s)
            wait_until(lambda: held(own, topic, 1 - host).info.end == 10)
            own.kill_store(host)
            raise StoreUnreachableError(client.location.store, "the connection was lost")

        monkeypatch.setattr(StoreClient, "commit", killed)
        assert write(writer, 0, 10) == written(topic, 10, 20)
    assert set(held(own, topic, 0).values) == set(texts_of(numbers(0, 10)))


def test_a_put_that_is_refused_says_where_the_partition_ends(
    shared: EmbeddedCluster, topic: str
) -> None:
    with hosted(shared, topic) as writer:
        write(writer, 0, 10)
        client = writer.rows.host
        assert client is not None
        for start in (0, 5, 11):
            put = client.put(TopicPartition(topic, PARTITION), start, timeout_s=PATIENCE_S)
            with closing(put), pytest.raises(OffsetConflictError) as caught:
                _write(put, start)
            assert caught.value.end == 10


def _write(put: PutStream, start: int) -> None:
    put.write(numbers(0, 3))
    put.wait_durable(start + 3, timeout_s=PATIENCE_S)

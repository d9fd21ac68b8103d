"""Rows on their way to a store's disk: in blocks, in few streams, and retained up to a bound."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import NotAcknowledgedError, StoreBusyError, StoreUnreachableError
from dafka_core.flight.store_client import PutStream, StoreClient
from dafka_core.model.records import TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.sink import transaction_writer
from dafka_spark.sink.transaction_writer import WriterFactory
from tests.forked import ForkedCluster
from tests.integration.cluster.transactions import (
    PARTITION,
    PATIENCE_S,
    held,
    host_of,
    hosted,
    numbers,
    options,
    restarts,
    soon,
    texts_of,
    transaction,
    write,
)


def test_small_batches_become_blocks(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    put = PutStream.write

    def counted(stream: PutStream, values: pa.Array) -> None:
        sizes.append(len(values))
        put(stream, values)

    monkeypatch.setattr(PutStream, "write", counted)
    monkeypatch.setattr(transaction_writer, "BLOCK_ROWS", 100)
    with hosted(shared, topic) as writer:
        for start in range(0, 250, 10):
            writer.write(numbers(start, start + 10))
        assert sizes == [100, 100]
        write(writer, 250, 1005)
    assert sizes == [100] * 10 + [5]
    assert held(shared, topic).values == texts_of(numbers(0, 1005))


@pytest.mark.usefixtures("small_blocks")
def test_what_is_retained_is_bounded(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_writer, "RETAINED_BYTES", 2000)
    with hosted(shared, topic) as writer:
        for start in range(0, 1000, 10):
            writer.write(numbers(start, start + 10))
            assert writer.rows.retained_bytes <= 2000
        assert not writer.rows.is_whole
        writer.finish(soon())
        assert writer.rows.retained_bytes == 0
    assert held(shared, topic).values == texts_of(numbers(0, 1000))


@pytest.mark.usefixtures("small_blocks")
def test_rows_without_bytes_are_bounded_too(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_writer, "RETAINED_BYTES", 200)
    with hosted(shared, topic) as writer:
        writer.write(pa.array([b""] * 100))
        assert not writer.rows.is_whole
        writer.finish(soon())
    assert held(shared, topic).values == [b""] * 100


@pytest.mark.usefixtures("small_blocks")
def test_many_topics_share_few_streams(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_writer, "MAX_STREAMS", 2)
    names = [f"{topic}-{index}" for index in range(5)]
    streams: set[PutStream] = set()
    put, close = StoreClient.put, PutStream.close

    def opened(*args: Any, **given: Any) -> PutStream:
        stream = put(*args, **given)
        streams.add(stream)
        return stream

    def closed(stream: PutStream) -> None:
        close(stream)
        streams.discard(stream)

    monkeypatch.setattr(StoreClient, "put", opened)
    monkeypatch.setattr(PutStream, "close", closed)
    with WriterFactory(options(shared)) as factory, ExitStack() as stack:
        writers = [
            stack.enter_context(factory.open(TopicPartition(name, PARTITION))) for name in names
        ]
        for start in range(0, 60, 20):
            for writer in writers:
                writer.write(numbers(start, start + 20))
                assert len(streams) <= 2
        for writer in writers:
            writer.finish(soon())
    for name in names:
        assert held(shared, name).values == texts_of(numbers(0, 60))


@pytest.mark.usefixtures("small_blocks")
def test_the_host_is_lost_again_while_rows_are_staged_anew(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the attempt in between has staged is the task's own."""
    put, sent = PutStream.write, 0

    def broken(stream: PutStream, values: pa.Array) -> None:
        nonlocal sent
        sent += 1
        put(stream, values)
        if sent in (6, 8):
            stream.wait_durable(stream.end, timeout_s=PATIENCE_S)
            raise StoreUnreachableError(shared.stores[0], "the connection was lost")

    monkeypatch.setattr(PutStream, "write", broken)
    with transaction(shared, topic) as writer:
        write(writer, 0, 100)
    assert held(shared, topic).values == texts_of(numbers(0, 100))


@pytest.mark.usefixtures("small_blocks")
def test_a_large_transaction_goes_on_at_the_same_host(
    own: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_writer, "RETAINED_BYTES", 300)
    own.kill_store(1)
    with transaction(own, topic) as writer:
        writer.write(numbers(0, 155))
        assert not writer.rows.is_whole
        assert writer.rows.retained_bytes <= 300
        own.kill_store(0)
        own.start_store(0)
        write(writer, 155, 300)
    assert held(own, topic).values == texts_of(numbers(0, 300))


@pytest.mark.usefixtures("small_blocks")
def test_a_large_transaction_whose_host_is_gone_fails(
    own: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_writer, "RETAINED_BYTES", 300)
    with transaction(own, topic, deliveryTimeoutMs=1500) as writer:
        writer.write(numbers(0, 155))
        own.kill_store(host_of(own, writer))
        with pytest.raises((NotAcknowledgedError, StoreUnreachableError)):
            write(writer, 155, 300)
    assert held(own, topic).values == []  # the other store has none of it


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("others", [0, 1])
def test_a_large_transaction_whose_host_is_given_up_fails_at_once(
    topic: str, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """And not after two minutes: what waits is Spark's next attempt."""
    monkeypatch.setattr(transaction_writer, "RETAINED_BYTES", 300)
    monkeypatch.setattr(timing, "SILENT_S", 1.0)
    with ForkedCluster(stores=1 + others) as cluster, transaction(cluster, topic) as writer:
        writer.write(numbers(0, 155))
        cluster.kill_store(host_of(cluster, writer))
        with pytest.raises(NotAcknowledgedError, match="after 1 s") as caught:
            write(writer, 155, 300)
        assert "it alone had all rows of the task, and is gone" in str(caught.value.__cause__)


# -- many at one store -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_two_hundred_slow_writers_share_the_places_of_a_store(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has some rows staged while it computes the others: there are 32 places."""
    monkeypatch.setattr(transaction_writer, "HOLD_S", 0.05)
    all_staged = threading.Barrier(200)

    def work(number: int) -> int:
        with transaction(shared, topic, partition=f"{number:032X}") as writer:
            writer.write(numbers(0, 10))
            writer.rows.wait_staged(soon())
            all_staged.wait(PATIENCE_S)
            return write(writer, 10, 25).end

    with ThreadPoolExecutor(200) as tasks:
        assert list(tasks.map(work, range(200))) == [25] * 200


@pytest.mark.parametrize("moves", [True, False])
def test_a_busy_store_is_waited_for_as_long_as_it_serves_others(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    put = StoreClient.put
    waited: list[float] = []

    def busy(client: StoreClient, *args: Any, waited_s: float, **given: Any) -> PutStream:
        waited.append(waited_s)
        if len(waited) <= 6:
            raise StoreBusyError(shared.stores[0], "it has no place", waited_s + 30, moves)
        return put(client, *args, waited_s=waited_s, **given)

    monkeypatch.setattr(StoreClient, "put", busy)
    anew = restarts(monkeypatch)
    with transaction(shared, topic, deliveryTimeoutMs=500) as writer:
        writer.write(numbers(0, 10))
        if moves:
            assert writer.finish(soon()).end == 10
            assert len(anew) == 6
            assert waited == [0, 30, 60, 90, 120, 150, 180]  # its place is that of the first time
        else:
            with pytest.raises(NotAcknowledgedError):
                writer.finish(Deadline(0.5))

"""The consumer: which records, in which order, from where on."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import chain

import pytest

from dafka_core import ClosedError, Consumer, Producer, Record
from dafka_core.model.records import TopicPartition
from dafka_core.nodes.consumer import TURN_RECORDS
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Consume, Produce
from tests.integration.nodes.content import flushed, values
from tests.integration.nodes.peers import PATIENCE_S


def take(consumer: Consumer, count: int) -> list[Record]:
    """Return the next records; no further one follows immediately."""
    found: list[Record] = []
    while len(found) < count:
        record = consumer.poll(PATIENCE_S)
        assert record is not None, f"only {len(found)} of {count} records came"
        found.append(record)
    assert consumer.poll(0) is None
    return found


def caught_up(consumer: Consumer, producer: Producer) -> Callable[[], bool]:
    def condition() -> bool:
        position = consumer.positions().get(TopicPartition(producer.topic, producer.address))
        return position is not None and position[1] >= producer.next_offset

    return condition


def test_subscriptions_are_listed_in_their_order(consume: Consume) -> None:
    consumer = consume("b", "a")
    assert consumer.subscription == ["b", "a"]
    consumer.subscribe("b")
    consumer.unsubscribe("never subscribed to")
    assert consumer.subscription == ["b", "a"]
    consumer.unsubscribe("b")
    assert consumer.subscription == ["a"]
    assert len(consumer.address) == 32


@pytest.mark.usefixtures("store")
def test_unsubscribing_drops_queued_records_and_positions(
    produce: Produce, consume: Consume
) -> None:
    consumer = consume("a", "b")
    flushed(produce("a"), values(100))
    flushed(produce("b"), [b"b"])
    wait_until(lambda: consumer.queue.size[0] == 101)
    consumer.unsubscribe("a")
    assert [r.topic for r in take(consumer, 1)] == ["b"]
    consumer.subscribe("a")
    assert [r.offset for r in take(consumer, 100)] == list(range(100))


@pytest.mark.usefixtures("store")
def test_seek_goes_back_and_forth(produce: Produce, consume: Consume) -> None:
    producer = flushed(produce("t"), values(1_000))
    tp = TopicPartition("t", producer.address)
    consumer = consume("t")
    records = iter(consumer)
    assert [next(records).offset for _ in range(10)] == list(range(10))
    consumer.seek(tp, 5)
    # The running iteration continues there, too.
    assert next(records).offset == 5
    assert take(consumer, 994)[0].offset == 6
    consumer.seek(tp, 998)
    assert [r.offset for r in take(consumer, 2)] == [998, 999]
    consumer.seek(tp, 1_001)
    producer.publish_many(values(3, 1_000))
    assert [r.offset for r in take(consumer, 2)] == [1_001, 1_002]


@pytest.mark.usefixtures("store")
def test_threads_share_the_records(produce: Produce, consume: Consume) -> None:
    producer = produce("t")
    consumer = consume("t")
    for first in range(0, 10_000, 50):
        producer.publish_many(values(50, first))
    found: list[list[int]] = [[] for _ in range(6)]

    def poll(mine: list[int]) -> None:
        with suppress(ClosedError):
            while (record := consumer.poll(PATIENCE_S)) is not None:
                mine.append(record.offset)

    def take_batches(mine: list[int]) -> None:
        for batch in consumer.batches():
            mine.extend(range(batch.offset, batch.end))

    def iterate(mine: list[int]) -> None:
        mine.extend(record.offset for record in consumer)

    ways = [poll, poll, take_batches, iterate, iterate, iterate]
    threads = [
        threading.Thread(target=way, args=(mine,)) for way, mine in zip(ways, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(map(len, found)) >= 10_000)
    consumer.close()
    for thread in threads:
        thread.join()
    assert sorted(chain.from_iterable(found)) == list(range(10_000))
    assert all(mine == sorted(mine) for mine in found)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("limit", [{"max_queued_records": 100}, {"max_queued_bytes": 1_000}])
def test_a_slow_application_bounds_what_waits(
    produce: Produce, consume: Consume, limit: dict[str, int]
) -> None:
    consumer = consume("t", **limit)
    producer = produce("t")
    producer.publish_many(values(1_000))
    wait_until(lambda: not consumer.role.room)
    # It was filled by what came in one go. Nothing is added to that, and nothing kept elsewhere.
    producer.publish_many(values(19_000, 1_000))
    producer.flush(PATIENCE_S)
    wait_until(caught_up(consumer, producer))
    assert consumer.queue.size[0] <= 1_000
    assert consumer.role.scheduler.budget.records == 0
    assert consumer.held_topics(timeout_s=PATIENCE_S) == {"t"}
    assert [r.value for r in take(consumer, 20_000)] == values(20_000)
    assert consumer.queue.size == (0, 0)


@pytest.mark.usefixtures("store")
def test_close_drops_queued_records(produce: Produce, consume: Consume) -> None:
    flushed(produce("t"), values(1_000))
    consumer = consume("t")
    records = iter(consumer)
    assert next(records).offset == 0
    wait_until(lambda: list(consumer.positions().values()) == [(1, 1_000)])
    consumer.close()
    consumer.close()
    assert list(records) == []
    assert list(consumer) == []
    for call in (lambda: consumer.poll(0), lambda: consumer.subscribe("x"), consumer.positions):
        with pytest.raises(ClosedError, match="the consumer is closed"):
            call()


@pytest.mark.usefixtures("store")
def test_an_event_loop_runs_while_a_task_waits_for_records(
    produce: Produce, consume: Consume
) -> None:
    producer = flushed(produce("t"), values(1_000))
    consumer = consume("t")

    async def count_to(end: int) -> list[int]:
        found = []
        async for record in consumer:
            found.append(record.offset)
            if record.offset == end - 1:
                return found
        return found

    async def main() -> None:
        assert await count_to(500) == list(range(500))
        assert await count_to(1_000) == list(range(500, 1_000))
        waiting = asyncio.create_task(count_to(1_003))
        with pytest.raises(TimeoutError):  # the loop runs, and nothing is lost by giving up
            await asyncio.wait_for(count_to(1_001), 0.05)
        producer.publish_many(values(3, 1_000))
        assert await waiting == [1_000, 1_001, 1_002]
        ending = asyncio.create_task(count_to(2_000))
        await asyncio.sleep(0)
        await asyncio.to_thread(consumer.close)
        assert await ending == []

    asyncio.run(main())


@pytest.mark.usefixtures("store")
def test_an_event_loop_runs_while_records_are_queued(produce: Produce, consume: Consume) -> None:
    """A task that always finds records can be cancelled, and takes only those that it returned."""
    flushed(produce("t"), values(4_000))
    consumer = consume("t")
    wait_until(lambda: consumer.queue.size[0] == 4_000)
    found: list[int] = []

    async def read() -> None:
        async for record in consumer:
            found.append(record.offset)  # noqa: PERF401 -- as far as it comes

    async def main() -> None:
        reading = asyncio.create_task(read())
        while not found:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(main())
    assert found == list(range(len(found)))
    assert 0 < len(found) <= 2 * TURN_RECORDS
    rest = [record.offset for _ in range(4_000 - len(found)) if (record := consumer.poll(0))]
    assert rest == list(range(len(found), 4_000))


@pytest.mark.usefixtures("store")
def test_coroutines_share_the_records_and_have_no_threads(
    produce: Produce, consume: Consume
) -> None:
    producer, consumer = produce("t"), consume("t")

    async def first() -> int:
        async for record in consumer:
            return record.offset
        raise AssertionError("it was closed")

    async def main() -> None:
        threads = threading.active_count()
        reading = [asyncio.create_task(first()) for _ in range(50)]
        await asyncio.sleep(0)
        reading.pop().cancel()
        producer.publish_many(values(49))
        assert sorted(await asyncio.gather(*reading)) == list(range(49))
        assert threading.active_count() == threads

    asyncio.run(main())

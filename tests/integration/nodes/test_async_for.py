"""``async for`` over a consumer: the event loop keeps running, and no record is skipped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from dafka_core import Consumer, Producer
from dafka_core.nodes.consumer import TURN_RECORDS
from dafka_core.testing import wait_until
from tests.integration.nodes.content import flushed, values

Produce = Callable[..., Producer]
Consume = Callable[..., Consumer]


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

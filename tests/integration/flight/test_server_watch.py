"""What has changed in many partitions, asked once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pyarrow import flight

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight import limits, server_watch
from dafka_core.flight.json_messages import HeadsSince
from dafka_core.flight.store_client import StoreClient
from dafka_core.log_entries import Commit, SetAside, Stage
from dafka_core.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import TOPIC, TP, Served

NO_TIME: dict[str, Any] = {"wait_s": 0.0, "timeout_s": PATIENCE_S}
LONG: dict[str, Any] = {"wait_s": PATIENCE_S, "timeout_s": PATIENCE_S}
ATTEMPT = "A" * 32


def watching(served: Served, count: int = 1) -> None:
    """Waits until so many watch."""
    wait_until(lambda: served.service.context.watches.free == limits.MAX_WATCHES - count)


Later = Callable[..., Future[HeadsSince]]


@pytest.fixture
def later() -> Iterator[Later]:
    """Calls things in threads of their own."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def test_the_first_answer_is_everything(served: Served, client: StoreClient) -> None:
    served.extend(5)
    served.extend(3, topic="u", partition="Q")
    found = client.watch(None, "", **LONG)
    assert found.complete
    assert list(found.heads) == served.log.partitions()
    only = client.watch(["u", "none", "u"], "", **LONG)
    assert list(only.heads) == served.log.partitions("u")
    assert client.watch([], "", **LONG).heads == ()


def test_later_answers_are_what_has_changed(served: Served, client: StoreClient) -> None:
    for number in range(100):
        served.extend(1, partition=f"P{number}")
    before = client.watch([TOPIC], "", **NO_TIME)
    same = client.watch([TOPIC], before.cursor, **NO_TIME)
    assert (same.complete, same.heads, same.cursor) == (False, (), before.cursor)
    served.extend(9, partition="P7")
    served.extend(9, topic="u")
    served.log.trim(TopicPartition(TOPIC, "P8"), 1)
    after = client.watch([TOPIC], before.cursor, **LONG)
    assert not after.complete
    heads = {info.partition: (info.earliest, info.end) for info in after.heads}
    assert heads == {"P7": (0, 9), "P8": (1, 1)}
    assert client.watch([TOPIC], after.cursor, **NO_TIME).heads == ()


def test_a_watch_ends_when_a_record_is_on_disk(
    served: Served, client: StoreClient, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_watch, "WATCH_STEP_S", PATIENCE_S)  # it does not look by itself
    served.extend(5)
    cursor = client.watch([TOPIC], "", **NO_TIME).cursor
    waiting = later(client.watch, [TOPIC], cursor, **LONG)
    watching(served)
    served.extend(1, topic="another")
    assert not waiting.done()
    served.extend(8)
    assert [info.end for info in waiting.result().heads] == [8]


def test_a_watch_ends_when_its_time_has_passed(served: Served, client: StoreClient) -> None:
    cursor = client.watch(None, "", **NO_TIME).cursor
    before = time.monotonic()
    found = client.watch(None, cursor, wait_s=0.7, timeout_s=PATIENCE_S)
    assert 0.7 <= time.monotonic() - before < 5
    assert (found.complete, found.heads, found.cursor) == (False, (), cursor)


@pytest.mark.parametrize(
    "cursor", ["x", ":", "0:0", "{}:-1", "{}:1_0", "{}:99", "{}:\uff11", "{}:"]
)
def test_a_cursor_that_the_store_does_not_know_has_everything(served: Served, cursor: str) -> None:
    served.extend(5)
    found = served.client().watch(None, cursor.format(served.location.session), **LONG)
    assert found.complete
    assert list(found.heads) == served.log.partitions()


def test_a_store_that_has_been_started_anew_tells_everything(served: Served) -> None:
    served.extend(5)
    cursor = served.client().watch(None, "", **NO_TIME).cursor
    served.stop()
    served.start()
    assert served.client().watch(None, cursor, **LONG).complete


def test_what_changes_together_is_told_together(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to who asks when it can be seen, and is not noted yet."""
    first, second = (TopicPartition(TOPIC, name) for name in ("first", "second"))
    both = tuple(StagedTransaction(*tp, ATTEMPT, 1, 3, 1) for tp in (first, second))
    for tp in (first, second):
        served.extend(1, partition=tp.partition)
    served.log.write([Stage(RecordBatch.of(second, 1, [b"x"] * 2), ATTEMPT, 1)])
    cursor = client.watch([TOPIC], "", **NO_TIME).cursor
    served.log.write([Stage(RecordBatch.of(first, 1, [b"x"] * 2), ATTEMPT, 1)])
    add, told = served.log.changes.add, []

    def watched(changed: Collection[TopicPartition], *, wakes: bool = True) -> None:
        if wakes:
            told.append(client.watch([TOPIC], cursor, **NO_TIME))
        add(changed, wakes=wakes)

    monkeypatch.setattr(served.log.changes, "add", watched)
    served.log.write([Commit(both)])
    told.append(client.watch([TOPIC], told[0].cursor, **NO_TIME))
    for found in told:
        assert {info.partition: info.end for info in found.heads} == {"first": 3, "second": 3}


def test_what_is_staged_wakes_nobody_and_a_commit_does(
    served: Served, client: StoreClient, later: Later
) -> None:
    new = TopicPartition(TOPIC, "new")
    cursor = client.watch([TOPIC], "", **NO_TIME).cursor
    served.log.write([Stage(RecordBatch.of(new, 0, [b"x"] * 3), ATTEMPT, 1)])
    assert client.watch([TOPIC], cursor, **NO_TIME).heads == ()
    waiting = later(client.watch, [TOPIC], cursor, **LONG)
    watching(served)
    client.commit([StagedTransaction(*new, ATTEMPT, 0, 3, 1)], timeout_s=PATIENCE_S)
    assert [(info.tp, info.end) for info in waiting.result().heads] == [(new, 3)]


def test_a_partition_that_is_gone_is_told_by_telling_everything(
    served: Served, client: StoreClient
) -> None:
    served.extend(5)
    served.extend(5, partition="Q")
    cursor = client.watch([TOPIC], "", **NO_TIME).cursor
    served.log.write([SetAside(TP, 0)])
    found = client.watch([TOPIC], cursor, **LONG)
    assert found.complete
    assert [info.partition for info in found.heads] == ["Q"]


def test_a_hundred_watch_and_others_are_served(served: Served, later: Later) -> None:
    """Each holds a thread of the store; what others ask does not wait for them."""
    served.extend(5)
    client = served.client()
    cursor = client.watch([TOPIC], "", **NO_TIME).cursor
    with ThreadPoolExecutor(100) as pool:
        waiting = [pool.submit(client.watch, [TOPIC], cursor, **LONG) for _ in range(100)]
        watching(served, 100)
        assert client.wait(TP, 5, timeout_s=0) == 5
        with client.put(TP, 5, timeout_s=PATIENCE_S) as put:
            put.write(RecordBatch.of(TP, 5, [b"x"]).values.to_arrow())
            put.wait_durable(6, timeout_s=PATIENCE_S)
        assert {each.result().heads[0].end for each in waiting} == {6}
    watching(served, 0)


def test_one_more_than_may_watch_is_told_so_at_once(
    served: Served, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client()
    cursor = client.watch(None, "", **NO_TIME).cursor
    taken = [served.service.context.watches.take() for _ in range(limits.MAX_WATCHES)]
    with pytest.raises(StoreUnreachableError, match="serves 256 watches already"):
        client.watch(None, cursor, **LONG)
    # What has changed is told all the same.
    assert client.watch(None, cursor, **NO_TIME).heads == ()
    taken.pop().close()
    waiting = later(client.watch, None, cursor, **LONG)
    watching(served, limits.MAX_WATCHES)
    served.extend(5)
    assert [info.end for info in waiting.result().heads] == [5]


def test_a_watch_whose_client_is_gone_ends(served: Served) -> None:
    cursor = served.client().watch(None, "", **NO_TIME).cursor
    body = json.dumps({"v": 1, "cursor": cursor, "timeout_s": 3_000}).encode()
    options = flight.FlightCallOptions(timeout=0.2)
    with pytest.raises(flight.FlightTimedOutError):
        list(served.plain().do_action(flight.Action("dafka.watch.v1", body), options))
    watching(served, 0)


def test_a_service_that_closes_ends_watches(served: Served, later: Later) -> None:
    client = served.client()
    cursor = client.watch(None, "", **NO_TIME).cursor
    waiting = later(client.watch, None, cursor, wait_s=3_000, timeout_s=PATIENCE_S)
    watching(served)
    served.stop()
    with pytest.raises(StoreUnreachableError):
        waiting.result()


def test_a_client_that_closes_ends_its_watch(served: Served, later: Later) -> None:
    client = served.client()
    cursor = client.watch(None, "", **NO_TIME).cursor
    waiting = later(client.watch, None, cursor, wait_s=3_000, timeout_s=PATIENCE_S)
    watching(served)
    client.close()
    with pytest.raises(StoreUnreachableError):
        waiting.result()
    watching(served, 0)


def test_many_heads_come_in_several_results(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_watch, "HEADS_PER_RESULT", 4)
    for number in range(9):
        served.extend(1, topic=f"t{number}")
    body = json.dumps({"v": 1, "timeout_s": 0}).encode()
    results = served.plain().do_action(flight.Action("dafka.watch.v1", body))
    found = [json.loads(each.body.to_pybytes()) for each in results]
    assert [len(each["heads"]) for each in found] == [4, 4, 1]
    assert len({each["cursor"] for each in found}) == 1
    assert len(served.client().watch(None, "", **NO_TIME).heads) == 9


def test_nothing_is_missed_between_two_watches(served: Served, client: StoreClient) -> None:
    """A writer writes on while another one takes what changes: it ends where the writer did."""
    ends: dict[str, int] = {}

    def write() -> None:
        for number in range(300):
            served.extend(number // 3 + 1, partition=f"P{number % 3}")

    cursor = client.watch([TOPIC], "", **NO_TIME).cursor
    writer = threading.Thread(target=write)
    writer.start()
    while ends != {"P0": 100, "P1": 100, "P2": 100}:
        found = client.watch([TOPIC], cursor, **LONG)
        assert found.heads
        cursor = found.cursor
        for info in found.heads:
            assert info.end >= ends.get(info.partition, 0)
            ends[info.partition] = info.end
    writer.join()

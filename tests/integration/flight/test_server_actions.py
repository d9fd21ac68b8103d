"""Actions: heads of many topics, offsets by time, watches, and locations of stores."""

import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.errors import InvalidRequestError, StoreUnreachableError
from dafka_core.flight import limits, server_requests
from dafka_core.flight.requests import (
    HeadsSince,
    RecordRange,
    RetentionRequest,
    TrimRequest,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.log_entries import Commit, SetAside, Stage
from dafka_core.model.records import RecordBatch, StagedTransaction, TopicPartition
from dafka_core.storage import Log
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import PARTITION, TOPIC, TP, Served, short_directory


def act(served: Served, name: str, **members: Any) -> list[Any]:
    body = json.dumps({"v": 1} | members).encode()
    results = served.plain().do_action(flight.Action(name, body))
    return [json.loads(result.body.to_pybytes()) for result in results]


NO_TIME: dict[str, Any] = {"wait_s": 0.0, "timeout_s": PATIENCE_S}
LONG: dict[str, Any] = {"wait_s": PATIENCE_S, "timeout_s": PATIENCE_S}
ATTEMPT = "A" * 32


def watching(served: Served, count: int = 1) -> None:
    wait_until(lambda: served.service.context.watches.free == limits.MAX_WATCHES - count)


def test_heads_of_many_topics_come_in_one_answer(served: Served, client: StoreClient) -> None:
    assert client.heads(None, timeout_s=PATIENCE_S) == []
    for number in range(300):
        served.extend(number % 7 + 1, topic=f"t{number % 100}", partition=f"P{number}")
    served.log.trim(TopicPartition("t3", "P3"), 2)
    everything = client.heads(None, timeout_s=PATIENCE_S)
    assert everything == served.log.partitions()
    assert len(everything) == 300
    some = client.heads(["t3", "t99", "none", "t3"], timeout_s=PATIENCE_S)
    assert some == served.log.partitions("t3") + served.log.partitions("t99")
    assert client.heads([], timeout_s=PATIENCE_S) == []


@pytest.mark.parametrize(
    ("action", "members"), [("dafka.heads.v1", {}), ("dafka.watch.v1", {"timeout_s": 0})]
)
def test_many_heads_come_in_several_results(
    served: Served, monkeypatch: pytest.MonkeyPatch, action: str, members: dict[str, Any]
) -> None:
    monkeypatch.setattr(limits, "HEADS_PER_RESULT", 4)
    monkeypatch.setattr(limits, "MAX_NAMES", 3)
    topics = [f"t{number}" for number in range(9)]
    for topic in topics:
        served.extend(1, topic=topic)
    found = act(served, action, **members)
    assert [len(each["heads"]) for each in found] == [4, 4, 1]
    assert len({each.get("cursor") for each in found}) == 1
    client = served.client()
    heads = client.heads(topics, timeout_s=PATIENCE_S)
    assert [info.topic for info in heads] == topics
    assert list(client.watch(None, "", **NO_TIME).heads) == heads


def test_offsets_by_time() -> None:
    clock = [1_000]
    with short_directory() as directory:
        log = Log(directory, clock_us=lambda: clock[0])
        with Served(directory, log) as served:
            for start in range(0, 50, 10):
                log.append([RecordBatch.of(TP, start, [b"x"] * 10)])
                clock[0] += 100
            log.trim(TP, 5)
            moments = [(TOPIC, PARTITION, at) for at in (0, 1_000, 1_001, 1_100, 1_400, 1_401)]
            moments += [("none", PARTITION, 0), (TOPIC, "none", 0)]
            found = served.client().offset_for_times(moments, timeout_s=PATIENCE_S)
            assert found == [5, 5, 10, 10, 40, None, None, None]
            expected = [log.offset_for_time(TopicPartition(*names), at) for *names, at in moments]
            assert found == expected
            assert served.client().offset_for_times([], timeout_s=PATIENCE_S) == []
            many = [moments[3]] * (limits.MAX_TIMES + 5)
            assert served.client().offset_for_times(many, timeout_s=PATIENCE_S) == [10] * len(many)


def test_sizes_of_records(served: Served, client: StoreClient) -> None:
    sizes = (100, 100, 5_000, 5_000)
    for number, size in enumerate(sizes):
        served.log.append([RecordBatch.of(TP, 100 * number, [b"x" * size] * 100)])
    ranges = [(0, 400), (0, 100), (350, 400), (300, 10_000), (400, 500)]
    asked = [RecordRange(*TP, start, end) for start, end in ranges]
    asked.append(RecordRange("none", PARTITION, 0, 100))
    found = client.record_sizes(asked, timeout_s=PATIENCE_S).sizes
    whole, small, large, cut, beyond, unknown = found
    assert (beyond, unknown) == (None, None)
    assert whole is not None
    assert [round(size, -2) for size in whole] == [100, 100, 5_000, 5_000]
    assert small is not None
    assert {round(size, -2) for size in small} == {100}
    assert large == cut
    many = [asked[0]] * (limits.MAX_RANGES + 1)
    with pytest.raises(InvalidRequestError):
        client.record_sizes(many, timeout_s=PATIENCE_S)


def test_a_wait_ends_when_the_records_are_on_disk(served: Served, client: StoreClient) -> None:
    served.extend(5)
    assert client.wait(TP, 5, timeout_s=0) == 5
    timer = threading.Timer(0.2, served.extend, [10])
    timer.start()
    assert client.wait(TP, 10, timeout_s=PATIENCE_S) == 10
    timer.join()


def test_a_wait_ends_when_its_time_has_passed(served: Served, client: StoreClient) -> None:
    served.extend(5)
    before = time.monotonic()
    assert client.wait(TP, 6, timeout_s=0.2) == 5
    assert time.monotonic() - before >= 0.2
    assert client.wait(TopicPartition("none", PARTITION), 6, timeout_s=0) == 0


@pytest.mark.parametrize("action", ["wait", "watch"])
def test_a_wait_whose_client_is_gone_ends(served: Served, action: str) -> None:
    members: dict[str, Any] = {"topic": TOPIC, "partition": "P", "end": 9}
    if action == "watch":
        members = {"cursor": served.client().watch(None, "", **NO_TIME).cursor}
    body = json.dumps({"v": 1, "timeout_s": 3_000} | members).encode()
    options = flight.FlightCallOptions(timeout=0.2)
    with pytest.raises(flight.FlightTimedOutError):
        list(served.plain().do_action(flight.Action(f"dafka.{action}.v1", body), options))
    wait_until(lambda: served.service.context.waits.free == limits.MAX_WAITS)
    watching(served, 0)


def test_a_store_says_where_it_is(served: Served, client: StoreClient) -> None:
    location = client.describe(timeout_s=PATIENCE_S)
    assert location == served.location
    assert location.here
    assert location.directory == str(served.directory)
    assert location.session == (served.directory / "session").read_text().strip()
    unknown = served.client(StoreLocation("", location.locations))
    assert unknown.describe(timeout_s=PATIENCE_S) == location


def test_a_store_says_where_others_are(served: Served, client: StoreClient) -> None:
    other = StoreLocation("other", ("grpc://10.0.0.1:1",))
    served.backend.others[other.store] = other.locations
    assert client.stores(timeout_s=PATIENCE_S) == [served.location, other]


def test_actions_are_listed_and_documented(served: Served) -> None:
    found = {each.type: each.description for each in served.plain().list_actions()}
    assert list(found.items()) == server_requests.descriptions()
    assert all("\n" not in each and "docs/flight.md" in each for each in found.values())
    assert all(re.fullmatch(r"dafka\.[a-z]+\.v1", name) for name in found)


def test_an_action_without_a_body_where_there_is_nothing_to_say(served: Served) -> None:
    plain = served.plain()
    for name in ("dafka.describe.v1", "dafka.stores.v1"):
        (result,) = plain.do_action(name)
        assert StoreLocation.parse(result.body.to_pybytes()) == served.location
    with pytest.raises(flight.FlightServerError, match="'body' = b'': must be a JSON object"):
        list(plain.do_action("dafka.heads.v1"))


def test_transactions_are_staged_and_committed_with_flight_alone(served: Served) -> None:
    """Follow docs/flight.md with a plain client."""
    attempt = "3F2504E04F8911D39A0C0305E82C3301"
    put = {"v": 1, "topic": "a", "partition": "P1", "start": 0, "attempt": attempt, "version": 17}
    plain = served.plain()

    def stage(start: int, values: list[bytes]) -> list[dict[str, Any]]:
        descriptor = flight.FlightDescriptor.for_command(
            json.dumps(put | {"start": start}).encode()
        )
        writer, reader = plain.do_put(descriptor, pa.schema([("value", pa.binary())]))
        writer.write_batch(pa.record_batch([pa.array(values, pa.binary())], ["value"]))
        writer.done_writing()
        told = []
        while (each := reader.read()) is not None:
            told.append(json.loads(each.to_pybytes()))
        writer.close()
        return told

    assert stage(0, [b"x", b"y"])[-1] == {"v": 1, "end": 2}
    assert stage(2, [b"z"])[-1] == {"v": 1, "end": 3}
    asked = {"partitions": [["a", "P1"], ["a", "none"]]}
    nothing = [0, 0, "", None]
    assert act(served, "dafka.transactions.v1", **asked) == [
        {"v": 1, "transactions": [[0, 3, attempt, None], nothing]}
    ]
    wrong = {"transactions": [["a", "P1", attempt, 0, 2, 17]]}
    with pytest.raises(flight.FlightServerError) as refused:
        act(served, "dafka.commit.v1", **wrong)
    told = json.loads(refused.value.extra_info)
    assert (told["error"], told["topic"], told["end"]) == ("offset-conflict", "a", 3)
    for _ in range(2):
        transactions = {"transactions": [["a", "P1", attempt, 0, 3, 17]]}
        assert act(served, "dafka.commit.v1", **transactions) == [{"v": 1}]
    with pytest.raises(flight.FlightServerError) as refused:
        stage(3, [b"x"])
    told = json.loads(refused.value.extra_info)
    assert told["error"] == "transaction-exists"
    assert (told["partition"], told["transaction"]) == ("P1", [17, 0, 3])
    waited = {"topic": "a", "partition": "P1", "end": 3, "timeout_s": 1, "transaction": [18, 1, 3]}
    assert act(served, "dafka.wait.v1", **waited) == [{"v": 1, "end": 3}]
    assert act(served, "dafka.discard.v1", stages=[["a", "P1", attempt]]) == [{"v": 1}]
    assert act(served, "dafka.transactions.v1", **asked) == [
        {"v": 1, "transactions": [[3, 3, attempt, [18, 1, 3]], nothing]}
    ]


def test_a_commit_that_takes_its_time_is_waited_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_requests, "POLL_S", 0.01)
    client = served.client()
    transaction = StagedTransaction(TOPIC, PARTITION, "A" * 32, 0, 1, 1)
    served.log.write([Stage(RecordBatch.of(TP, 0, [b"x"]), transaction.attempt)])
    served.backend.open.clear()
    timer = threading.Timer(0.2, served.backend.open.set)
    timer.start()
    client.commit([transaction], timeout_s=PATIENCE_S)
    timer.join()
    assert served.log.end(TP) == 1


def test_a_commit_at_a_store_that_ends_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_requests, "POLL_S", 0.01)
    client = served.client()
    served.backend.open.clear()
    timer = threading.Timer(0.2, served.service.close)
    timer.start()
    transaction = StagedTransaction(TOPIC, PARTITION, "A" * 32, 0, 1, 1)
    with pytest.raises(StoreUnreachableError):
        client.commit([transaction], timeout_s=PATIENCE_S)
    timer.join()


Later = Callable[..., Future[HeadsSince]]


@pytest.fixture
def later() -> Iterator[Later]:
    """Run calls in threads of their own."""
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
    monkeypatch.setattr(server_requests, "POLL_S", PATIENCE_S)  # it does not poll
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
    found = client.watch(None, cursor, wait_s=0.2, timeout_s=PATIENCE_S)
    assert time.monotonic() - before >= 0.2
    assert (found.complete, found.heads, found.cursor) == (False, (), cursor)


@pytest.mark.parametrize(
    "cursor", ["x", ":", "0:0", "{}:-1", "{}:1_0", "{}:99", "{}:\uff11", "{}:"]
)
def test_a_cursor_that_the_store_does_not_know_has_everything(served: Served, cursor: str) -> None:
    served.extend(5)
    found = served.client().watch(None, cursor.format(served.location.session), **LONG)
    assert found.complete
    assert list(found.heads) == served.log.partitions()


def test_what_changes_together_is_told_together(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a watch in the moment when the change is visible and not noted yet."""
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
    """Each holds a thread of the store; other requests don't wait for them."""
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
    with pytest.raises(StoreUnreachableError, match="already serves 256 watches"):
        client.watch(None, cursor, **LONG)
    # Changes are reported all the same.
    assert client.watch(None, cursor, **NO_TIME).heads == ()
    taken.pop().close()
    waiting = later(client.watch, None, cursor, **LONG)
    watching(served, limits.MAX_WATCHES)
    served.extend(5)
    assert [info.end for info in waiting.result().heads] == [5]


@pytest.mark.parametrize("closes", ["service", "client"])
def test_a_service_or_a_client_that_closes_ends_its_watches(
    served: Served, later: Later, closes: str
) -> None:
    client = served.client()
    cursor = client.watch(None, "", **NO_TIME).cursor
    waiting = later(client.watch, None, cursor, wait_s=3_000, timeout_s=PATIENCE_S)
    watching(served)
    if closes == "service":
        served.stop()
    else:
        client.close()
    with pytest.raises(StoreUnreachableError):
        waiting.result()
    if closes == "client":
        watching(served, 0)


def test_nothing_is_missed_between_two_watches(served: Served, client: StoreClient) -> None:
    """A writer continues while another one copies its changes: both end alike."""
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


def test_partitions_are_trimmed_at_most_to_their_ends(served: Served, client: StoreClient) -> None:
    served.extend(100)
    trims = ((*TP, 30), (*TP, 20), ("unknown", "P", 5), (*TP, 500))
    syncs = sum(served.log.syncs.counted.counts)
    (done,) = client.ask(PATIENCE_S, TrimRequest(trims))
    assert done.earliest == (30, 30, 0, 100)
    assert sum(served.log.syncs.counted.counts) == syncs + 1
    (info,) = served.log.partitions()
    assert (info.earliest, info.end) == (100, 100)


def test_a_service_without_rules_says_so(client: StoreClient) -> None:
    with pytest.raises(InvalidRequestError, match="keeps all"):
        client.ask(PATIENCE_S, RetentionRequest())
    with pytest.raises(InvalidRequestError, match="must have limits as"):
        client.ask(PATIENCE_S, RetentionRequest(("t=7",)))

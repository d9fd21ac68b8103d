"""Queries that name topics, partitions or stores that are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster, Producer
from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import KnownStore, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.errors import (
    FetchError,
    HeadBehindError,
    HistoryReplacedError,
    PartitionVanishedError,
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.stores import (
    A,
    B,
    Batch,
    Logged,
    Mesh,
    Patch,
    Serve,
    Served,
    restart_at_pause,
)
from tests.memory_reader import MemoryReader
from tests.unit.dafka_spark.streams import ALL, everything, json_round, planned, reader

BAD = r"bad\xff"


@pytest.fixture
def one(serve: Serve) -> Served:
    store = serve("one")
    for topic, name in (("flights", "AB12"), ("bad\udcff", "AB1\n"), ("sensors", "CD34")):
        store.add(TopicPartition(topic, name), 5)
    return store


def sizes(mesh: Mesh, **given: str) -> dict[str, int]:
    """Return the number of records in the plan of a batch, by topic."""
    ranges = Batch(mesh, **{"fetchTimeoutMs": "20000", **given}).ranges()
    return {each.topic: each.size for each in ranges}


def test_an_unknown_name_fails_a_batch(mesh: Mesh) -> None:
    """The error suggests the nearest name, as users write it."""
    has_topic, has_partition = "no store has topic", "no store has partition"
    odd = json.dumps({BAD: [r"AB1\x0d"]})
    for option, value, error in (
        ("subscribe", "fligths", f"{has_topic} 'fligths' (did you mean 'flights'?)"),
        ("subscribe", "flights,x", f"{has_topic} 'x' (there are '{BAD}', 'flights', 'sensors')"),
        ("subscribe", r"bda\xff", rf"{has_topic} 'bda\xff' (did you mean '{BAD}'?)"),
        ("assign", '{"sensor": ["CD34"]}', f"{has_topic} 'sensor' (did you mean 'sensors'?)"),
        (
            "assign",
            '{"flights": ["AB13"]}',
            f"{has_partition} AB13 of topic 'flights' (did you mean 'AB12'?)",
        ),
        ("assign", odd, rf"{has_partition} AB1\x0d of topic '{BAD}' (did you mean 'AB1\x0a'?)"),
    ):
        with pytest.raises(ConfigError) as caught:
            sizes(mesh, **{option: value})
        text = str(caught.value)
        assert error in text
        assert f"option {option!r}" in text
        assert "failOnMissingTopic = false reads it as empty" in text


def test_an_unknown_name_is_wrong_before_its_bounds_or_read_as_empty(mesh: Mesh) -> None:
    with pytest.raises(ConfigError, match="did you mean 'flights'"):
        sizes(mesh, subscribe="fligths", startingOffsets='{"fligths": {"AB12": 3}}')
    assert sizes(mesh, subscribe="flights,none", failOnMissingTopic="false") == {"flights": 5}
    assert sizes(mesh, subscribePattern="none.*") == {}


def test_an_error_lists_ten_names(serve: Serve) -> None:
    store = serve("one")
    for number in range(13):
        store.add(TopicPartition(f"{number:02}", "A"), 1)
    with pytest.raises(ConfigError, match=r"there are '00', .*'09' and 3 more\); failOn"):
        sizes(Mesh([store]), subscribe="flights")


def test_a_stream_waits_and_warns_once(one: Served, mesh: Mesh, logged: Logged) -> None:
    stream = reader(mesh, subscribe="fligths")
    begin = stream.initialOffset()
    for _ in range(3):
        assert stream.latestOffset(begin, ALL) == begin
    assert logged.messages == [
        "no store has topic 'fligths' (did you mean 'flights'?); it is empty until a store has it"
    ]
    one.add(TopicPartition("fligths", "A"), 2)
    assert planned(stream, begin, stream.latestOffset(begin, ALL)) == {("A", 0, 2)}


@pytest.mark.parametrize(
    ("given", "ends"),
    [({"subscribe": "fligths"}, True), ({"assign": '{"flights": ["AB13"]}'}, False)],
)
def test_a_stream_that_ends_or_names_partitions_fails(
    mesh: Mesh, given: dict[str, str], *, ends: bool
) -> None:
    strict, lenient = (reader(mesh, **given, failOnMissingTopic=each) for each in ("true", "false"))
    if ends:
        for stream in (strict, lenient):
            stream.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match=r"did you mean .*failOnMissingTopic = false"):
        everything(strict)
    assert everything(lenient)["topics"] == {}


def test_a_checkpointed_topic_may_only_be_away(mesh: Mesh) -> None:
    stream = reader(mesh, subscribe="gone")
    stream.prepareForTriggerAvailableNow()
    begin = SourceOffset({TopicPartition("gone", "A"): 0}).as_json()
    assert stream.latestOffset(begin, ALL) == begin


def test_a_batch_names_the_unreachable_store(own: EmbeddedCluster, logged: Logged) -> None:
    """Only it has the last 100 of 400 records."""

    def publish(count: int, acks: int) -> None:
        with Producer("t", tower=own.tower, acks=acks) as producer:
            producer.publish_many([b"x"] * count)
            producer.flush(PATIENCE_S)

    def size(**given: str) -> int:
        return sum(each.size for each in Batch(tower=own.tower, **given).ranges())

    publish(300, acks=2)
    own.kill_store(0)
    publish(100, acks=1)
    (gone,) = own.stores
    own.kill_store(1)
    own.start_store(0)
    assert size() == 300
    assert f"store {gone} (tcp://127.0.0.1:" in logged.text
    assert "is away: records that only it has are missing from this result" in logged.text
    for least in ("all", "2"):
        with pytest.raises(ConfigError, match=f"'minStores' = .*: 1 store.*{gone}"):
            size(minstores=least)
    assert size(minstores="1") == 300
    own.start_store(1)
    wait_until(lambda: size() == 400, "all records are found")
    logged.clear()
    assert size(minstores="all") == 400
    assert gone not in logged.text


def test_a_stream_names_it_once(logged: Logged) -> None:
    mesh = MemoryReader({A: 5})
    mesh.away = [KnownStore("S" * 32, "tcp://h:1", 1)]
    stream = reader(mesh, fetch="mesh")
    start = stream.initialOffset()
    for _ in range(3):
        start = stream.latestOffset(start, ALL)
    assert logged.text.count(f"store {'S' * 32} (tcp://h:1") == 1
    with pytest.raises(ConfigError, match="away: store SSSS"):
        everything(reader(mesh, fetch="mesh", minStores="all"))


def loss_of(stream: DafkaMicroBatchStream, offset: Any) -> SourceLossError:
    """Return the error of a stream that cannot continue from an offset, after a while."""
    with pytest.raises(SourceLossError) as caught:
        wait_until(lambda: stream.latestOffset(offset, ALL) != offset)
    return caught.value


@pytest.fixture
def only(serve: Serve) -> Served:
    return serve("only").add(A, 100)


def test_a_store_that_had_more_is_named_until_it_has_lost_its_records(
    only: Served, mesh: Mesh, serve: Serve, tmp_path: Path
) -> None:
    behind = serve("behind").add(A, 60).add(B, 1)
    mesh.served.append(behind)
    stream = reader(mesh, fetchTimeoutMs="2000")
    offset = everything(stream)
    port = only.port
    only.stop()
    loss = loss_of(stream, offset)
    assert isinstance(loss, HeadBehindError)
    assert (loss.wanted, loss.end, loss.store) == (100, 60, "only")
    assert "Start store only again" in str(loss)
    # It makes no difference that the mesh does not announce it any more.
    mesh.served.remove(only)
    assert isinstance(loss_of(stream, offset), HeadBehindError)
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 100, "B": 1}}  # it never goes backwards
    mesh.served = [serve("other").add(B, 1)]
    vanished = loss_of(stream, offset)
    assert isinstance(vanished, PartitionVanishedError)
    assert "Start store only again" in str(vanished)
    only.start(port)
    mesh.served.append(only)
    only.add(A, 5)
    assert stream.latestOffset(offset, ALL)["topics"] == {"t": {"A": 105, "B": 1}}
    with Served(tmp_path / "restored", "only") as restored:
        mesh.served[1] = restored.add(A, 30)
        loss = loss_of(stream, offset)
        assert isinstance(loss, StoreLostDataError)
        assert (loss.wanted, loss.end) == (100, 30)


@pytest.mark.parametrize("silent", [False, True])
def test_trimmed_records_are_left_out_unless_a_silent_store_may_have_them(
    only: Served, mesh: Mesh, serve: Serve, logged: Logged, *, silent: bool
) -> None:
    trimmed = serve("trimmed").add(A, 100)
    mesh.served.append(trimmed)
    stream = reader(mesh, failOnDataLoss="false")
    offset = everything(stream)
    for store in mesh.served:
        store.add(A, 100)
    trimmed.log.trim(A, 150)
    port = only.port
    only.stop()
    assert stream.latestOffset(offset, ALL) == offset
    if silent:
        only.start(port)
        wait_until(lambda: stream.latestOffset(offset, ALL) != offset)
    else:
        mesh.served.remove(only)
    after = stream.latestOffset(offset, ALL)
    assert planned(stream, offset, after) == {("A", 100 if silent else 150, 200)}
    assert ("offsets 100 to 150 (exclusive) are left out" in logged.text) != silent


def test_flight_alone_waits_for_a_store_that_starts(only: Served, mesh: Mesh, patch: Patch) -> None:
    patient, impatient = (
        reader(mesh, fetch="flight", fetchTimeoutMs=each) for each in ("20000", "300")
    )
    offset = everything(patient)
    restart_at_pause(patch, only)
    assert patient.latestOffset(offset, ALL) == offset
    only.stop()
    with pytest.raises(StoreUnreachableError):
        impatient.latestOffset(offset, ALL)


# -- changed histories -----------------------------------------------------------------------------

OLD = Epoch.first(EpochId(5, 1, 1))
NEW = Epoch(9, 2, 1, 60, OLD.digest)
FETCH = pytest.mark.parametrize("fetch", ["local", "flight", "auto"])


def write(store: Served, epoch: Epoch, count: int) -> Served:
    start = store.log.end(A)
    values = [b"%d %d" % (epoch.number, start + index) for index in range(count)]
    store.log.append([RecordBatch(A, start, Values.of(values), epoch=epoch)])
    return store


def take_over(store: Served, count: int) -> None:
    """Continue from offset 60 as the newer producer, without the older one's records."""
    assert store.log.write([SetAside(A, NEW.start)]) == [None]
    write(store, NEW, count)


def values(stream: DafkaMicroBatchStream, start: Any, end: Any) -> list[str]:
    tasks = stream.partitions(json_round(start), json_round(end))
    batches = [batch for task in tasks for batch in stream.read(task)]
    return [value.decode() for value in pa.Table.from_batches(batches)["value"].to_pylist()]


def of(epoch: Epoch, start: int, end: int) -> list[str]:
    return [f"{epoch.number} {offset}" for offset in range(start, end)]


@pytest.fixture
def old(serve: Serve) -> Served:
    """A store with the records of the older producer."""
    return write(serve("old"), OLD, 100)


@FETCH
def test_a_changed_history_fails_a_query_and_a_repeated_batch(old: Served, fetch: str) -> None:
    stream, again = (reader(Mesh([old]), fetch=fetch, fetchTimeoutMs="10000") for _ in range(2))
    start = stream.initialOffset()
    read = stream.latestOffset(start, ALL)
    assert values(stream, start, read) == of(OLD, 0, 100)
    take_over(old, 60)
    after = stream.latestOffset(json_round(read), ALL)
    (task,) = stream.partitions(read, after)
    with pytest.raises(HistoryReplacedError, match="DAFKA_HISTORY_CHANGED") as caught:
        next(stream.read(task))
    assert (caught.value.wanted, caught.value.end) == (60, 100)
    with pytest.raises(HistoryReplacedError):
        values(again, start, read)


def test_without_fail_on_data_loss_it_warns_once(old: Served, logged: Logged) -> None:
    stream = reader(Mesh([old]), failondataloss="false")
    read = everything(stream)
    take_over(old, 60)
    after = stream.latestOffset(json_round(read), ALL)
    assert values(stream, read, after) == of(NEW, 100, 120)
    write(old, NEW, 5)
    last = stream.latestOffset(json_round(after), ALL)
    assert values(stream, after, last) == of(NEW, 120, 125)
    assert logged.text.count("[DAFKA_HISTORY_CHANGED]") == 1


@FETCH
def test_a_life_that_continues_at_the_end_is_no_change(old: Served, fetch: str) -> None:
    stream = reader(Mesh([old]), fetch=fetch)
    read = everything(stream)
    write(old, Epoch(9, 2, 1, 100, OLD.digest), 20)
    after = stream.latestOffset(json_round(read), ALL)
    assert values(stream, read, after) == of(NEW, 100, 120)


def test_a_store_that_is_behind_is_no_source(old: Served, serve: Serve) -> None:
    """It has older records at offsets that a newer producer has written at the other store."""
    new = write(serve("new"), OLD, 100)
    take_over(new, 30)
    stream = reader(Mesh([old, new]), fetch="flight", fetchtimeoutms="2000")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert end["topics"] == {"t": {"A": 90}}
    assert values(stream, start, end) == of(OLD, 0, 60) + of(NEW, 60, 90)
    new.stop()
    with pytest.raises(FetchError, match="no records of life 9"):
        values(stream, start, end)


def test_newer_lives_over_the_mesh_are_a_change() -> None:
    mesh = Mesh()
    mesh.add(A, 120)
    mesh.epoch = NEW
    stream = reader(mesh, fetch="mesh")
    lives = {"t": {"A": [*OLD.life]}}
    read = {"topics": {"t": {"A": 100}}, "start": {}, "lives": lives, "version": 4}
    with pytest.raises(HistoryReplacedError) as caught:
        values(stream, read, stream.latestOffset(read, ALL))
    assert (caught.value.wanted, caught.value.end) == (60, 100)

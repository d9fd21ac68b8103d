"""Partitions that look shorter than they were, or with records that a newer producer replaced."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import PartitionInfo, RecordBatch
from dafka_core.model.values import Values
from dafka_core.testing import wait_until
from dafka_spark.cluster import timing
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
    Logged,
    Mesh,
    Patch,
    Serve,
    Served,
    restart_at_pause,
)
from tests.unit.dafka_spark.streams import ALL, everything, json_round, planned, reader


def loss_of(stream: DafkaMicroBatchStream, offset: Any) -> SourceLossError:
    """Return the error of a stream that cannot continue from an offset, after a while."""
    with pytest.raises(SourceLossError) as caught:
        wait_until(lambda: stream.latestOffset(offset, ALL) != offset)
    return caught.value


@pytest.fixture
def one(serve: Serve) -> Served:
    return serve("one").add(A, 100)


def test_a_store_that_had_more_is_named_until_it_has_lost_its_records(
    one: Served, mesh: Mesh, serve: Serve, tmp_path: Path
) -> None:
    behind = serve("behind").add(A, 60).add(B, 1)
    mesh.served.append(behind)
    stream = reader(mesh, fetchTimeoutMs="2000")
    offset = everything(stream)
    port = one.port
    one.stop()
    loss = loss_of(stream, offset)
    assert isinstance(loss, HeadBehindError)
    assert (loss.wanted, loss.end, loss.store) == (100, 60, "one")
    assert "Start store one again" in str(loss)
    # It makes no difference that the mesh does not announce it any more.
    mesh.served.remove(one)
    assert isinstance(loss_of(stream, offset), HeadBehindError)
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 100, "B": 1}}  # it never goes backwards
    mesh.served = [serve("other").add(B, 1)]
    vanished = loss_of(stream, offset)
    assert isinstance(vanished, PartitionVanishedError)
    assert "Start store one again" in str(vanished)
    one.start(port)
    mesh.served.append(one)
    one.add(A, 5)
    assert stream.latestOffset(offset, ALL)["topics"] == {"t": {"A": 105, "B": 1}}
    with Served(tmp_path / "restored", "one") as restored:
        mesh.served[1] = restored.add(A, 30)
        loss = loss_of(stream, offset)
        assert isinstance(loss, StoreLostDataError)
        assert (loss.wanted, loss.end) == (100, 30)


@pytest.mark.parametrize("silent", [False, True])
def test_trimmed_records_are_left_out_unless_a_silent_store_may_have_them(
    one: Served, mesh: Mesh, serve: Serve, logged: Logged, *, silent: bool
) -> None:
    trimmed = serve("trimmed").add(A, 100)
    mesh.served.append(trimmed)
    stream = reader(mesh, failOnDataLoss="false")
    offset = everything(stream)
    for store in mesh.served:
        store.add(A, 100)
    trimmed.log.trim(A, 150)
    port = one.port
    one.stop()
    assert stream.latestOffset(offset, ALL) == offset
    if silent:
        one.start(port)
        wait_until(lambda: stream.latestOffset(offset, ALL) != offset)
    else:
        mesh.served.remove(one)
    after = stream.latestOffset(offset, ALL)
    assert planned(stream, offset, after) == {("A", 100 if silent else 150, 200)}
    assert ("offsets 100 to 150 (exclusive) are left out" in logged.text) != silent


def test_flight_alone_waits_for_a_store_that_starts(one: Served, mesh: Mesh, patch: Patch) -> None:
    patient, impatient = (
        reader(mesh, fetch="flight", fetchTimeoutMs=each) for each in ("20000", "300")
    )
    offset = everything(patient)
    restart_at_pause(patch, one)
    assert patient.latestOffset(offset, ALL) == offset
    one.stop()
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


@pytest.mark.parametrize("fails", [True, False])
def test_a_store_that_is_behind_is_no_source_and_continues_no_query(
    old: Served, serve: Serve, patch: Patch, *, fails: bool
) -> None:
    """It has older records at offsets that a newer producer has written at the other store."""
    patch.setattr(timing, "STORE_BACKOFF_S", 0.0)
    new = write(serve("new"), OLD, 100)
    take_over(new, 30)
    given = {"fetch": "flight", "fetchtimeoutms": "2000", "failondataloss": str(fails).lower()}
    stream = reader(Mesh([old, new]), **given)
    start = stream.initialOffset()
    read = stream.latestOffset(start, ALL)
    assert read["topics"] == {"t": {"A": 90}}
    assert values(stream, start, read) == of(OLD, 0, 60) + of(NEW, 60, 90)
    port = new.port
    new.stop()
    assert stream.latestOffset(read, ALL) == read  # although the other store has offset 90
    if fails:
        loss = loss_of(stream, read)
        assert isinstance(loss, PartitionVanishedError)
        assert "store new was the last one that had it" in str(loss)
        with pytest.raises(FetchError, match="no records of life 9"):
            values(stream, start, read)
        new.start(port)
        write(new, NEW, 5)
    wait_until(lambda: stream.latestOffset(read, ALL) != read)
    after = stream.latestOffset(read, ALL)
    assert values(stream, read, after) == (of(NEW, 90, 95) if fails else of(OLD, 90, 100))


def test_other_lives_over_the_mesh_are_a_change_or_of_a_history_that_a_store_knows(
    patch: Patch,
) -> None:
    """A store may have more records of an older producer than the newer one continued."""
    mesh = Mesh()
    mesh.add(A, 120)
    stream = reader(mesh, fetch="mesh")

    def at(position: int, epoch: Epoch) -> dict[str, Any]:
        lives = {"t": {"A": [*epoch.life]}}
        return {"topics": {"t": {"A": position}}, "start": {}, "lives": lives, "version": 4}

    mesh.epoch, read = NEW, at(100, OLD)
    with pytest.raises(HistoryReplacedError) as caught:
        values(stream, read, stream.latestOffset(read, ALL))
    assert (caught.value.wanted, caught.value.end) == (60, 100)
    mesh.epoch = OLD
    with pytest.raises(DafkaError, match="no store that answers has records of life 9"):
        values(stream, at(0, NEW), at(50, NEW))
    patch.setattr(mesh, "partitions", lambda *_, **__: [PartitionInfo(*A, 0, 90, NEW.life)])
    assert values(stream, at(0, NEW), at(50, NEW)) == [str(offset) for offset in range(50)]

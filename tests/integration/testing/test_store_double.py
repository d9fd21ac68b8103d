"""A store in the test's own process: it serves, is held up, refuses and comes back."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dafka_core.errors import ClosedError, StoreError, StoreUnreachableError
from dafka_core.model.records import PartitionInfo, TopicPartition, Transaction, concat
from dafka_core.testing import PATIENCE_S, StoreDouble, wait_until

TP = TopicPartition("t", "P")


@pytest.fixture
def double(tmp_path: Path) -> Iterator[StoreDouble]:
    with StoreDouble(tmp_path) as running:
        yield running


def put(double: StoreDouble, start: int, value: bytes) -> int:
    with double.client().put(TP, start, timeout_s=PATIENCE_S) as stream:
        stream.write(pa.array([value], pa.binary()))
        return stream.finish(PATIENCE_S)


def test_what_is_appended_is_served_and_what_is_put_is_in_the_log(double: StoreDouble) -> None:
    double.append(TP, [b"a", b"b"])
    double.append(TP, [b"c"])
    assert put(double, 3, b"d") == 4
    assert double.client().heads(None, timeout_s=PATIENCE_S) == [PartitionInfo("t", "P", 0, 4)]
    assert concat(double.log.read(TP, 0, 4)).values == [b"a", b"b", b"c", b"d"]


def test_nothing_is_stored_while_it_is_held_up(double: StoreDouble) -> None:
    double.backend.open.clear()
    putting = threading.Thread(target=put, args=(double, 0, b"a"))
    putting.start()
    wait_until(lambda: double.backend.taken)
    assert double.log.end(TP) == 0
    double.backend.open.set()
    putting.join()
    assert double.log.end(TP) == 1


def test_it_refuses_to_write_with_the_error_it_is_given(
    double: StoreDouble, caplog: pytest.LogCaptureFixture
) -> None:
    double.backend.failure = StoreError(double.directory, "the disk is full")
    with pytest.raises(StoreUnreachableError, match="the disk is full"):
        put(double, 0, b"a")
    assert "the disk is full" in caplog.text
    double.backend.failure = None
    assert put(double, 0, b"a") == 1


def test_a_wait_sets_the_transaction_once_the_records_are_there(double: StoreDouble) -> None:
    client, transaction = double.client(), Transaction(7, 0, 1)
    assert client.wait(TP, 1, transaction=transaction, timeout_s=0) == 0
    double.append(TP, [b"a"])
    assert client.wait(TP, 1, transaction=transaction, timeout_s=PATIENCE_S) == 1
    [state] = client.transaction_states([TP], timeout_s=PATIENCE_S)
    assert (state.end, state.transaction) == (1, transaction)


def test_it_is_gone_while_it_is_stopped_and_another_session_afterwards(double: StoreDouble) -> None:
    before = double.location
    double.stop()
    with pytest.raises(StoreUnreachableError):
        double.client(before).describe(timeout_s=PATIENCE_S)
    double.start(double.port)
    again = double.client(before).describe(timeout_s=PATIENCE_S)
    assert (again.store, again.locations) == (before.store, before.locations)
    assert again.session != before.session


def test_closing_it_ends_what_is_held_up_and_its_clients(tmp_path: Path) -> None:
    with StoreDouble(tmp_path) as double:
        client = double.client()
        client.describe(timeout_s=PATIENCE_S)
        double.backend.open.clear()
    with pytest.raises(ClosedError):
        client.describe(timeout_s=1)
    with pytest.raises(ClosedError):
        double.log.end(TP)

"""What a store appends to a partition of its own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dafka_core import Store
from dafka_core.errors import DafkaError, InvalidRequestError, OffsetConflictError
from dafka_core.nodes.own_partition import append
from dafka_core.records import RecordBatch, TopicPartition

TP = TopicPartition("__dafka.t", "A" * 32)


def values(store: Store) -> list[bytes]:
    return [
        bytes(value) for batch in store.log.read(TP, 0, store.log.end(TP)) for value in batch.values
    ]


def test_records_are_on_disk_behind_each_other(store: Store) -> None:
    assert append(store, TP, [b"1", b"2"], timeout_s=30) == range(2)
    assert append(store, TP, [b"3"], timeout_s=30) == range(2, 3)
    assert values(store) == [b"1", b"2", b"3"]


def test_of_many_that_write_there_each_is_written_once(store: Store) -> None:
    found: list[range] = []

    def write(name: bytes) -> None:
        found.extend(append(store, TP, [name], timeout_s=30) for _ in range(20))

    threads = [threading.Thread(target=write, args=(name,)) for name in (b"a", b"b", b"c")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(each.start for each in found) == list(range(60))
    assert sorted(values(store)) == [b"a"] * 20 + [b"b"] * 20 + [b"c"] * 20


def test_others_that_write_there_all_the_time_are_an_error_in_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.append_queue.put

    def late(batch: RecordBatch, notes: None = None) -> object:
        put(RecordBatch.of(TP, store.log.end(TP), [b"other"])).result(30)
        return put(batch)

    monkeypatch.setattr(store.append_queue, "put", late)
    with pytest.raises(OffsetConflictError):
        append(store, TP, [b"mine"], timeout_s=0.2)
    assert set(values(store)) == {b"other"}


def test_what_a_store_does_not_take_is_an_error(tower: str, tmp_path: Path) -> None:
    with Store(tmp_path, tower=tower, max_record_bytes=4_096) as store:
        with pytest.raises(InvalidRequestError):
            append(store, TP, [bytes(4_097)], timeout_s=30)
        assert append(store, TP, [bytes(4_096)], timeout_s=30) == range(1)
    with pytest.raises(DafkaError):
        append(store, TP, [b"1"], timeout_s=30)

"""What goes wrong around a store: kills, other processes, damage, disks that are full."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from dafka_core.errors import StoreError
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from tests.integration.storage import appender
from tests.integration.storage.processes import TP, P, child, killed, told, values_of


def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    """Each child appends, merges and trims, and is killed at some moment of that."""
    chance = random.Random(20)
    acknowledged, merged = 0, 0
    for seed in range(12):
        with child(tmp_path, seed) as process:
            heard = [told(process) for _ in range(chance.randint(1, 60))]
            assert heard[0].end >= acknowledged
            time.sleep(chance.random() * 0.005)  # anywhere in an append, a merge or a trim
            heard += killed(process)
        acknowledged = heard[-1].end
        merged += heard[-1].merged
        with Log(tmp_path) as store:
            assert store.end(TP) >= acknowledged
            for info in store.partitions():
                expected = [appender.value(n) for n in range(info.earliest, info.end)]
                assert values_of(store) == expected
    assert acknowledged > 0
    assert merged > 20


def test_one_process_writes_and_others_may_read(tmp_path: Path) -> None:
    with child(tmp_path, 1) as process:
        told(process)
        with pytest.raises(StoreError, match=f"process {process.pid} has it open for writing"):
            Log(tmp_path)
        with Log(tmp_path, read_only=True) as store:
            end = told(process).end
            while (tmp_path / "data.mdb").stat().st_size < 4 << 20:
                end = told(process).end
            assert store.end(TP) >= end
            info = store.info(TP)
            assert info is not None
            (first, *_) = store.read(TP, info.end - 1, info.end)
            assert first.values.to_list() == [appender.value(info.end - 1)]
    with Log(tmp_path) as store:
        assert store.end(TP) >= end


def test_a_process_has_a_directory_open_once(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        with pytest.raises(StoreError, match=f"process {os.getpid()} has it open"):
            Log(tmp_path)
        store.append([RecordBatch.of(TP, 0, [b"a"])])
        assert values_of(store) == [b"a"]


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="cannot be opened for writing"):
        Log(tmp_path / "file")
    with pytest.raises(StoreError, match="there is no store here"):
        Log(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"not a database, " * 1000)
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"not a store's file.*an empty directory") as caught:
            Log(tmp_path, read_only=read_only)
        assert caught.value.directory == str(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == b"not a database, " * 1000


@pytest.mark.parametrize("name", [None, b"other", b"meta"])
def test_another_programs_database_is_refused(tmp_path: Path, name: bytes | None) -> None:
    with lmdb.Environment(str(tmp_path), max_dbs=1) as env, env.begin(write=True) as txn:
        table = env.open_db(name, txn=txn)
        txn.put(b"key", b"value", db=table)
    for read_only in (False, True):
        with pytest.raises(StoreError, match="another program's LMDB database"):
            Log(tmp_path, read_only=read_only)


@pytest.mark.parametrize("form", [1, 9])
def test_another_format_is_refused(tmp_path: Path, form: int) -> None:
    Log(tmp_path).close()
    change(tmp_path, b"meta", b"format", form.to_bytes(4, "little"))
    for read_only in (False, True):
        why = rf"its format is {form}, this program reads and writes format 2: open it with the ver"
        with pytest.raises(StoreError, match=why):
            Log(tmp_path, read_only=read_only)


def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").touch()
    with pytest.raises(StoreError, match="no store here"):
        Log(tmp_path, read_only=True)
    with Log(tmp_path) as store:
        store.append([RecordBatch.of(TP, 0, [b"a"])])


def change(directory: Path, table: bytes, key: bytes, value: bytes | None) -> None:
    """Changes a row behind the log's back."""
    with lmdb.Environment(str(directory), max_dbs=3) as env:
        opened = env.open_db(table, create=False)
        with env.begin(write=True, db=opened) as txn:
            if value is None:
                assert txn.delete(key)
            else:
                txn.put(key, value)


def three_blocks(directory: Path) -> list[bytes]:
    values = [appender.value(number).ljust(1000, b".") for number in range(300)]
    with Log(directory) as store:
        for first in range(0, 300, 100):
            store.append([RecordBatch.of(TP, first, values[first : first + 100])])
    return values


def test_a_flipped_bit_on_disk_is_found(tmp_path: Path) -> None:
    values = three_blocks(tmp_path)
    with (tmp_path / "data.mdb").open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        position = data.find(values[150]) + 500
        data[position] ^= 4
    with Log(tmp_path) as store:
        damage = f"topic 't', partition {P}: the block at offset 100 cannot be read: its checksum"
        for read in (store.read, store.times):
            with pytest.raises(StoreError, match=damage) as caught:
                read(TP, 50, 300)
            assert caught.value.directory == str(tmp_path)
        (first,) = store.read(TP, 0, 100)
        (last,) = store.read(TP, 250, 300)
        assert first.values.to_list() + last.values.to_list() == values[:100] + values[250:]
        store.append([RecordBatch.of(TP, 300, [b"next"])])
        assert store.trim(TP, 200) == 200
        assert values_of(store) == [*values[200:], b"next"]


def test_a_damaged_last_block_is_not_extended(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        store.append([RecordBatch.of(TP, 0, [b"a" * 10_000])])
    with (tmp_path / "data.mdb").open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        data[data.find(b"a" * 10_000) + 5_000] = 0
    with Log(tmp_path) as store:
        with pytest.raises(StoreError, match="the block at offset 0 cannot be read"):
            store.append([RecordBatch.of(TP, 1, [b"b"])])
        assert store.end(TP) == 1


@pytest.mark.parametrize(("missing", "start"), [(0, 0), (100, 150), (200, 299)])
def test_a_missing_block_is_found(tmp_path: Path, missing: int, start: int) -> None:
    three_blocks(tmp_path)
    change(tmp_path, b"blocks", bytes(8) + missing.to_bytes(8, "big"), None)
    with Log(tmp_path) as store, pytest.raises(StoreError, match=f"at offset {start} .*no block"):
        store.read(TP, start, 300)


def test_a_last_block_that_ends_elsewhere_is_found(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        store.append(
            [
                RecordBatch.of(TopicPartition("t", "1"), 0, [b"a"]),
                RecordBatch.of(TopicPartition("t", "2"), 0, [b"a", b"b"]),
            ]
        )
    with lmdb.Environment(str(tmp_path), max_dbs=3) as env:
        blocks = env.open_db(b"blocks", create=False)
        with env.begin(db=blocks) as txn:
            other = txn.get(bytes(16))
    assert other is not None
    change(tmp_path, b"blocks", bytes(7) + b"\1" + bytes(8), other)
    with Log(tmp_path) as store, pytest.raises(StoreError, match="ends at offset 1, not at 2"):
        store.append([RecordBatch.of(TopicPartition("t", "2"), 2, [b"c"])])


def test_a_file_cut_short_does_not_kill_the_process(tmp_path: Path) -> None:
    values = three_blocks(tmp_path)
    data = (tmp_path / "data.mdb").read_bytes()
    os.truncate(tmp_path / "data.mdb", data.index(values[250]))
    with pytest.raises(StoreError, match="it was cut short"):
        Log(tmp_path, read_only=True)
    with pytest.raises(StoreError, match=r"damaged"), Log(tmp_path) as store:
        values_of(store)


@contextlib.contextmanager
def limited(what: int, size_bytes: int) -> Iterator[None]:
    """Sets a limit of this process, which the kernel keeps."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def test_a_full_disk_is_told_and_leaves_all_as_it_was(tmp_path: Path) -> None:
    values = three_blocks(tmp_path)
    with Log(tmp_path) as store:
        full_bytes = (tmp_path / "data.mdb").stat().st_size + 50_000
        with limited(resource.RLIMIT_FSIZE, full_bytes):
            for _ in range(3):
                with pytest.raises(StoreError, match=r"disk is full.*free some space"):
                    store.append(
                        [
                            RecordBatch.of(TP, 300, [b"x" * 100_000]),
                            RecordBatch.of(TopicPartition("u", P), 0, [b"y"]),
                        ]
                    )
                assert values_of(store) == values
                assert store.info(TopicPartition("u", P)) is None
        store.append([RecordBatch.of(TP, 300, [b"x" * 100_000])])
        assert values_of(store) == [*values, b"x" * 100_000]
    with Log(tmp_path) as store:
        assert values_of(store) == [*values, b"x" * 100_000]


VALUE = b"x" * (1 << 20)


def fill(store: Log) -> None:
    for number in range(store.end(TP), 1000):
        store.append([RecordBatch.of(TP, number, [VALUE])])


def test_a_full_map_is_told_and_read_on(tmp_path: Path) -> None:
    with Log(tmp_path, map_size_bytes=8 << 20) as store:
        with store.snapshot() as empty:
            for _ in range(3):
                with pytest.raises(StoreError, match=r"full; nothing .*open the store again"):
                    fill(store)
            assert empty.partitions() == []
        held = store.end(TP)
        assert held > 2
        assert values_of(store) == [VALUE] * held
        store.trim(TP, held)
        store.append([RecordBatch.of(TP, held, [b"x"])])
        store.append([RecordBatch.of(TP, held + 1, [VALUE] * 2)])  # where the trimmed ones were
        assert values_of(store) == [b"x", VALUE, VALUE]


def test_a_full_map_has_room_when_it_is_opened_again(tmp_path: Path) -> None:
    end = 0
    for _ in range(3):
        with Log(tmp_path, map_size_bytes=8 << 20) as store:
            with pytest.raises(StoreError, match=r"open the store again"):
                fill(store)
            assert store.end(TP) > end
            end = store.end(TP)
            assert values_of(store) == [VALUE] * end


def test_a_map_is_full_where_the_process_may_map_no_more(tmp_path: Path) -> None:
    with contextlib.ExitStack() as limit:
        limit.enter_context(limited(resource.RLIMIT_AS, used_bytes() + (128 << 20)))
        with Log(tmp_path) as store:
            with pytest.raises(StoreError, match=r"ulimit -v"):
                fill(store)
            limit.close()
            held = store.end(TP)
            assert values_of(store) == [VALUE] * held
    with Log(tmp_path) as store:
        store.append([RecordBatch.of(TP, held, [VALUE] * 20)])
        assert values_of(store) == [VALUE] * (held + 20)


def test_little_address_space_is_shared_with_others(tmp_path: Path) -> None:
    with Log(tmp_path) as store, limited(resource.RLIMIT_AS, used_bytes() + (256 << 20)):
        store.append([RecordBatch.of(TP, 0, [b"a"])])
    with limited(resource.RLIMIT_AS, used_bytes() + (256 << 20)):
        for read_only in (False, True):
            with Log(tmp_path, read_only=read_only) as store:
                assert values_of(store) == [b"a"]
                assert len(bytearray(64 << 20)) == 64 << 20


def used_bytes() -> int:
    """The address space this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

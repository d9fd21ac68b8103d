"""Opening a directory: what is no store's is refused, and so is a second writer."""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import pytest

from dafka_core.errors import ClosedError, StoreError
from dafka_core.model.records import RecordBatch
from dafka_core.storage import Log, open_environment
from dafka_core.storage.environment import DEFAULT_MAP_BYTES, Environment
from dafka_core.storage.open_environment import NOT_LOCAL, not_local
from dafka_core.storage.rows import OffsetTable
from dafka_core.storage.tables import Tables
from tests.integration.storage.damage import change, three_blocks
from tests.integration.storage.limits import VALUE, fill, limited, used_bytes
from tests.integration.storage.processes import TP, check_batches, child, put, told, values_of
from tests.integration.storage.test_backup import back_up


def test_one_process_has_a_directory_open(tmp_path: Path) -> None:
    with child(tmp_path, 1) as process:
        told(process)
        with pytest.raises(StoreError, match=f"process {process.pid} has it open for writing"):
            Log(tmp_path)
        end = told(process).end
    with Log(tmp_path) as store:
        assert store.end(TP) >= end


def test_a_process_has_a_directory_open_once(tmp_path: Path) -> None:
    with Log(tmp_path) as store:
        with pytest.raises(StoreError, match=f"process {os.getpid()} has it open"):
            Log(tmp_path)
        store.append([RecordBatch.of(TP, 0, [b"a"])])
        assert values_of(store) == [b"a"]


def test_a_lock_that_the_system_cannot_give_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(StoreError, match="No locks available"):
        Log(tmp_path)


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="file is a file: name a directory"):
        Log(tmp_path / "file")


def test_a_file_system_of_other_machines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_environment, "not_local", lambda _: "NFS")
    with pytest.raises(StoreError, match=r"it is on NFS, where .* are not reliable: give"):
        Log(tmp_path)


def test_a_file_system_that_is_declared_local_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_environment, "not_local", lambda _: "9p")
    monkeypatch.setenv(open_environment.ANY_FILE_SYSTEM, "true")
    with Log(tmp_path) as store:
        store.append([RecordBatch.of(TP, 0, [b"a"])])
    assert f"the store in {tmp_path} is on 9p" in caplog.text
    assert "data.mdb" in {path.name for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)  # a map that does not contain it
    with pytest.raises(StoreError, match="it is on 9p, where maps do not contain what is written"):
        Log(tmp_path)


def test_a_map_is_larger_than_a_disk_or_as_large_as_the_file_system_supports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = lmdb.Environment, list[int]()

    def limited_environment(path: str, *, map_size: int, **options: Any) -> lmdb.Environment:
        sizes.append(map_size)
        if map_size > 1 << 41:
            error = lmdb.Error("Value too large for defined data type")
            monkeypatch.setattr(error, "code", errno.EOVERFLOW, raising=False)
            raise error
        return real(path, map_size=map_size, **options)

    disk = os.statvfs(tmp_path)
    assert disk.f_blocks * disk.f_frsize < DEFAULT_MAP_BYTES
    monkeypatch.setattr(lmdb, "Environment", limited_environment)
    with Log(tmp_path) as store:
        store.append([RecordBatch.of(TP, 0, [b"a"])])
        back_up(store, tmp_path / "backup")  # also on CephFS, with files of at most 1 TiB
    assert sizes == [DEFAULT_MAP_BYTES, DEFAULT_MAP_BYTES // 2, DEFAULT_MAP_BYTES // 4] * 2


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"not a database, " * 1000)
    with pytest.raises(StoreError, match=r"not a store's file.*an empty directory") as caught:
        Log(tmp_path)
    assert caught.value.directory == str(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == b"not a database, " * 1000


@pytest.mark.parametrize("name", [None, b"other", b"meta"])
def test_another_programs_database_is_refused(tmp_path: Path, name: bytes | None) -> None:
    with lmdb.Environment(str(tmp_path), max_dbs=1) as env, env.begin(write=True) as txn:
        table = env.open_db(name, txn=txn)
        txn.put(b"key", b"value", db=table)
    with pytest.raises(StoreError, match="another program's LMDB database"):
        Log(tmp_path)


@pytest.mark.parametrize("form", [1, 5, 7])
def test_another_format_is_refused(tmp_path: Path, form: int) -> None:
    Log(tmp_path).close()
    change(tmp_path, b"meta", b"format", form.to_bytes(4, "little"))
    why = rf"its format is {form}, this program reads format 6: open it with the version"
    with pytest.raises(StoreError, match=why):
        Log(tmp_path)


PAGE = mmap.PAGESIZE
ZEROS = bytes(PAGE)


def header(directory: Path) -> bytes:
    """Return the two pages that LMDB writes to a new file before its first transaction."""
    lmdb.Environment(str(directory / "other"), subdir=False).close()
    found = (directory / "other").read_bytes()
    assert len(found) == 2 * PAGE
    return found


@pytest.mark.parametrize(
    "left",
    [
        lambda _: b"",
        lambda _: bytes(100),
        lambda _: ZEROS,
        lambda _: 2 * ZEROS,
        lambda head: head,
        lambda head: head[:512],
        lambda head: head[:PAGE],
        lambda head: head[:PAGE] + bytes(512),
        lambda head: head[:PAGE] + ZEROS,
        lambda head: ZEROS + head[PAGE:],
        lambda head: ZEROS + head[PAGE : PAGE + 512],
    ],
)
def test_a_file_whose_first_sync_was_cut_off_becomes_a_log(
    tmp_path: Path, left: Callable[[bytes], bytes]
) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    for name in ("writer.lock", "lock.mdb", "leases"):
        (directory / name).touch()
    (directory / "data.mdb").write_bytes(left(header(tmp_path)))
    with Log(directory) as store:
        store.append([RecordBatch.of(TP, 0, [b"a"])])
    with Log(directory) as store:
        assert values_of(store) == [b"a"]


def test_a_new_files_header_is_synced_before_a_transaction_makes_the_file_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut at any moment of it leaves a file that the next start recognizes as unused."""
    path, real, sizes = tmp_path / "data.mdb", os.fsync, []

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path:
            sizes.append(path.stat().st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    Log(tmp_path).close()
    assert sizes == [2 * PAGE]
    assert path.stat().st_size > 2 * PAGE


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:PAGE],
        lambda data: data[: 2 * PAGE],
        lambda data: ZEROS + data[PAGE : 2 * PAGE],
        lambda data: data[:PAGE] + ZEROS,
        lambda data: 2 * ZEROS + data[2 * PAGE :],
        lambda data: bytes(len(data)),
        lambda _: bytes(2 * PAGE + 1),
        lambda _: bytes(2 * PAGE - 1) + b"x",
    ],
)
def test_a_damaged_file_of_a_log_is_never_taken_for_a_new_one(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    three_blocks(tmp_path)
    path = tmp_path / "data.mdb"
    found = damage(path.read_bytes())
    path.write_bytes(found)
    with pytest.raises(StoreError), Log(tmp_path) as store:
        values_of(store)
    assert path.read_bytes()[: len(found)] == found


def test_a_file_cut_short_does_not_kill_the_process(tmp_path: Path) -> None:
    values = three_blocks(tmp_path)
    data = (tmp_path / "data.mdb").read_bytes()
    os.truncate(tmp_path / "data.mdb", data.index(values[250]))
    with pytest.raises(StoreError, match=r"damaged"), Log(tmp_path) as store:
        values_of(store)


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
    with limited(resource.RLIMIT_AS, used_bytes() + (256 << 20)), Log(tmp_path) as store:
        assert values_of(store) == [b"a"]
        assert len(bytearray(64 << 20)) == 64 << 20


@pytest.mark.parametrize(("made", "expected"), [(None, 0o600), (0o750, 0o640), (0o755, 0o644)])
def test_a_log_is_its_owners_alone_unless_its_directory_says_otherwise(
    made: int | None, expected: int, tmp_path: Path
) -> None:
    directory = tmp_path / "log"
    if made is not None:
        directory.mkdir()
        directory.chmod(made)
    usual = os.umask(0o022)
    try:
        with Log(directory) as store:
            store.append([RecordBatch.of(TP, 0, [VALUE])])
            modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    finally:
        os.umask(usual)
    assert directory.stat().st_mode & 0o777 == (made or 0o700)
    assert "data.mdb" in modes
    assert set(modes.values()) == {expected}


def test_marks_are_kept_and_damaged_ones_are_forgotten(tmp_path: Path) -> None:
    def put(tables: Tables) -> OffsetTable:
        assert tables.cold.get(7) == 0
        tables.cold.put(7, 100)
        tables.cold.put(8, 200)
        return tables.cold

    env = Environment(tmp_path, map_size_bytes=DEFAULT_MAP_BYTES)
    env.write(put)
    env.close()
    change(tmp_path, b"meta", b"cold of " + (8).to_bytes(8, "big"), b"x" * 16)
    env = Environment(tmp_path, map_size_bytes=DEFAULT_MAP_BYTES)
    with env.reading() as tables:
        assert (tables.cold.get(7), tables.cold.get(8)) == (100, 0)
    env.close()


def test_closing_waits_for_reads_and_writes(tmp_path: Path) -> None:
    """Threads read and write until the log is closed under them."""

    def read(store: Log) -> None:
        found = store.read(TP, 0, 3000)
        check_batches(found, 0, sum(batch.count for batch in found))

    def check(store: Log) -> None:
        with store.snapshot() as snapshot:
            found = list(snapshot.read(TP, 0, 3000))
            check_batches(found, 0, sum(batch.count for batch in found))

    def append(store: Log) -> None:
        put(store, 1000)

    def use(work: Callable[[Log], None], store: Log, begun: threading.Barrier) -> None:
        begun.wait()
        with contextlib.suppress(ClosedError):
            while True:
                work(store)

    for number in range(20):
        store, begun = Log(tmp_path / f"{number}"), threading.Barrier(4)
        with ThreadPoolExecutor(3) as pool:
            uses = [pool.submit(use, work, store, begun) for work in (read, check, append)]
            begun.wait()
            time.sleep(0.01)
            store.close()
            for each in uses:
                each.result()


def emptied(directory: Path) -> None:
    """As a cleaner of temporary files does."""
    for file in directory.iterdir():
        file.unlink()


def put_back(directory: Path) -> None:
    """From a copy: its content is equal, and its files are others."""
    shutil.copytree(directory, copy := directory.with_name("copy"))
    shutil.rmtree(directory)
    copy.rename(directory)


@pytest.mark.parametrize(
    "lose",
    [
        shutil.rmtree,
        emptied,
        put_back,
        lambda directory: directory.rename(directory.with_name("away")),
        lambda directory: (directory / "data.mdb").unlink(),
        lambda directory: (directory / "writer.lock").unlink(),
        lambda directory: (directory / "lock.mdb").unlink(),
        lambda directory: (directory / "leases").unlink(),
    ],
)
def test_nothing_is_written_once_the_directory_is_lost(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    directory = tmp_path / "store"
    with Log(directory) as store:
        put(store, 1)
        store.check_in_place()
        lose(directory)
        with pytest.raises(StoreError, match="removed, renamed or replaced"):
            store.check_in_place()
        with pytest.raises(StoreError, match="removed, renamed or replaced"):
            put(store, 1)


def test_a_log_stays_in_place_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Log("store") as store:
        monkeypatch.chdir("/")
        put(store, 1)


def test_a_directory_of_this_machine_is_local(tmp_path: Path) -> None:
    assert not_local(tmp_path) is None
    assert not_local("/dev/shm") is None
    assert not_local(tmp_path / "missing") is None


def test_the_types_are_those_that_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual call, with the type of a file system that is mounted everywhere."""
    monkeypatch.setitem(NOT_LOCAL, 0x9FA0, "the system's processes")
    assert not_local("/proc") == "the system's processes"
    assert not_local("/dev") is None


@pytest.mark.parametrize(
    "kind", [0x6969, 0xFF534D42, 0xFE534D42, 0x01021997, 0xBEEFDEAD, 0x65735546]
)
def test_those_of_other_machines_have_names(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class System:
        """Return the type with the sign of a 32-bit long."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def statfs(self, _path: bytes, found: Any) -> int:
            ctypes.c_long.from_buffer(found).value = ctypes.c_int32(kind).value
            return 0

    monkeypatch.setattr(ctypes, "CDLL", System)
    assert not_local("anywhere") == NOT_LOCAL[kind]

"""Errors of LMDB and the disk come with a remedy, and leave the log unchanged."""

import contextlib
import errno
import os
import resource
import struct
import sys
from pathlib import Path

import lmdb
import pytest

from dafka_core.errors import DiskFullError, StoreError
from dafka_core.model.records import RecordBatch
from dafka_core.storage import Log
from dafka_core.storage.open_environment import READERS_FILE
from dafka_core.storage.storage_errors import MAX_READERS, translated
from tests.integration.storage import full_disk
from tests.integration.storage.containers import contained
from tests.integration.storage.damage import three_blocks
from tests.integration.storage.limits import VALUE, fill, limited
from tests.integration.storage.processes import TP, started, values_of


def test_a_full_map_is_told_and_read_on(tmp_path: Path) -> None:
    with Log(tmp_path, map_size_bytes=8 << 20) as store:
        with store.snapshot() as empty:
            for _ in range(3):
                with pytest.raises(StoreError, match=r"full; nothing .*restart the store"):
                    fill(store)
            assert empty.info(TP) is None
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
            with pytest.raises(StoreError, match=r"restart the store"):
                fill(store)
            assert store.end(TP) > end
            end = store.end(TP)
            assert values_of(store) == [VALUE] * end


def test_more_reads_at_one_time_than_there_may_be_are_refused(tmp_path: Path) -> None:
    values = three_blocks(tmp_path)
    with Log(tmp_path) as store:
        with contextlib.ExitStack() as snapshots:
            for _ in range(MAX_READERS - 1):  # and the one from opening
                snapshots.enter_context(store.snapshot())
            with pytest.raises(StoreError, match=f"more than {MAX_READERS} concurrent reads"):
                _ = [snapshots.enter_context(store.snapshot()) for _ in range(2)]
        store.append([RecordBatch.of(TP, 300, [b"next"])])
        assert values_of(store) == [*values, b"next"]


DAMAGED = "Its files are damaged: move the directory away"
FULL = "the disk is full .*nothing of this was written: free some space$"
FAILS = "the disk fails .*nothing of this was written.*on another disk"


@pytest.mark.parametrize(
    ("error", "opening", "why"),
    [
        (lmdb.InvalidError("no header"), True, "data.mdb is not a store's file .no header."),
        (lmdb.InvalidError("no header"), False, DAMAGED),
        (lmdb.VersionMismatchError("older"), True, "give the store an empty directory"),
        (lmdb.CorruptedError("page 7"), True, f"page 7. {DAMAGED}"),
        (lmdb.PageNotFoundError("page 7"), False, f"page 7. {DAMAGED}"),
        (struct.error("4 bytes"), False, rf"a key or a row is invalid .*4 bytes.*{DAMAGED}"),
        (lmdb.DiskError("no answer"), False, FAILS),
        (OSError(errno.EDQUOT, "quota"), False, FULL),
        (OSError(errno.EIO, "no answer"), False, FAILS),
        (OSError(errno.EACCES, "not allowed"), True, "not allowed$"),
        (lmdb.PanicError("halfway"), False, "an earlier write failed .*restart the store"),
        (lmdb.BadTxnError("ended"), False, ": ended$"),
    ],
)
def test_each_error_says_what_would_be_right(
    tmp_path: Path, error: Exception, opening: bool, why: str
) -> None:
    with pytest.raises(StoreError, match=why) as caught, translated(tmp_path, opening=opening):
        raise error
    assert caught.value.directory == str(tmp_path)
    assert caught.value.__cause__ is error


def test_a_write_that_a_full_disk_accepts_in_part_is_not_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.mdb").write_bytes(bytes(8192))
    error = OSError(errno.EIO, "no answer")
    with (
        limited(resource.RLIMIT_FSIZE, 8192 + 4096),
        pytest.raises(DiskFullError, match=FULL),
        translated(tmp_path),
    ):
        raise error
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:4], 3, *real[5:]))  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(DiskFullError, match=FULL), translated(tmp_path):
        raise error


def test_errors_of_others_are_left_as_they_are(tmp_path: Path) -> None:
    mistake = ValueError("no offset")
    with pytest.raises(ValueError, match="no offset") as caught, translated(tmp_path):
        raise mistake
    assert caught.value is mistake


SCENARIOS = [
    full_disk.readers,
    full_disk.starting,
    full_disk.restarting,
    full_disk.writing,
    full_disk.merging,
]


@pytest.mark.parametrize("scenario", [each.__name__ for each in SCENARIOS])
def test_a_log_on_a_full_disk(tmp_path: Path, scenario: str) -> None:
    command = [sys.executable, "-m", full_disk.__name__, str(tmp_path), scenario]
    mount = f"mount -t tmpfs -o size={full_disk.MOUNTED_BYTES} tmpfs {tmp_path}"
    with started(contained(command, mount)) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "right\n"
        assert process.wait() == 0


def test_the_list_of_readers_has_its_place_on_the_disk(tmp_path: Path) -> None:
    """Also an earlier store's, with a reader table."""
    readers = tmp_path / READERS_FILE
    for _ in range(2):
        Log(tmp_path).close()
        found = readers.stat()
        assert found.st_blocks * 512 >= found.st_size > 1_024 * 64
        readers.unlink()
        with readers.open("wb") as file:
            file.truncate(found.st_size)

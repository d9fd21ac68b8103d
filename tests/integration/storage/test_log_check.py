"""A check finds every kind of damage, names it, and continues after it."""

import mmap
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import astuple

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.store_backup import opened
from dafka_core.nodes.store_identity import new_identity
from dafka_core.storage import Log
from dafka_core.storage.log_check import (
    ASIDE,
    BLOCK,
    EPOCHS,
    HOLE,
    NOTES,
    PAGE,
    ROW,
    STAGED,
    UNKNOWN,
    Checked,
    Damage,
    check,
    check_blocks,
    check_partition,
)
from dafka_core.storage.rows import BLOCK_KEY
from tests.integration.storage.changing_log import PARTITIONS, ChangingLog
from tests.integration.storage.damage import change, erase, spoil, three_blocks, trees
from tests.integration.storage.linked import checked
from tests.integration.storage.processes import ROOT, TP
from tests.integration.storage.staged import large, put, stage


def checked_unopened(directory: Path) -> Checked:
    """Check a log that may not open otherwise."""
    with Log(directory, unchecked=True) as log:
        return checked(log)


def kinds(found: Checked) -> list[tuple[str, int]]:
    return [(each.kind, each.offset) for each in found.found]


def test_all_of_a_log_is_read(tmp_path: Path) -> None:
    three_blocks(tmp_path)
    done = checked_unopened(tmp_path)
    assert astuple(done)[:3] == (1, 300, 3)
    assert done.size_bytes > 300_000
    assert done.found == ()


def test_a_damaged_block_is_named_and_those_behind_it_are_checked(tmp_path: Path) -> None:
    values = three_blocks(tmp_path)
    spoil(tmp_path / "data.mdb", values[150])
    done = checked_unopened(tmp_path)
    assert astuple(done)[:3] == (1, 200, 2)
    (damage,) = done.found
    assert damage[:4] == (BLOCK, *TP, 100)
    assert "the block at offset 100 cannot be read: its checksum is not" in damage.why
    with Log(tmp_path) as log, log.snapshot() as tables:
        assert [each.kind for part in check_blocks(tables) for each in part.found] == [BLOCK]


@pytest.mark.parametrize("first", [0, 100, 200])
def test_a_missing_block_is_a_hole(tmp_path: Path, first: int) -> None:
    three_blocks(tmp_path)
    change(tmp_path, b"blocks", BLOCK_KEY.pack(0, first), None)
    done = checked_unopened(tmp_path)
    assert kinds(done) == [(HOLE, first)]
    assert astuple(done)[:3] == (1, 200, 2)


def test_a_damaged_row_is_named_and_the_other_partitions_are_checked(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        put(log, large(100), "p")
        put(log, large(100), "q")
        with log.snapshot() as tables:
            key, value = next(tables.entries(1))
            row = bytes(value)
        # Without the open log's knowledge: none opens with such a row.
        env = log._env._opened
        assert env is not None
        with env.env.begin(write=True) as txn:
            txn.put(key, row[:8] + b"\1" + row[9:], db=env.partitions)
        done = checked(log)
    assert done.partitions == 1
    assert done.records == 100
    assert done.found == (Damage(ROW, "t", "p", 0, "its row does not match its checksum"),)


def test_what_lies_beside_records_is_checked(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        put(log, large(100), "p")
        assert log.write([stage(large(100), 100, partition="p")]) == [None]
        ChangingLog(log, 7).change(60)
        (aside, *_) = log.aside()
        note = next(iter(log.notes("n")))
        with log.snapshot() as tables:
            lives = next(bytes(k) for k, _ in tables.entries(0) if k.startswith(b"lives of "))
    change(tmp_path, b"meta", b"note " + note.encode(), b"another one" * 2)
    change(tmp_path, b"meta", lives, b"x" * 48)
    change(tmp_path, b"blocks", BLOCK_KEY.pack(1 << 40, 0), b"nobody's")
    change(tmp_path, b"blocks", BLOCK_KEY.pack(aside.id, aside.start), b"no block")
    found = {each.kind for each in checked_unopened(tmp_path).found}
    assert found == {NOTES, EPOCHS, UNKNOWN, ASIDE}


def test_staged_records_are_checked(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        put(log, large(100))
        assert log.write([stage(large(100), 100)]) == [None]
        assert log.write([stage(large(100), 200)]) == [None]
    assert checked_unopened(tmp_path).found == ()
    change(tmp_path, b"blocks", BLOCK_KEY.pack(0, 200), None)
    (damage,) = checked_unopened(tmp_path).found
    assert damage[:4] == (STAGED, "t", "p", 200)
    assert damage.why == "staged records end at 200, not at 300"
    change(tmp_path, b"blocks", BLOCK_KEY.pack(0, 100), b"no block")
    assert kinds(checked_unopened(tmp_path)) == [(STAGED, 100)]


def test_a_log_may_change_while_it_is_checked(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        changing = ChangingLog(log, 3)
        changing.change(50)
        done = Checked()
        for each in check(log.snapshot):
            changing.change(5)
            done = done.plus(each)
        assert done.found == ()
        assert done.partitions == len(PARTITIONS)


def test_a_partition_that_is_gone_meanwhile_is_none(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([RecordBatch.of(TopicPartition("t", "p"), 0, [b"a"])])
        assert list(check_partition(log.snapshot, TopicPartition("t", "q"))) == []


NAMES = [TopicPartition("t", f"p{number}") for number in range(12)]
COUNT = 400


def many(directory: Path) -> None:
    """Twelve partitions of twenty large blocks: the tree of blocks has several leaves."""
    with Log(directory) as log:
        for first in range(0, COUNT, 20):
            log.append([RecordBatch.of(tp, first, [b"." * 4000] * 20) for tp in NAMES])


def is_whole(log: Log, tp: TopicPartition) -> bool:
    with suppress(StoreError):
        return sum(batch.count for batch in log.read(tp, 0, COUNT)) == COUNT
    return False


def test_a_damaged_page_of_a_tree_is_named_for_each_partition_that_needs_it(tmp_path: Path) -> None:
    """It ended the check with an error of LMDB once."""
    many(tmp_path)
    data, several = tmp_path / "data.mdb", 0
    for at in trees(data):
        page = erase(data, at)
        with suppress(StoreError), Log(tmp_path) as log:  # LMDB may find no table at all
            done = checked(log)
            if ROW not in {each.kind for each in done.found}:
                lost = {tp for tp in NAMES if not is_whole(log, tp)}
                named = {TopicPartition(each.topic, each.partition) for each in done.found}
                assert lost == named - {TopicPartition("", "")}
                assert done.partitions == len(NAMES)
                assert done.records >= COUNT * (len(NAMES) - len(lost))
                assert (done.records < COUNT * len(NAMES)) == bool(lost) == bool(done.found)
                several += 1 < len(lost) < len(NAMES)
        erase(data, at, page)
    assert several > 1


def test_results_of_two_looks_are_added() -> None:
    one, other = (Damage(BLOCK, "t", "p", offset, "why") for offset in (1, 2))
    both = Checked(1, 2, 3, 4, (one,), 5).plus(Checked(10, 20, 30, 40, (other,), 50))
    assert both == Checked(11, 22, 33, 44, (one, other), 55)


_READ = """
import os, sys, threading
from dafka_core.storage import Log
from tests.integration.storage.processes import TP

log = Log(sys.argv[1])
os.truncate(sys.argv[1] + "/data.mdb", int(sys.argv[2]))
{work}
print("not reached")
"""

_IN_MAIN = "log.read(TP, 0, 300)"
_IN_THREAD = "thread = threading.Thread(target=log.read, args=(TP, 0, 300)); thread.start()\n"
_IN_THREAD += "thread.join()"
_WRITING = (
    "from dafka_core.model.records import RecordBatch; log.append([RecordBatch.of(TP, 300, [b''])])"
)
_OTHERS_NOTED = """
from pathlib import Path
from dafka_core.storage.open_environment import faults_noted
with faults_noted(Path("other/data.mdb")):
    log.read(TP, 0, 300)
"""

_OTHER = """
import mmap, os, sys
from dafka_core.storage import Log

log = Log(sys.argv[1])
path = sys.argv[1] + "/other"
with open(path, "w+b") as file:
    file.truncate(2 * mmap.PAGESIZE)
    mapped = mmap.mmap(file.fileno(), 0)
    file.truncate(0)
{work}
"""


def ended(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60, check=False
    )


@pytest.mark.parametrize("work", [_IN_MAIN, _IN_THREAD, _WRITING, _OTHERS_NOTED])
def test_a_file_that_was_cut_ends_the_process_with_file_and_position(
    tmp_path: Path, work: str
) -> None:
    """It was killed by SIGBUS once."""
    three_blocks(tmp_path)
    cut = 2 * mmap.PAGESIZE
    done = ended(_READ.format(work=work), tmp_path, cut)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"store at {tmp_path}: data.mdb cannot be read from byte " in done.stderr
    assert f"(the file ends at byte {cut}), so this process ends" in done.stderr
    assert "'dafka store verify' lists what is lost" in done.stderr


@pytest.mark.parametrize("work", ["mapped[5000]", "os.kill(os.getpid(), 7)"])
def test_a_fault_elsewhere_acts_as_before(tmp_path: Path, work: str) -> None:
    assert ended(_OTHER.format(work=work), tmp_path).returncode == -signal.SIGBUS


def test_an_abort_elsewhere_acts_as_before(tmp_path: Path) -> None:
    assert ended(_OTHER.format(work="os.abort()"), tmp_path).returncode == -signal.SIGABRT


def test_a_store_that_does_not_run_is_checked_around_what_cannot_be_read(tmp_path: Path) -> None:
    many(tmp_path)
    with Log(
        tmp_path
    ) as log:  # pages freed by a trim are reused by the trees, which leave the file's end
        log.trim(NAMES[0], COUNT)
        for start in (COUNT, COUNT + 20):
            log.append([RecordBatch.of(tp, start, [b"," * 4000] * 20) for tp in NAMES])
    new_identity(tmp_path)
    data = tmp_path / "data.mdb"
    cut = data.read_bytes().rindex(b"." * mmap.PAGESIZE) // mmap.PAGESIZE * mmap.PAGESIZE
    done = Checked()
    with opened(str(tmp_path)) as source:
        os.truncate(data, cut)
        for each in source.check():
            done = done.plus(each)
    assert {each.kind for each in done.found} == {BLOCK, PAGE}
    for page in (each for each in done.found if each.kind == PAGE):
        assert page.offset >= cut
        why = f"data.mdb cannot be read from byte {page.offset} on (the file ends at byte {cut})"
        assert page.why == why
    assert done.partitions == len(NAMES)
    assert done.records >= (COUNT - 20) * (len(NAMES) - 1)


def test_a_damaged_tree_that_lmdb_aborts_at_ends_the_process_with_a_sentence(
    tmp_path: Path,
) -> None:
    """It ended with a line of LMDB, and by SIGABRT once."""
    many(tmp_path)
    data = tmp_path / "data.mdb"
    work = "with log.snapshot() as all: print(sum(1 for _ in all.entries(2)))"
    for at in trees(data):
        page = erase(data, at)
        done = ended(_READ.format(work=work), tmp_path, data.stat().st_size)
        erase(data, at, page)
        assert done.returncode in (0, 1)
        if "Assertion" in done.stderr:
            why = "LMDB cannot continue at a damaged page of data.mdb, so this process ends"
            assert f"store at {tmp_path}: {why}" in done.stderr
            return
    raise AssertionError("LMDB went on at each page")

"""An unreadable or damaged page ends the process with a sentence, or is reported."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dafka_core.model.records import RecordBatch
from dafka_core.nodes.store_backup import opened
from dafka_core.nodes.store_identity import new_identity
from dafka_core.storage import Log
from dafka_core.storage.log_check import BLOCK, PAGE, Checked
from tests.integration.storage.damage import erase, three_blocks, trees
from tests.integration.storage.processes import ROOT
from tests.integration.storage.test_log_check import COUNT, NAMES, many

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
from dafka_core.storage.mapped_file import faults_noted
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

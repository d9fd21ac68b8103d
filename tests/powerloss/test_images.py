"""Nothing that was acknowledged is lost in a power cut, and nothing else appears."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.powerloss import disk
from tests.powerloss.workloads import WORKLOADS

IMAGES = 75


def run(*words: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: a damaged page may end it.
    command = [sys.executable, "-m", "tests.powerloss", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def seeds(workload: str, images: int) -> list[str]:
    first = [*WORKLOADS].index(workload)
    return [str(each) for each in range(first, images, len(WORKLOADS))]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_power_cuts_lose_nothing(workload: str) -> None:
    done = run(*seeds(workload, IMAGES))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "15 images" in done.stdout
    assert ", 0 with losses" in done.stdout


@pytest.mark.parametrize("workload", WORKLOADS)
def test_losses_on_a_disk_that_ignores_syncs_are_found(workload: str) -> None:
    done = run("--without-syncs", *seeds(workload, 50))
    assert done.returncode == 1, done.stdout + done.stderr
    assert f": {workload}, power lost in change" in done.stdout


EVERYTHING = """
import mmap, os, shutil, sys
os.chdir(sys.argv[1])
os.makedirs("a/b/c")
with open("a/b/x", "wb") as file:
    file.write(b"x" * 10_000)
    file.seek(5)
    file.write(b"there")
os.rename("a/b/x", "y")
shutil.copyfile("y", "z")
os.truncate("z", 7)
with open("z", "ab") as file:
    file.write(b"at its end")
shutil.copytree("a", "d")
shutil.rmtree("a")
os.link("y", "d/y")
os.replace("z", "d/b/z")
fd = os.open("m", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 8192)
os.pwritev(fd, [b"one", b"two"], 4090)
os.writev(fd, [b"three", b"four"])
with mmap.mmap(fd, 8192) as mapped:
    mapped[100:106] = b"mapped"
    mapped.flush()
os.fsync(fd)
"""


def recorded(root: Path, program: str) -> disk.Disk:
    """Return the disk after a Python program, from the recorded events."""
    root.mkdir()
    found = disk.Disk(root)
    for event in disk.recorded([sys.executable, "-c", program, str(root)], root):
        found.apply(event)
    return found


def test_the_recorder_misses_no_change(tmp_path: Path) -> None:
    found = recorded(tmp_path / "root", EVERYTHING)
    found.check()
    assert found.newest("m")[100:106] == b"mapped"
    (tmp_path / "root" / "y").write_bytes(b"changed without it")
    with pytest.raises(AssertionError):
        found.check()


def images(found: disk.Disk, directory: Path) -> set[tuple[str, ...]]:
    """Return the names, with their contents' first bytes, that 200 power cuts leave."""
    kinds = set()
    for seed in range(200):
        made = directory / str(seed)
        found.left(made, Random(seed))
        paths = sorted(path for path in made.rglob("*") if path.is_file())
        kinds.add(tuple(f"{each.name}={each.read_bytes()[:3].decode()}" for each in paths))
    return kinds


NEW_FILE = """
import os, sys
os.chdir(sys.argv[1])
with open("made", "wb") as file:
    file.write(b"new")
    file.flush()
    {sync_file}
os.rename("made", "name")
{sync_names}
"""
SYNC_FILE, SYNC_NAMES = "os.fsync(file)", "os.fsync(os.open('.', os.O_RDONLY))"


@pytest.mark.parametrize(
    ("sync_file", "sync_names", "left"),
    [
        (SYNC_FILE, SYNC_NAMES, {("name=new",)}),
        (SYNC_FILE, "", {(), ("made=new",), ("name=new",), ("made=new", "name=new")}),
        ("", SYNC_NAMES, {("name=",), ("name=\0\0\0",), ("name=new",)}),
    ],
)
def test_what_is_not_synced_may_be_lost(
    tmp_path: Path, sync_file: str, sync_names: str, left: set[tuple[str, ...]]
) -> None:
    program = NEW_FILE.format(sync_file=sync_file, sync_names=sync_names)
    assert images(recorded(tmp_path / "root", program), tmp_path) == left


def test_each_page_or_sector_has_a_version_of_its_own() -> None:
    file = disk.File(b"0" * 8192)
    for version in (b"1", b"2"):
        file.write(0, version * 8192, is_synced=False)
    file.write(100, b"3", is_synced=True)
    found = {file.left(Random(seed), 0.5) for seed in range(300)}
    assert {each[100:101] for each in found} == {b"3"}
    assert {each[99:100] for each in found} == {b"2"}  # of the same sector
    assert {(each[600:601], each[5000:5001]) for each in found} == {
        (one, other) for one in (b"0", b"1", b"2") for other in (b"0", b"1", b"2")
    }
    file.sync()
    assert {file.left(Random(seed), 0.5) for seed in range(9)} == {file.newest()}

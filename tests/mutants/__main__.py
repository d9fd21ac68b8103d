"""``make mutants``: put known defects back one at a time, and require a test to find each.

Each defect of ``defects.toml`` replaces a text that occurs once in a file.  It is put into a copy
of the working tree, which itself stays as it is.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DEFECTS: Final = Path(__file__).with_name("defects.toml")

NOT_COPIED: Final = (".*", "build", "dist", "demo-output", "spark-warehouse")

MAX_RUN_S: Final = 600
MAX_TEST_S: Final = 120
"""Longer than each of the named tests; a defect that blocks a test fails it."""

SOME_TEST_FAILED: Final = 1
"""The exit code of pytest; a file that cannot be imported gives a greater one."""


class Defect(NamedTuple):
    name: str
    file: str
    find: str
    put: str
    harm: str  # the consequence for a user
    tests: str  # arguments of pytest: the quickest tests that find it


class Outcome(NamedTuple):
    code: int
    failed: str  # the first failed test, or the end of the output if no test failed
    seconds: float


class MovedError(Exception):
    """The text that a defect replaces does not occur exactly once."""


def read(file: Path) -> list[Defect]:
    """Read the defects of a file."""
    tables = tomllib.loads(file.read_text())
    return [Defect(name, **fields) for name, fields in tables.items()]


def mutated(defect: Defect, root: Path) -> str:
    """Return the text of the file with the defect."""
    file = root / defect.file
    count = file.read_text().count(defect.find) if file.exists() else 0
    if count != 1:
        message = f"{defect.name}: its place has moved: {defect.file} has its text {count} times"
        raise MovedError(message)
    text = file.read_text().replace(defect.find, defect.put)
    compile(text, defect.file, "exec")
    return text


@contextmanager
def put_in(defect: Defect, root: Path) -> Iterator[None]:
    """Put a defect into a tree, and remove it at the end."""
    file = root / defect.file
    text, original = mutated(defect, root), file.stat()
    before = file.read_bytes()
    try:
        file.write_text(text)
        yield
    finally:
        file.write_bytes(before)
        # Python identifies a compiled file by the time of its source.
        os.utime(file, ns=(original.st_atime_ns, original.st_mtime_ns))


def run(tests: str, root: Path) -> Outcome:
    """Run tests in a tree until the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [f"--timeout={MAX_TEST_S}", "--hypothesis-profile=mutants", *shlex.split(tests)]
    path = os.pathsep.join(map(str, (root, root / "jobs")))
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=MAX_RUN_S,
            check=False,
        )
        code, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, output = -1, f"no end within {MAX_RUN_S} s"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return Outcome(code, failed[1] if failed else output[-1_000:], time.monotonic() - began_s)


def find(defect: Defect, root: Path) -> Outcome:
    """Run the tests of a defect with it."""
    with put_in(defect, root):
        return run(defect.tests, root)


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """Copy a working tree, with what Python has compiled of it."""
    with tempfile.TemporaryDirectory(prefix="dafka-mutants-") as made:
        tree = Path(made, "tree")
        shutil.copytree(root, tree, ignore=shutil.ignore_patterns(*NOT_COPIED))
        yield tree


def check(defects: Sequence[Defect], root: Path, jobs: int) -> int:
    """Find the defects, print a line for each, and return the number of those not found."""
    trees: SimpleQueue[Path] = SimpleQueue()

    def in_tree(work: Defect | str) -> Outcome:
        tree = trees.get()
        try:
            return run(work, tree) if isinstance(work, str) else find(work, tree)
        finally:
            trees.put(tree)

    with ExitStack() as stack, ThreadPoolExecutor(jobs) as threads:
        for _ in range(jobs):
            trees.put(stack.enter_context(copied(root)))
        tests = sorted({each.tests for each in defects})
        files = sorted({file for each in tests if " -k " not in each for file in each.split()})
        parts = [" ".join(files[number::jobs]) for number in range(jobs)]
        tests = [*filter(None, parts), *(each for each in tests if " -k " in each)]
        missing = 0
        for named, outcome in zip(tests, threads.map(in_tree, tests), strict=True):
            if outcome.code:
                print(f"FAILS WITHOUT A DEFECT  {named}  {outcome.failed}", flush=True)
                missing += 1
        if missing:
            return missing
        for defect, outcome in zip(defects, threads.map(in_tree, defects), strict=True):
            found = outcome.code == SOME_TEST_FAILED
            missing += not found
            word = "found    " if found else "NOT FOUND"
            print(f"{word} {outcome.seconds:5.1f} s  {defect.name}  {outcome.failed}", flush=True)
    print(f"{len(defects) - missing} of {len(defects)} defects found")
    return missing


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="default: all defects")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree (default: 2)")
    parser.add_argument("--list", action="store_true", help="check and list places; run nothing")
    given = parser.parse_args()
    known = {each.name: each for each in read(DEFECTS)}
    if unknown := {*(given.only or ())} - known.keys():
        parser.error(f"unknown defects: {', '.join(sorted(unknown))}")
    defects = [known[name] for name in given.only or known]
    try:
        for each in defects:
            mutated(each, ROOT)
            if given.list:
                print(f"{each.name}  {each.file}  {each.harm}")
    except MovedError as error:
        print(error)
        return 1
    return 0 if given.list else min(check(defects, ROOT, given.jobs), 1)


if __name__ == "__main__":
    sys.exit(main())

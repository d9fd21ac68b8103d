"""Standard streams that are closed or full: one sentence, the right exit code, nothing lost.

On a terminal long work shows its progress.
"""

import fcntl
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.forked import ForkedCluster
from tests.integration.cli.processes import (
    ANY_PORTS,
    PATIENCE_S,
    Dafka,
    environment,
    listed,
    run,
    sentence,
    shown,
    succeed,
)
from tests.integration.cli.processes import command as dafka

INPUT, OUTPUT, ERRORS = range(3)
RECORDS = b"1\n2\n3\n"

RESULTS = ["--help", "topics", "heads", "stores", "staged", "consume", "tower", "store", "up"]
"""Commands that write results to standard output."""


@pytest.fixture(scope="module")
def numbers(tower: str) -> str:
    succeed("produce", "numbers", "--tower", tower, given=RECORDS)
    return tower


def with_results(name: str, tower: str, directory: Path) -> tuple[str, ...]:
    at = ("--tower", tower)
    return {
        "--help": ("--help",),
        "heads": ("heads", "numbers", *at),
        "consume": ("consume", "numbers", "--from-beginning", "--count", "3", *at),
        "staged": ("staged", "--help"),  # nothing is staged
        "tower": ("tower", *ANY_PORTS),
        "store": ("store", "--dir", str(directory), *at),
        "up": ("up", "--dir", str(directory), *ANY_PORTS),
    }.get(name, (name, *at))


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize(
    ("path", "why"), [(None, "it is closed"), ("/dev/full", "No space left on device")]
)
def test_results_that_nobody_takes_are_an_error(
    name: str, path: str | None, why: str, numbers: str, tmp_path: Path
) -> None:
    process = run(*with_results(name, numbers, tmp_path), streams={OUTPUT: path})
    *_, line = process.stderr.decode().splitlines()
    assert line == f"dafka: standard output cannot be written: {why}"
    assert b"Traceback" not in process.stderr
    assert process.returncode == 1


@pytest.mark.parametrize("path", [None, "/dev/full"])
@pytest.mark.parametrize("name", ["topics", "heads", "stores", "consume"])
def test_a_command_goes_on_when_nobody_can_be_told_of_it(
    name: str, path: str | None, numbers: str, tmp_path: Path
) -> None:
    process = succeed(*with_results(name, numbers, tmp_path), streams={ERRORS: path})
    assert len(process.stdout.splitlines()) > 0
    refused = run("topics", "--tower", "a:b", streams={ERRORS: path})
    assert (refused.returncode, refused.stdout) == (2, b"")


@pytest.mark.parametrize(
    "streams", [{ERRORS: None}, {ERRORS: "/dev/full"}, {OUTPUT: None, ERRORS: None}]
)
def test_records_are_published_though_nobody_is_told(
    streams: dict[int, str | None], tower: str
) -> None:
    topic = f"told-{len(streams)}-{streams[ERRORS] is None}"
    succeed("produce", topic, "--tower", tower, given=RECORDS, streams=streams)
    assert listed(run("heads", topic, "--tower", tower))[0][1:] == ["0", "3"]


@pytest.mark.parametrize(("path", "why"), [(None, "it is closed"), ("/", "Is a directory")])
def test_an_input_that_cannot_be_read_is_an_error_at_once(path: str | None, why: str) -> None:
    process = run("produce", "t", "--tower", "127.0.0.1:1:2", streams={INPUT: path})
    assert sentence(process) == f"standard input cannot be read: {why}"
    assert process.returncode == 1


def test_a_node_that_is_to_end_with_its_input_ends_when_that_is_closed() -> None:
    process = run("tower", "--exit-with-parent", *ANY_PORTS, streams={INPUT: None})
    assert process.returncode in (0, 128 + signal.SIGTERM)  # has it served by then?
    assert b"Traceback" not in process.stderr


def test_a_reader_that_is_slow_and_does_not_block_gets_all(tower: str) -> None:
    """A pipe that another process has made non-blocking, as some terminals' programs do."""
    values = [b"x" * 1_000] * 1_000  # more than a pipe holds
    lines = b"".join(value + b"\n" for value in values)
    succeed("produce", "slow", "--tower", tower, given=lines)
    taken, its_output = os.pipe()
    os.set_blocking(its_output, False)
    arguments = ["consume", "slow", "--tower", tower, "--from-beginning", "--count", "1000"]
    with subprocess.Popen(
        dafka(arguments), stdout=its_output, stderr=subprocess.PIPE, env=environment()
    ) as process:
        os.close(its_output)
        with os.fdopen(taken, "rb") as pipe:
            size = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
            first = b""
            while len(first) < size:  # the pipe is full by now, or was and is again
                first += pipe.read(1)
            assert (first + pipe.read()).splitlines() == values
        assert process.wait(PATIENCE_S) == 0


def test_an_input_that_does_not_block_is_waited_for(tower: str) -> None:
    with Dafka("produce", "waited", "--tower", tower) as producer:
        os.set_blocking(producer.input.fileno(), False)
        producer.err.next()
        producer.input.write(b"1\n")
        producer.input.close()
        assert producer.wait() == 0
        assert producer.err.rest()[-1] == b"1 records acknowledged"


def test_long_work_shows_a_bar_on_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    at = {name: str(tmp_path / name) for name in ("lines", "b", "new", "arch", "x.jsonl")}
    (tmp_path / "lines").write_text("1\n2\n3\n")
    with ForkedCluster() as cluster:
        *_, store = cluster.locations(0)
        tower = ("--tower", cluster.tower)
        for arguments, unit in (
            (("produce", "t", at["lines"], *tower), r"3/\? +records"),
            (("copy", "t", at["x.jsonl"], *tower), r"3/3 +records"),
            (("copy", at["x.jsonl"], "back", *tower), r"3/\? +records"),
            (("archive", "t", "--dir", at["arch"], "--before", "now", *tower), r"3/\? +records"),
            (("store", "backup", store, at["b"]), "bytes"),
            (("store", "verify", at["b"]), r"2/\? +partitions"),
            (("store", "restore", at["new"], "--from", at["b"]), r"2/\? +partitions"),
        ):
            assert re.search(unit, shown(*arguments)), arguments
        done = run("store", "verify", at["b"])
        assert b"/? " not in done.stderr

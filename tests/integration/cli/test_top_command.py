"""``dafka top``."""

import contextlib
import json
import os
import pty
import signal
import subprocess

import pytest

from dafka_core.testing import wait_until
from tests.integration.cli.processes import Dafka, command, environment, refusal, run, succeed


@pytest.fixture(scope="module")
def flights(tower: str) -> str:
    succeed("produce", "flights", "--tower", tower, given=b"a\nb\nc\n")
    return "flights"


def test_once_as_json_has_everything(tower: str, flights: str) -> None:
    done = run("top", "--once", "--json", "--topic", flights, "--tower", tower, "--interval-s=0.1")
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    (topic,) = [row for row in found["topics"] if row["name"] == flights]
    assert (topic["records"], topic["partitions"]) == (3, 1)
    assert topic["bytes"] > 0
    assert [row["end"] for row in found["partitions"]] == [3]
    assert {row["kind"] for row in found["nodes"]} >= {"tower", "store"}
    assert [row["here"] for row in found["stores"]] == [True]
    assert found["cluster"]["stores"] == 1


def test_it_follows_in_a_terminal_until_q(tower: str, flights: str) -> None:
    ours, its = pty.openpty()
    arguments = command(["top", "--tower", tower, "--interval-s", "0.1"])
    variables = environment(TERM="xterm", COLUMNS="120", LINES="40")
    said = b""
    with subprocess.Popen(arguments, stdin=its, stdout=its, stderr=its, env=variables) as process:
        os.close(its)
        os.set_blocking(ours, False)

        def shows(*words: bytes) -> bool:
            nonlocal said
            with contextlib.suppress(OSError):  # nothing there yet, or no more to come
                said += os.read(ours, 1 << 16)
            return all(word in said for word in words)

        wait_until(lambda: shows(b"flights", b"q end"), "the topics are shown")
        said = b""
        os.write(ours, b"n")
        wait_until(lambda: shows(b"KIND", b"tower"), "the nodes are shown")
        os.write(ours, b"q")
        wait_until(lambda: shows() or process.poll() is not None, "it ends")
        assert process.wait() == 0
    os.close(ours)


def test_to_be_stopped_is_its_end(tower: str, flights: str) -> None:
    with Dafka("top", "--json", "--tower", tower, "--interval-s", "0.1") as looking:
        assert looking.out.next()
        assert looking.stop(signal.SIGINT) == 0


def test_without_stores_it_says_so(lone_tower: str) -> None:
    done = refusal(1, "top", "--once", "--tower", lone_tower, "--timeout-s", "0.5")
    assert "no store was heard of" in done

"""Contexts that end with ``close``."""

import subprocess
import sys
from contextlib import nullcontext
from importlib import metadata

import pytest

from dafka_core.system.closing import Closing
from dafka_core.system.distribution import this_version


class Counted(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("divisor", [0, 1])
def test_leaving_closes_and_an_error_goes_on(divisor: int) -> None:
    counted = Counted()
    with nullcontext() if divisor else pytest.raises(ZeroDivisionError), counted as entered:
        assert (entered, counted.closed) == (counted, 0)
        _ = 1 // divisor
    assert counted.closed == 1


GREENLETS = """
import _thread, queue, threading

waiting = []

def start_new_thread(function, arguments=(), named=None):
    waiting.append((function, arguments))  # it runs when this thread yields: a wait in C does not
    return len(waiting)

def patch(module):
    start_new_thread.__module__ = module
    _thread.start_new_thread = start_new_thread
    threading._start_new_thread = threading._start_joinable_thread = start_new_thread
"""
"""As gevent and eventlet do it."""

QUEUES = """
class SimpleQueue(queue.SimpleQueue):
    pass

SimpleQueue.__module__ = "gevent.queue"
queue.SimpleQueue = SimpleQueue
"""

TRACED = """
import _thread, threading
original = _thread.start_new_thread

def traced(*arguments):
    return original(*arguments)

_thread.start_new_thread = threading._start_new_thread = traced
"""
"""As debuggers do it."""

NODES = {
    "Producer": "Producer('t', tower=TOWER)",
    "Consumer": "Consumer(tower=TOWER)",
    "Reader": "Reader(tower=TOWER)",
    "Tower": "Tower(sub_address='tcp://127.0.0.1:0', pub_address='tcp://127.0.0.1:0')",
    "Store": "Store('/nowhere', tower=TOWER)",
    "EmbeddedCluster": "EmbeddedCluster()",
    "StoreClient": "StoreClient(StoreLocation('', ('grpc://127.0.0.1:1',)))",
    "MetricsEndpoint": "MetricsEndpoint()",
}

MAKE = """
from dafka_core import *
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.ops.endpoint import MetricsEndpoint
TOWER = "127.0.0.1:1:1"
try:
    {made}
except ConfigError as error:
    print(error.option, error)
"""


def said(*pieces: str) -> str:
    done = ended(*pieces)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(*pieces: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "".join(pieces)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", ["gevent.thread", "eventlet.green.thread", "another"])
def test_no_node_waits_for_a_greenlet(module: str) -> None:
    makes = [MAKE.format(made=node) for node in NODES.values()]
    refusals = said(GREENLETS, f"patch({module!r})", *makes).splitlines()
    assert len(refusals) == len(NODES)
    for refusal in refusals:
        assert refusal.startswith(f"threading module 'threading' = '{module}': is patched")
        assert "monkey.patch_all(thread=False, queue=False)" in refusal


def test_a_process_that_is_patched_later_makes_no_more_nodes() -> None:
    later = MAKE.format(made="patch('gevent.thread'); " + NODES["Reader"])
    assert said(GREENLETS, later).startswith("threading module 'threading' = 'gevent.thread'")


def test_queues_of_greenlets_are_refused_too() -> None:
    refusal = said("import queue", QUEUES, MAKE.format(made=NODES["Producer"]))
    assert refusal.startswith("queue module 'queue' = 'gevent.queue': is patched")


def test_the_command_line_says_so() -> None:
    cli = "from dafka_core.cli import main\nmain(['status', '--tower', '127.0.0.1:1:1'])"
    done = ended(f"{GREENLETS}\npatch('gevent.thread')\n{cli}")
    assert done.returncode == 2
    assert done.stderr.startswith("dafka: module 'threading' = 'gevent.thread': is patched")


def test_real_threads_that_a_debugger_starts_are_taken() -> None:
    tower = f"with {NODES['Tower']} as node: print('runs', node.is_open)"
    assert said(TRACED, MAKE.format(made=tower)) == "runs True\n"


def test_the_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_version() == metadata.version("dafka-spark")

    def find_none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", find_none)
    assert this_version() == "of its source"

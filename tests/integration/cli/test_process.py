"""A signal stops ``dafka`` whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dafka_core.testing import wait_until
from tests.integration.cli.processes import PATIENCE_S, Dafka, environment

# The signal goes to another thread than the one that waits: nothing interrupts the system call
# that the main thread is in, as when a signal comes just before that call.
WAITING = """
import os, signal, sys, threading, time
from pathlib import Path
from dafka_core.cli import process

def state():
    return Path(f"/proc/self/task/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[0]

def send():
    asleep = 0
    while asleep < 20:
        time.sleep(0.01)
        asleep = asleep + 1 if state() == "S" else 0
    signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))
    threading.Event().wait()

process.handle_stop_signals()
threading.Thread(target=send, daemon=True).start()
try:
    %s
except process.Stopped:
    print("stopped")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("wait", ["threading.Event().wait()", "os.read(0, 1)"])
def test_a_signal_is_seen_that_did_not_interrupt_the_main_thread(number: int, wait: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING % wait, str(int(number))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        try:
            assert process.stdout is not None
            process.wait(PATIENCE_S)
            assert process.stdout.read() == b"stopped\n"
            assert process.returncode == 0
        finally:
            process.kill()


def test_two_signals_at_once_are_one(lone_tower: str) -> None:
    """As of Ctrl-C and of a parent that ends by it: one is due while the other is seen."""
    with Dafka("consume", "t", "--tower", lone_tower) as consumer:
        assert consumer.err.next() == b"topic t, from latest"
        stat = Path(f"/proc/{consumer.process.pid}/stat")
        consumer.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        consumer.process.send_signal(signal.SIGTERM)
        consumer.process.send_signal(signal.SIGINT)
        os.kill(consumer.process.pid, signal.SIGCONT)
        assert consumer.wait() == 0
        assert [line for line in consumer.err.rest() if b"; waiting for one" not in line] == []


@pytest.mark.parametrize("module", ["typer", "zmq"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_starts_ends_it_without_a_word(
    module: str, number: int, lone_tower: str, tmp_path: Path
) -> None:
    """While it imports: typer for every command, ZeroMQ for its node."""
    (tmp_path / f"{module}.py").write_text(
        f"import os\nos.kill(os.getpid(), {int(number)})\n"
        "import time\ntime.sleep(0.2)\n"
        "import sys\nsys.path.remove(os.path.dirname(__file__))\n"
        f"del sys.modules[{module!r}]\nimport {module}\n"
        f"sys.modules[__name__] = {module}\n"
    )
    path, at = os.pathsep.join([str(tmp_path), *filter(None, sys.path)]), ("--tower", lone_tower)
    with Dafka("consume", "t", "--count", "1", *at, PYTHONPATH=path) as consumer:
        assert consumer.wait() in (128 + number, -number)
        assert consumer.err.rest() in ([], [b"topic t, from latest"])

"""A signal stops ``dafka`` whenever it comes; and the memory that its process keeps."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core import Tower
from dafka_core.cli import process
from dafka_core.cli.process import SOCKET, WATCHDOG, systemd_notified
from dafka_core.testing import wait_until
from tests.integration.cli.processes import ANY_PORTS, PATIENCE_S, Dafka, ended, environment

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

process.signals.handle()
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


DROPPING = """
import os, sys, threading
from dafka_core.cli import process

def closed_by_a_signal():
    try:
        yield
    finally:
        os.kill(os.getpid(), int(sys.argv[1]))

process.signals.handle()
generator = closed_by_a_signal()
next(generator)
try:
    del generator
    print("dropped", flush=True)
    threading.Event().wait()
except process.Stopped as stopped:
    print(stopped.number)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_seen_though_python_drops_its_exception(number: int) -> None:
    """As any that is raised in a generator which is being collected."""
    script = [sys.executable, "-c", DROPPING, str(int(number))]
    done = ended(script, check=True)
    assert (done.stdout.split(), done.stderr) == ([b"dropped", b"%d" % number], b"")


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


@pytest.mark.parametrize("module", ["click", "zmq"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_starts_ends_it_without_a_word(
    module: str, number: int, lone_tower: str, tmp_path: Path
) -> None:
    """While it imports: Click for every command, ZeroMQ for its node."""
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


FULL = 10 + int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
"""More words than a socket buffers for a slow reader."""

SIGN_S = 0.01
USEC = str(int(3 * SIGN_S * 1e6))


class Manager:
    """A socket as systemd's."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(PATIENCE_S)

    def hears(self) -> str:
        return self._socket.recv(4_096).decode()

    def hears_for(self, silence_s: float, most: int = 100) -> list[str]:
        """Read until a pause of this length, or up to this many words."""
        self._socket.settimeout(silence_s)
        heard: list[str] = []
        try:
            while len(heard) < most:
                heard.append(self.hears())
        except TimeoutError:
            pass
        return heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    yield manager
    manager.close()


@pytest.fixture
def tower() -> Iterator[Tower]:
    with Tower(sub_address="tcp://127.0.0.1:0", pub_address="tcp://127.0.0.1:0") as tower:
        yield tower


def test_a_node_says_that_it_serves_lives_and_stops(manager: Manager) -> None:
    variables = {SOCKET: manager.address, WATCHDOG: "150000"}
    with Dafka("tower", *ANY_PORTS, **variables) as tower:
        assert manager.hears() == "READY=1"
        tower.ready()
        assert [manager.hears(), manager.hears()] == ["WATCHDOG=1"] * 2
        tower.process.send_signal(signal.SIGTERM)
        assert {*iter(manager.hears, "STOPPING=1")} <= {"WATCHDOG=1"}
        assert tower.wait() == 0


def test_a_node_that_has_ended_gives_no_sign_of_life(
    manager: Manager, tower: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET, manager.address)
    monkeypatch.setenv(WATCHDOG, USEC)
    with systemd_notified(tower):
        assert [manager.hears() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
        tower.close()
        signs = manager.hears_for(50 * SIGN_S)
        assert len(signs) < 100  # those on their way, and then none


def test_a_socket_without_a_file_is_told_and_no_sign_given_where_none_is_asked_for(
    tower: Tower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = f"dafka-test-{tmp_path}"
    manager = Manager(f"\0{name}")
    monkeypatch.setenv(SOCKET, f"@{name}")
    monkeypatch.delenv(WATCHDOG, raising=False)
    with systemd_notified(tower):
        assert manager.hears() == "READY=1"
    assert manager.hears() == "STOPPING=1"
    manager.close()


def test_a_manager_that_reads_nothing_holds_nobody_up(
    manager: Manager, tower: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET, manager.address)
    monkeypatch.setattr("dafka_core.cli.process.PATIENCE_S", 0.001)
    for _ in range(FULL):  # never read; its last words wait in vain
        with systemd_notified(tower):
            pass
    assert len(manager.hears_for(0.1, FULL)) < FULL


def test_a_node_works_on_where_nobody_listens(
    tower: Tower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for address in (str(tmp_path / "gone"), "", "x" * 200):
        monkeypatch.setenv(SOCKET, address)
        with systemd_notified(tower):
            assert tower.is_open


PIECES = 3
# Frees the same buffers repeatedly, and counts the system's page faults.
BURSTS = f"""
import resource, sys
from dafka_core.cli.process import LARGEST_KEPT_BYTES, keep_freed_memory

def burst():
    pieces = [bytearray(LARGEST_KEPT_BYTES - 4096) for _ in range({PIECES})]
    for piece in pieces:
        piece[::4096] = b"x" * len(piece[::4096])

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    keep_freed_memory()
burst()
before = pages()
for _ in range(5):
    burst()
print(pages() - before)
"""


def pages_of_bursts(mode: str) -> int:
    command = [sys.executable, "-c", BURSTS, mode]
    told = subprocess.run(command, capture_output=True, env=environment(), check=True)
    return int(told.stdout)


def test_memory_that_was_freed_is_there_for_the_next_burst() -> None:
    assert 10 * pages_of_bursts("keep") < pages_of_bursts("give back")


def test_with_another_c_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def other_library(name: object) -> object:
        asked.append(name)
        return object()  # it has no mallopt

    monkeypatch.setattr(ctypes, "CDLL", other_library)
    process.keep_freed_memory()
    assert asked == [None]

"""Dafka's nodes as the command line starts them: stopped, killed and observed."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from dafka_core.flight.store_location import StoreLocation
from tests.chaos.harness import PATIENCE_S, ChaosError, Worker, wait_until
from tests.forked import Forked

READY = b"READY "
PROGRAM = "dafka_core.cli"
ROOT = Path(__file__).parents[2]

Words = Sequence[str]


_PADDING = re.compile(rb"\.{64,}")


def _counted(padding: re.Match[bytes]) -> bytes:
    return b"<%d>" % len(padding[0])


_PADDED = re.compile("<([0-9]+)>$")


def _padding(counted: re.Match[str]) -> str:
    return "." * int(counted[1])


class Delivered(NamedTuple):
    """A record as a consumer printed it."""

    partition: str
    offset: int
    value: str


class Node:
    """``dafka WHAT``, or another module's program, in a process; leaving the context kills it.

    ``prefix`` is a command that runs it, such as ``nsenter``. Its messages go to the file ``log``.
    """

    def __init__(
        self,
        what: str,
        arguments: Sequence[str],
        log: Path,
        prefix: Words = (),
        module: str = PROGRAM,
    ) -> None:
        self.what = what
        self.log = log
        self._gate = threading.Event()  # closed: what the node prints is lost
        self._gate.set()
        self.lines: list[bytes] = []
        self.process: subprocess.Popen[bytes] | Forked
        with log.open("ab") as errors:
            if prefix or module != PROGRAM:
                self.process = subprocess.Popen(
                    [*prefix, sys.executable, "-m", module, what, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment(),
                )
            else:
                self.process = Forked([what, *arguments], errors, environment())
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """Return its messages, and earlier ones in the same log."""
        return self.log.read_text(errors="replace")

    def ready(self) -> dict[str, Any]:
        """Wait until the node serves; return its ready line.

        Raises:
            ChaosError: it has ended, or does not come up.
        """
        self.wait_started()
        if not self.lines:
            raise ChaosError(f"{self.what} ended with {self.process.poll()}: {self.said[-500:]}")
        facts: dict[str, Any] = json.loads(self.lines[0].removeprefix(READY))
        return facts

    def location(self) -> StoreLocation:
        """Wait until a store serves; return where."""
        ready = self.ready()
        return StoreLocation(str(ready["address"]), tuple(map(str, ready["flight"])))

    def wait_started(self) -> bool:
        """Wait until the node serves or has ended; return whether it serves."""
        wait_until(
            lambda: self.lines or not self._reading.is_alive(), f"{self.what} serves or has ended"
        )
        return bool(self.lines)

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self.process.kill()
        self.close()

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until it has ended; return its exit code.

        Raises:
            ChaosError: it still runs.
        """
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ChaosError(f"{self.what} has not ended after {timeout_s:g} s") from None
        self._reading.join(PATIENCE_S)
        return code

    def pause(self) -> None:
        """Stop the process with all its connections."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop_reading(self) -> None:
        """Stop reading its output: it blocks when the pipe is full."""
        self._gate.clear()

    def read_on(self) -> None:
        self._gate.set()

    def limit_file(self, size_bytes: int) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._gate.set()
        self.process.wait()
        self._reading.join(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # Only the length of the padding matters.
            self.lines.append(_PADDING.sub(_counted, line))
            self._gate.wait()


class Feeder(Node):
    """``dafka produce``, a value for each line."""

    def __init__(
        self, topic: str, tower: str, log: Path, prefix: Words = (), options: Words = ()
    ) -> None:
        waits = ("--close-timeout-s", str(PATIENCE_S), "--publish-timeout-s", str(PATIENCE_S))
        super().__init__("produce", [topic, "--tower", tower, *waits, *options], log, prefix)
        self.fed: list[str] = []

    def wait_joined(self) -> None:
        wait_until(lambda: "partition" in self.said or not self.running, "a producer has joined")

    def partition(self) -> str:
        """The address under which it publishes."""
        found = re.search("partition ([0-9A-F]{32})", self.said)
        if found is None:
            raise ChaosError(f"a producer has not joined: {self.said[-500:]}")
        return found[1]

    def feed(self, values: Sequence[str]) -> None:
        """Publish; blocks while too much is unacknowledged."""
        assert self.process.stdin is not None
        self.fed += values
        with contextlib.suppress(BrokenPipeError):  # its exit code tells
            self.process.stdin.write("".join(f"{value}\n" for value in values).encode())
            self.process.stdin.flush()

    def finish(self) -> None:
        """End the input; return when everything is acknowledged.

        Raises:
            ChaosError: it is not.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.end(2 * PATIENCE_S)
        if code or f"{len(self.fed)} records acknowledged" not in self.said:
            raise ChaosError(f"a producer ended with {code}: {self.said[-500:]}")


class Steady(Worker):
    """Feeds values to a producer in chunks."""

    def __init__(self, feeder: Feeder, name: str, each: int, pause_s: float, pad: int = 0) -> None:
        super().__init__(name)
        self.feeder = feeder
        self._pad = pad
        self._each = each
        self._pause_s = pause_s
        self.start()

    def fed(self) -> list[str]:
        """Stop; wait until all is acknowledged, and return all values."""
        self.finish()
        self.feeder.finish()
        return self.feeder.fed

    def _work(self) -> None:
        number = 0
        while not self._done.is_set() and self.feeder.running:
            numbers = range(number, number + self._each)
            self.feeder.feed([f"{self.name}-{n}".ljust(self._pad, ".") for n in numbers])
            number += self._each
            self._done.wait(self._pause_s)


class Listener(Node):
    """``dafka consume``: all records of a topic from the first one on."""

    def __init__(
        self, topic: str, tower: str, log: Path, prefix: Words = (), options: Words = ()
    ) -> None:
        arguments = [topic, "--tower", tower, "--from-beginning", "--json", *options]
        super().__init__("consume", arguments, log, prefix)

    def wait_joined(self) -> None:
        wait_until(lambda: "from earliest" in self.said or not self.running, "a consumer joined")

    def wait_for(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        wait_until(
            lambda: len(self.lines) >= count or not self.running,
            lambda: f"a consumer, which has {len(self.lines)} records, has {count}",
            timeout_s,
        )

    def delivered(self, settle_s: float = 0.3) -> list[Delivered]:
        """Return all that it has printed, after a moment in which more could come.

        Raises:
            ChaosError: a partition's records are out of order.
        """
        time.sleep(settle_s)
        records = []
        next_offsets: dict[str, int] = {}
        for line in list(self.lines):
            found = json.loads(line)
            record = Delivered(found["partition"], found["offset"], found["value"])
            expected = next_offsets.get(record.partition, 0)
            if record.offset != expected:
                raise ChaosError(
                    f"partition {record.partition}: a consumer delivered offset {record.offset} "
                    f"where {expected} was due"
                )
            next_offsets[record.partition] = expected + 1
            records.append(record)
        return records

    def values(self, settle_s: float = 0.3) -> list[str]:
        """Return the values of ``delivered``."""
        return [_PADDED.sub(_padding, record.value) for record in self.delivered(settle_s)]


def environment() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if name != "DAFKA_TOWER"}
    # A prefix may change the working directory, and the machine is reachable only from its
    # network.
    return kept | {"PYTHONPATH": str(ROOT), "DAFKA_INSECURE": "true"}


def start_tower(
    log: Path, ports: tuple[int, int] = (0, 0), host: str = "127.0.0.1", prefix: Words = ()
) -> Node:
    """Start a tower without waiting for it."""
    sub, pub = (f"tcp://{host}:{port}" for port in ports)
    arguments = ["--exit-with-parent", "--sub-address", sub, "--pub-address", pub]
    return Node("tower", arguments, log, prefix)


def start_store(
    directory: Path | str, tower: str, log: Path, prefix: Words = (), options: Words = ()
) -> Node:
    """Start a store without waiting for it."""
    arguments = ["--exit-with-parent", "--dir", str(directory), "--tower", tower, *options]
    return Node("store", arguments, log, prefix)


class Site:
    """A machine on which nodes join a tower; ``stack`` ends them."""

    def __init__(
        self,
        directory: Path,
        stack: contextlib.ExitStack,
        tower: str,
        prefix: Words = (),
        options: Words = (),
    ) -> None:
        self.directory = directory
        self.tower = tower
        self._stack = stack
        self._prefix = prefix
        self._options = options

    def store(self, name: str = "store", *options: str) -> Node:
        """Start a store without waiting for it."""
        given = self._prefix, (*self._options, *options)
        node = start_store(self.directory / name, self.tower, self._log(name), *given)
        return self._stack.enter_context(node)

    def feeder(self, topic: str, name: str = "feeder", *options: str) -> Feeder:
        """Start a producer, which has joined."""
        given = self._prefix, (*self._options, *options)
        node = self._stack.enter_context(Feeder(topic, self.tower, self._log(name), *given))
        node.wait_joined()
        return node

    def listener(self, topic: str, name: str = "consumer") -> Listener:
        """Start a consumer, which has joined."""
        given = self._prefix, self._options
        node = self._stack.enter_context(Listener(topic, self.tower, self._log(name), *given))
        node.wait_joined()
        return node

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


class TowerSite(Site):
    """A machine with a tower of its own."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.tower_node = stack.enter_context(start_tower(directory / "tower.log"))
        facts = self.tower_node.ready()
        self._ports = int(facts["sub_port"]), int(facts["pub_port"])
        super().__init__(directory, stack, str(facts["tower"]))

    def restart_tower(self) -> None:
        self.tower_node = self._stack.enter_context(start_tower(self._log("tower"), self._ports))
        self.tower_node.ready()


def memory_mb(pid: int) -> float:
    """Return a process's resident memory without file pages, in MB; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "RssAnon":
                return int(value.split()[0]) * 1024 / 1e6
    return 0.0

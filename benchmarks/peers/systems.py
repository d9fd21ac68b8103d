"""The servers under comparison, each on the loopback with its own directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import kafka_broker, processes
from dafka_core import EmbeddedCluster, Tower

START_TIMEOUT_S: Final = 60.0

NATS: Final = Path(__file__).parent / "nats"  # a Go module that pins nats-server

NATS_SETTINGS: Final = """
listen: "127.0.0.1:-1"
ports_file_dir: "{directory}"
max_payload: 67108864
jetstream {{ store_dir: "{directory}/store", sync_interval: {sync} }}
"""

C_STORE: Final = "dafka_stored"
C_SETTINGS: Final = """
server
    verbose = 0
beacon
    sub_address = {sub}
    pub_address = {pub}
store
    db = {directory}
"""


class Server(NamedTuple):
    """A running server: its address for clients, its processes, and the directory of its data."""

    address: str
    pids: list[int]
    directory: Path


System = Callable[[Path, int], AbstractContextManager[Server]]
"""Starts a server in a directory; topics have a number of partitions."""


@contextlib.contextmanager
def dafka(directory: Path, partitions: int) -> Iterator[Server]:
    """A tower and a store, which syncs records before it acknowledges them."""
    del partitions  # a partition is a producer
    with EmbeddedCluster(directory=directory) as cluster:
        yield Server(cluster.tower, processes.stores(), directory)


@contextlib.contextmanager
def kafka(directory: Path, partitions: int) -> Iterator[Server]:
    """A broker with its defaults, which acknowledges records in memory."""
    with kafka_broker.broker(partitions=partitions, directory=directory) as address:
        yield Server(address, processes.named("kafka.Kafka"), directory)


@contextlib.contextmanager
def kafka_synced(directory: Path, partitions: int) -> Iterator[Server]:
    """A broker that syncs each batch before it acknowledges it."""
    settings = ["log.flush.interval.messages=1"]
    with kafka_broker.broker(
        partitions=partitions, directory=directory, settings=settings
    ) as address:
        yield Server(address, processes.named("kafka.Kafka"), directory)


def nats(directory: Path, partitions: int) -> AbstractContextManager[Server]:
    """NATS JetStream with its default, which syncs every two minutes."""
    del partitions  # a stream each
    return _nats(directory, "2m")


def nats_synced(directory: Path, partitions: int) -> AbstractContextManager[Server]:
    """NATS JetStream that syncs each message before it acknowledges it."""
    del partitions
    return _nats(directory, "always")


@contextlib.contextmanager
def c_dafka(directory: Path, partitions: int) -> Iterator[Server]:
    """The C implementation's store, which does not sync; our tower and clients."""
    del partitions
    with Tower(sub_address="tcp://127.0.0.1:0", pub_address="tcp://127.0.0.1:0") as tower:
        host, sub, pub = tower.tower.split(":")
        settings = directory / "store.cfg"
        places = {"sub": f"tcp://{host}:{sub}", "pub": f"tcp://{host}:{pub}"}
        settings.write_text(C_SETTINGS.format(**places, directory=directory / "store"))
        with _running([C_STORE, "-c", str(settings)]) as pid:
            yield Server(tower.tower, [pid], directory)


SYSTEMS: Final[dict[str, System]] = {
    "dafka": dafka,
    "kafka": kafka,
    "kafka-synced": kafka_synced,
    "nats": nats,
    "nats-synced": nats_synced,
    "c-dafka": c_dafka,
}

CLIENTS: Final = {
    "dafka": "dafka",
    "kafka": "kafka",
    "kafka-synced": "kafka",
    "nats": "nats",
    "nats-synced": "nats",
    "c-dafka": "dafka",
}
"""The kind of client of each system."""


def available() -> list[str]:
    """Return the systems that this machine can run: C Dafka if it is installed."""
    return [name for name in SYSTEMS if name != "c-dafka" or shutil.which(C_STORE)]


def disk_bytes(directory: Path) -> int:
    """Return the allocated bytes of all files in a directory."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    return sum(path.stat().st_blocks * 512 for path in paths)


@contextlib.contextmanager
def _nats(directory: Path, sync: str) -> Iterator[Server]:
    settings = directory / "nats.conf"
    settings.write_text(NATS_SETTINGS.format(directory=directory, sync=sync))
    with _running([str(nats_server()), "-c", str(settings)]) as pid:
        ports = directory / f"nats-server_{pid}.ports"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ports.exists() or not ports.stat().st_size:
            if time.monotonic() > deadline:
                raise RuntimeError("nats-server did not start")
            time.sleep(0.05)
        address = ports.read_text().partition("nats://")[2].partition('"')[0]
        host, _, port = address.partition(":")
        with contextlib.closing(socket.create_connection((host, int(port)), START_TIMEOUT_S)):
            pass
        yield Server(f"nats://{address}", [pid], directory)


def nats_server() -> Path:
    """Return the server's program, built once.

    Raises:
        RuntimeError: Go is missing, or reaches no module proxy.
    """
    program = Path(__file__).parents[2] / "build" / "nats-server"
    if not program.exists():
        if shutil.which("go") is None:
            raise RuntimeError("'go' is missing: install it (Debian: golang)")
        part = program.with_suffix(f".{os.getpid()}")
        build = ["go", "build", "-o", str(part), "github.com/nats-io/nats-server/v2"]
        done = subprocess.run(build, cwd=NATS, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Go cannot build nats-server: {done.stderr[-500:]}")
        part.rename(program)
    return program


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[int]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.kill()

"""Apache Kafka, fetched with Maven: a broker on the loopback, and the Java clients' tools."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).parent / "kafka" / "pom.xml"

NEWEST: Final = POM.with_name("newest_clients.xml")  # the clients' tools of Kafka 4 only
STREAMS: Final = POM.with_name("streams.xml")  # Kafka Streams
HEAP: Final = "-Xmx1g"  # a broker's default heap
START_TIMEOUT_S: Final = 60.0  # time to start a broker on a loaded machine


def jars(pom: Path = POM) -> Path:
    """Return the jars' directory; they are fetched once for each POM.

    Raises:
        RuntimeError: Java or Maven is missing, or Maven reaches no repository.
    """
    said = sha256(pom.read_bytes()).hexdigest()[:8]
    found = Path(__file__).parents[1] / "build" / f"kafka-jars-{said}"
    if not found.exists():
        for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
            if shutil.which(program) is None:
                raise RuntimeError(f"'{program}' is missing: install it (Debian: {package})")
        part = found.with_suffix(f".{uuid.uuid4().hex}")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={part}"]
        fetch = ["mvn", "-q", "-B", "-f", str(pom), *goal]
        done = subprocess.run(fetch, check=False, capture_output=True)
        if done.returncode:
            why = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise RuntimeError(f"Maven cannot fetch Kafka: {why[-500:]}")
        with contextlib.suppress(OSError):  # another process was faster
            part.rename(found)
    return found


def sparks_jars() -> list[Path]:
    """Return the jars of Spark's connector for Kafka."""
    names = ("spark-*.jar", "commons-pool2-*.jar", "kafka-clients-*.jar")
    return [path for name in names for path in sorted(jars().glob(name))]


def java(main: str, arguments: Sequence[str], *options: str, pom: Path = POM) -> list[str]:
    """Return the command line of a program in the jars."""
    return ["java", *options, "-cp", f"{jars(pom)}/*", main, *arguments]


@contextlib.contextmanager
def broker(
    *, partitions: int, directory: Path | None = None, settings: Sequence[str] = ()
) -> Iterator[str]:
    """Start a broker in KRaft mode; yield its address.

    Topics are created at their first use, with ``partitions`` partitions.  The directory is a
    temporary one by default.  ``settings`` are lines that its properties begin with.
    """
    with contextlib.ExitStack() as opened:
        port, controller_port = opened.enter_context(_kept_ports(2))
        if directory is None:
            made = tempfile.TemporaryDirectory(prefix="dafka-bench-")
            directory = Path(opened.enter_context(made))
        properties = directory / "server.properties"
        properties.write_text(
            "\n".join(
                (
                    *settings,
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"controller.quorum.voters=1@127.0.0.1:{controller_port}",
                    f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
                    f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
                    "controller.listener.names=CONTROLLER",
                    f"log.dirs={directory}/logs",
                    f"num.partitions={partitions}",
                    "offsets.topic.replication.factor=1",
                    "group.initial.rebalance.delay.ms=0",
                )
            )
        )
        formatting = ["format", "-t", str(uuid.uuid4()), "-c", str(properties)]
        subprocess.run(java("kafka.tools.StorageTool", formatting), check=True, capture_output=True)
        command = java("kafka.Kafka", [str(properties)], HEAP, "-XX:+UseG1GC")
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdout=errors, stderr=errors)
            try:
                _wait_until_it_serves(process, port)
                yield f"127.0.0.1:{port}"
            finally:
                process.kill()
                process.wait()


def _wait_until_it_serves(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError("the broker did not start")


@contextlib.contextmanager
def _kept_ports(count: int) -> Iterator[list[int]]:
    """Reserve ports from the system: a broker can't let it choose.

    A socket that binds to such a port by its number may listen there.
    """
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            kept = held.enter_context(socket.socket())
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(("127.0.0.1", 0))
            ports.append(kept.getsockname()[1])
        yield ports

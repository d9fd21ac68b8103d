"""Malformed requests for a gateway, over sockets: ``python -m tests.integration.kafka.fuzz``."""

import argparse
import random
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dafka_core import EmbeddedCluster
from tests.integration.kafka.malformed import malformed

WAIT_S: Final = 1.0  # timeout of an answer: a mutated request may ask to wait for hours
ANSWER_S: Final = 60.0  # timeout of a well-formed request on a busy machine

THREADS: Final = 4
LAST: Final = 0x5EAF00D
"""Correlation id of the well-formed request that follows a malformed one."""

_LAST: Final = struct.pack(">ihhih", 10, 18, 0, LAST, -1)


@dataclass
class Outcomes:
    """The outcomes of the requests."""

    answered: int = 0
    closed: int = 0
    cut: int = 0
    waiting: int = 0  # requests without an answer, while another client got one
    hung: list[str] = field(default_factory=list)
    """Seeds of requests after which no client got an answer."""

    def __str__(self) -> str:
        said = f"{self.answered} answered, {self.closed} closed, {self.cut} cut short"
        return f"{said}, {self.waiting} waiting"


def send(where: tuple[str, int], seed: str, outcomes: Outcomes) -> None:
    """Send one malformed request on its own connection; record the outcome."""
    sent = malformed(random.Random(seed))
    with socket.socket() as client:
        # Use many loopback addresses: each has its own ephemeral ports.
        client.bind((f"127.0.0.{2 + hash(seed) % 200}", 0))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.settimeout(ANSWER_S)
        client.connect(where)
        client.settimeout(WAIT_S)
        try:
            client.sendall(sent.octets if sent.is_cut else sent.octets + _LAST)
            if sent.is_cut:
                outcomes.cut += 1
            elif _answers(client):
                outcomes.answered += 1
            else:
                outcomes.closed += 1
        except TimeoutError:
            if is_there(where):
                outcomes.waiting += 1
            else:
                outcomes.hung.append(seed)
        except ConnectionError:
            outcomes.closed += 1


def _answers(client: socket.socket) -> bool:
    """Return whether the last request is answered; False if the connection was closed."""
    with client.makefile("rb") as answers:
        while len(head := answers.read(8)) == 8:
            size_bytes, number = struct.unpack(">ii", head)
            if number == LAST:
                return True
            answers.read(size_bytes - 4)
    return False


def is_there(where: tuple[str, int]) -> bool:
    """Return whether a well-formed request is answered."""
    with suppress(OSError), socket.create_connection(where, timeout=ANSWER_S) as client:
        client.sendall(_LAST)
        return _answers(client)
    return False


def fuzz(where: tuple[str, int], seed: int, first: int, count: int) -> Outcomes:
    """Send requests ``first`` to ``first + count`` of a seed, from several threads."""
    outcomes = Outcomes()
    seeds = (f"{seed}-{number}" for number in range(first, first + count))
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda each: send(where, each, outcomes), seeds))
    return outcomes


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


def main() -> None:
    """Send many requests, and print the gateway's memory after each part of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    part = max(1, arguments.count // 20)
    with EmbeddedCluster(kafka=True) as cluster:
        host, port = cluster.bootstrap_servers.split(":")
        pid = cluster._stores[0]._process.pid
        for first in range(0, arguments.count, part):
            began = time.monotonic()
            outcomes = fuzz((host, int(port)), arguments.seed, first, part)
            rate = part / (time.monotonic() - began)
            print(f"{first + part}: {outcomes}; {memory_kib(pid)} KiB; {rate:.0f}/s", flush=True)
            if outcomes.hung:
                sys.exit(f"no answer and no end after {outcomes.hung}")
        if not is_there((host, int(port))):
            sys.exit("the gateway answers no more")


if __name__ == "__main__":
    main()

"""Row 15: librdkafka through a gateway, against the same client and an Apache Kafka broker.

Both keep records on the same disk.  The client is a process of its own, with its defaults, so that
everything is acknowledged by all that must.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import kafka_broker
from benchmarks.figures import Figure, compared, in_turns
from benchmarks.harness import Bench
from dafka_core import EmbeddedCluster

FULL_RECORDS = 2_000_000

SIZE_BYTES = 100

PARTITIONS = 2

GOALS = {"produce": 0.5, "consume": 0.7}


def run(bench: Bench) -> Iterator[Figure]:
    """Producing, then consuming what is there."""
    records = bench.part(FULL_RECORDS)
    with gateway() as ours, kafka_broker.broker(partitions=PARTITIONS) as theirs:
        servers = {"gateway": ours, "broker": theirs}
        full = {side: topic() for side in servers}
        for side, server in servers.items():
            rate("produce", server, full[side], records)
        for what, goal in GOALS.items():
            sides = {
                side: partial(rate, what, server, full[side] if what == "consume" else "", records)
                for side, server in servers.items()
            }
            name = f"librdkafka, {what}, {SIZE_BYTES} B"
            rates = in_turns(name, sides, bench.pairs, warm_ups=bench.warm)
            yield compared(name, rates["gateway"], rates["broker"], unit="M records/s", goal=goal)


@contextlib.contextmanager
def gateway() -> Iterator[str]:
    """A cluster of one store with a gateway; gives its address."""
    with EmbeddedCluster(kafka={"num_partitions": PARTITIONS}) as cluster:
        yield cluster.bootstrap_servers


def topic() -> str:
    """One that is not there yet."""
    return f"bench-{uuid.uuid4().hex}"


def rate(what: str, servers: str, name: str, records: int) -> float:
    """Millions of records a second, of a new topic unless one is named."""
    arguments = [what, servers, name or topic(), str(records), str(SIZE_BYTES), str(PARTITIONS)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kafka_client", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    os.sync()
    return records / float(done.stdout) / 1e6

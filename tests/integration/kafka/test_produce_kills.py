"""A store with its gateway is killed repeatedly while clients write.

Acknowledged records exist afterwards; those of an idempotent producer exist once.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.kafka.numbers import NumberWriter, ends

ROUNDS = 3
EACH = 4_000
"""Records between two kills."""

PARTITIONS = 4
RETURN_S = 15.0
"""Limit of the time from a kill until each partition has an acknowledgement, with the restart."""


def test_what_was_written_and_not_answered_is_written_once(tmp_path: Path) -> None:
    """Responses wait for a stopped store when the gateway is killed."""
    with ForkedCluster(2, directory=tmp_path, kafka={"num_partitions": 2}) as cluster:
        writer = NumberWriter(cluster.bootstrap_servers)

        def is_written() -> bool:
            writer.begin(10)
            return sum(ends(cluster, 0).values()) > len(writer.acknowledged)

        for each in range(1, ROUNDS + 1):
            writer.write(each * EACH)
            with cluster.paused_store(1):
                wait_until(is_written, "records are on disk that are not acknowledged")
                cluster.kill_store(0)
            cluster.start_store(0)
        writer.finish()
        directory = cluster.store_directory(0)
    writer.check(directory)


@pytest.mark.parametrize(
    ("idempotent", "records"),
    [(True, EACH), (False, EACH), pytest.param(True, 300_000, marks=pytest.mark.nightly)],
)
def test_nothing_acknowledged_is_lost_and_nothing_of_an_idempotent_producer_doubled(
    tmp_path: Path, idempotent: bool, records: int
) -> None:
    with ForkedCluster(directory=tmp_path, kafka={"num_partitions": 2}) as cluster:
        writer = NumberWriter(cluster.bootstrap_servers, idempotent=idempotent)
        for each in range(1, ROUNDS + 1):
            writer.write(each * records)
            cluster.kill_store()
            cluster.start_store()
        writer.finish()
        directory = cluster.store_directory()
    writer.check(directory, once=idempotent)


@pytest.mark.parametrize("rounds", [1, pytest.param(ROUNDS, marks=pytest.mark.nightly)])
def test_each_partition_of_a_killed_gateway_is_written_soon_after_it_returns(
    tmp_path: Path, rounds: int
) -> None:
    kafka = {"num_partitions": PARTITIONS}
    with ForkedCluster(2, directory=tmp_path, kafka=kafka) as cluster:
        writer = NumberWriter(cluster.bootstrap_servers, partitions=PARTITIONS)
        for each in range(1, rounds + 1):
            writer.write(each * EACH // 2)
            cluster.kill_store(each % 2)
            killed_s = time.monotonic()
            writer.begin(EACH // 4)
            cluster.start_store(each % 2)
            while min(writer.acknowledged_s) < killed_s:
                assert time.monotonic() < killed_s + RETURN_S, writer.acknowledged_s
                writer.begin(PARTITIONS, 0.01)
        writer.finish()
        wait_until(lambda: ends(cluster, 0) == ends(cluster, 1), "both stores have the same")
        directories = [cluster.store_directory(index) for index in range(2)]
    for directory in directories:
        writer.check(directory)

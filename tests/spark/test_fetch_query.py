"""Option ``fetch``: the source of the records does not change the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from dafka_core.errors import ProtocolError
from dafka_core.protocol.beacons import decode_tower_beacon
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.nodes.peers import RawPeer
from tests.spark.c_store import CStore
from tests.spark.topics import Topics, run, texts

COUNT = 3_000


@pytest.fixture
def mesh(spark: SparkSession) -> Iterator[Topics]:
    """A tower and one store, to which no process of Spark has connected yet."""
    with ForkedCluster() as running:
        yield Topics(spark, running)


def nodes(peer: RawPeer) -> set[str]:
    """Return the nodes whose beacons the tower has received."""
    found = set()
    for frames in list(peer.beacons):
        try:
            found.add(decode_tower_beacon(frames).node)
        except ProtocolError:
            continue
    return found - {peer.address}


@pytest.mark.parametrize("fetch", ["local", "flight", "mesh", "auto"])
def test_rows_are_the_same_and_only_the_mesh_is_joined_by_executors(
    mesh: Topics, topic: str, fetch: str
) -> None:
    address = mesh.produce(topic, range(COUNT))
    with RawPeer(mesh.cluster.tower) as tower:
        wait_until(lambda: nodes(tower))
        others = {*mesh.cluster.stores, address}
        rows = mesh.batch(topic, fetch=fetch, minPartitions=2).collect()
        assert sorted(int(row["value"]) for row in rows) == [*range(COUNT)]
        assert sorted(row["offset"] for row in rows) == [*range(COUNT)]
        assert all(row["timestamp"] is not None for row in rows)
        joined = nodes(tower) - others
        assert len(joined) >= 2 if fetch == "mesh" else len(joined) == 1


def test_flight_and_the_mesh_in_one_query(mesh: Topics, topic: str, tmp_path: Path) -> None:
    """Only a C store has one of the partitions."""
    ours = mesh.produce(topic, range(COUNT))
    theirs = [b"theirs %d" % number for number in range(500)]
    with CStore(mesh.cluster.tower, topic, theirs, mesh.cluster.stores) as c_store:
        rows = mesh.batch(topic).collect()
        counts = Counter(row["partition"] for row in rows)
        assert counts == {ours: COUNT, c_store.partition: 500}
        assert texts(rows) == sorted([*map(str, range(COUNT)), *map(bytes.decode, theirs)])
        assert all((row["timestamp"] is None) == (row["partition"] != ours) for row in rows)
        seen: list[Row] = []
        run(mesh.stream(topic), tmp_path, seen.extend)
        assert texts(seen) == texts(rows)

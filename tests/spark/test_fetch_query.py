"""Option ``fetch`` in queries by a real Spark: the same rows from wherever they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from dafka_core import EmbeddedCluster
from dafka_core.errors import ProtocolError
from dafka_core.protocol.beacons import decode_tower_beacon
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.nodes.peers import RawPeer
from tests.spark.c_store import CStore
from tests.spark.topics import batch, produce, run, stream, texts

COUNT = 3_000


@pytest.fixture
def mesh() -> Iterator[EmbeddedCluster]:
    """A tower and one store, of which no process of Spark knows anything yet."""
    with ForkedCluster() as running:
        yield running


def nodes(peer: RawPeer) -> set[str]:
    """Who has told the tower that it is there."""
    found = set()
    for frames in list(peer.beacons):
        try:
            found.add(decode_tower_beacon(frames).node)
        except ProtocolError:
            continue
    return found - {peer.address}


@pytest.mark.parametrize("fetch", ["local", "flight", "mesh", "auto"])
def test_rows_are_the_same_and_only_the_mesh_is_joined_by_executors(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, fetch: str
) -> None:
    address = produce(mesh, topic, range(COUNT))
    with RawPeer(mesh.tower) as tower:
        wait_until(lambda: nodes(tower))
        others = {*mesh.stores, address}
        frame = batch(spark, mesh, subscribe=topic, fetch=fetch, minPartitions=2)
        rows = frame.collect()
        assert texts(rows) == sorted(map(str, range(COUNT)))
        assert sorted(row["offset"] for row in rows) == list(range(COUNT))
        assert all(row["timestamp"] is not None for row in rows)
        joined = nodes(tower) - others
        assert len(joined) >= 2 if fetch == "mesh" else len(joined) == 1


@pytest.mark.parametrize("fetch", ["local", "flight", "mesh", "auto"])
def test_streams(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path, fetch: str
) -> None:
    seen: list[Row] = []
    address = produce(cluster, topic, range(100))
    frame = stream(spark, cluster, subscribe=topic, fetch=fetch, maxOffsetsPerTrigger=60)
    run(frame, tmp_path, seen.extend)
    produce(cluster, topic, range(100, 130), address)
    run(frame, tmp_path, seen.extend)
    assert sorted(row["offset"] for row in seen) == list(range(130))
    assert texts(seen) == sorted(map(str, range(130)))


def test_where_nobody_can_connect_to_spark_nothing_joins_the_mesh(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    address = produce(mesh, topic, range(COUNT))
    uri = next(each for each in mesh.locations(0) if each.startswith("grpc://"))
    copy = f"{topic}-copy"
    with RawPeer(mesh.tower) as tower:
        wait_until(lambda: nodes(tower))
        source = {"stores": uri, "startingOffsets": "earliest"}
        writing = (
            spark.readStream.format("dafka")
            .options(subscribe=topic, maxOffsetsPerTrigger=COUNT // 2, **source)
            .load()
            .select("value")
            .writeStream.format("dafka")
            .options(stores=uri, topic=copy, checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert writing.awaitTermination(120)
        rows = spark.read.format("dafka").options(subscribe=copy, **source).load().collect()
        assert texts(rows) == sorted(map(str, range(COUNT)))
        assert nodes(tower) <= {*mesh.stores, address}


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_what_is_not_possible_is_said_before_anything_runs(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path, fetch: str
) -> None:
    produce(mesh, topic, range(3))
    mesh.kill_store()
    mesh.start_store(flight_port="off")
    says = rf"'fetch' = '{fetch}': no store of this mesh serves Arrow Flight"
    with pytest.raises(PySparkException, match=says):
        batch(spark, mesh, subscribe=topic, fetch=fetch).collect()
    with pytest.raises(PySparkException, match=says):
        run(stream(spark, mesh, subscribe=topic, fetch=fetch), tmp_path, print)
    assert batch(spark, mesh, subscribe=topic, fetch="auto").count() == 3


def test_no_such_way(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    with pytest.raises(PySparkException, match=r"'fetch' = 'fligth': must be one of auto, local"):
        batch(spark, cluster, subscribe=topic, fetch="fligth")


def test_flight_and_the_mesh_in_one_query(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """A partition that only a C node has, beside one of a store of ours."""
    ours = produce(mesh, topic, range(COUNT))
    theirs = [b"theirs %d" % number for number in range(500)]
    with CStore(mesh.tower, topic, theirs, mesh.stores) as c_store:
        rows = batch(spark, mesh, subscribe=topic).collect()
        found = {row["partition"]: 0 for row in rows}
        for row in rows:
            found[row["partition"]] += 1
        assert found == {ours: COUNT, c_store.partition: 500}
        assert texts(rows) == sorted([*map(str, range(COUNT)), *map(bytes.decode, theirs)])
        assert all((row["timestamp"] is None) == (row["partition"] != ours) for row in rows)
        seen: list[Row] = []
        run(stream(spark, mesh, subscribe=topic), tmp_path, seen.extend)
        assert texts(seen) == texts(rows)
        with pytest.raises(PySparkException, match=r"is only in stores that serve no Arrow"):
            batch(spark, mesh, subscribe=topic, fetch="flight").collect()

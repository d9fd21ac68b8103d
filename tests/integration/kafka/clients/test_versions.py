"""Clients that do not negotiate: they use the versions of the broker that they are told."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from dafka_core import EmbeddedCluster
from tests.forked import ForkedCluster
from tests.integration.kafka.clients.clients import PATIENCE_S

Version = tuple[int, ...]

WITH_GROUPS: Version = (0, 9)
WITH_ADMIN: Version = (0, 11)

QUICK = ((0, 8, 0), (1, 0), (2, 5), (4, 3))
"""The oldest and newest versions, and two between them; the others are for each night."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with ForkedCluster(kafka=True) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(each, marks=() if each in QUICK else pytest.mark.nightly, id=str(each))
        for each in BROKER_API_VERSIONS
    ],
)
def test_kafka_python_works_as_for_each_broker(cluster: EmbeddedCluster, version: Version) -> None:
    told = {"bootstrap_servers": cluster.bootstrap_servers, "api_version": version}
    topic = "python-" + "-".join(map(str, version))
    place = kafka.TopicPartition(topic, 0)
    group = topic if version >= WITH_GROUPS else None
    producer = kafka.KafkaProducer(enable_idempotence=version >= WITH_ADMIN, **told)
    try:
        sent = [producer.send(topic, b"%d" % each) for each in range(3)]
        assert [each.get(PATIENCE_S).offset for each in sent] == [0, 1, 2]
    finally:
        producer.close()
    with kafka.KafkaConsumer(
        topic,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=1_000 * PATIENCE_S,
        **told,
    ) as consumer:
        assert [next(consumer).value for _ in range(3)] == [b"0", b"1", b"2"]
        assert consumer.end_offsets([place]) == {place: 3}
        if group is not None:
            consumer.commit()
            assert consumer.committed(place) == 3
    if version >= WITH_ADMIN:
        administer(KafkaAdminClient(**told), topic)


def administer(admin: KafkaAdminClient, topic: str) -> None:
    try:
        admin.create_topics([NewTopic(f"{topic}-2", 2, 1)])
        admin.describe_groups([topic])
        admin.list_group_offsets(topic)
        admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        (described,) = admin.describe_topics([f"{topic}-2"])
        assert len(described["partitions"]) == 2
        admin.delete_topics([topic])
    finally:
        admin.close()


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_sarama_works_as_for_each_broker(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    source = Path(__file__).with_name("sarama")
    program = tmp_path / "sarama"
    subprocess.run(["go", "build", "-o", program, "."], cwd=source, check=True, timeout=600)
    with subprocess.Popen([program, cluster.bootstrap_servers], stdout=subprocess.PIPE) as running:
        lines = running.communicate(timeout=600)[0].decode().splitlines()
    assert [each for each in lines if not each.endswith(" ok")] == []
    assert len(lines) > 50

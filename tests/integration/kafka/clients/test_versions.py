"""Clients with a configured broker version, admin clients, and kcat where it is installed.

Debian's kcat has an older librdkafka than Python's clients bring.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioPartitions
from aiokafka.admin import NewTopic as AioTopic
from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    NewPartitions,
    NewTopic,
)
from kafka.errors import TopicAlreadyExistsError
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from dafka_core import EmbeddedCluster
from tests.forked import ForkedCluster
from tests.integration.kafka.clients.clients import PATIENCE_S, run

KCAT = shutil.which("kcat") or ""

Version = tuple[int, ...]

WITH_GROUPS: Version = (0, 9)
WITH_ADMIN: Version = (0, 11)
WITH_PARTITIONS: Version = (1, 1)

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
        administer(KafkaAdminClient(**told), topic, version)


def administer(admin: KafkaAdminClient, topic: str, version: Version) -> None:
    other, place = f"{topic}-2", kafka.TopicPartition(topic, 0)
    try:
        admin.create_topics([NewTopic(other, 2, 1)])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic(other, 2, 1)])
        admin.describe_groups([topic])
        offsets = admin.list_group_offsets(topic)
        assert offsets.get(topic, offsets)[place].offset == 3
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        configs = admin.describe_configs(asked, config_filter="all")
        assert configs["topic"][topic]["retention.ms"]["value"] == "-1"
        assert admin.delete_records({place: -1})[place]["low_watermark"] == 3
        if version >= WITH_PARTITIONS:
            admin.create_partitions({other: NewPartitions(5)})
            admin.delete_groups([topic])
        (described,) = admin.describe_topics([other])
        assert len(described["partitions"]) == (5 if version >= WITH_PARTITIONS else 2)
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()


def test_aiokafka_administers(cluster: EmbeddedCluster) -> None:
    async def work() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        await admin.start()
        try:
            await admin.create_topics([AioTopic("aio", 2, 1)])
            again = await admin.create_topics([AioTopic("aio", 2, 1)])
            assert [error for _, error, _ in again.topic_errors] == [36]
            await admin.create_partitions({"aio": AioPartitions(5)})
            (found,) = await admin.describe_topics(["aio"])
            assert len(found["partitions"]) == 5
            assert (await admin.describe_cluster())["cluster_id"]
            deleted = await admin.delete_topics(["aio"])
            assert [error for _, error in deleted.topic_error_codes] == [0]
            assert "aio" not in await admin.list_topics()
        finally:
            await admin.close()

    run(work())


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


@pytest.mark.skipif(not KCAT, reason="kcat is not installed (Debian: apt-get install kcat)")
def test_kcat_lists_writes_and_reads(cluster: EmbeddedCluster) -> None:
    def kcat(*arguments: str, given: bytes = b"") -> bytes:
        command = [KCAT, "-q", "-b", cluster.bootstrap_servers, *arguments]
        done = subprocess.run(
            command, check=True, input=given, capture_output=True, timeout=PATIENCE_S
        )
        return done.stdout

    compressions = ("none", "gzip", "snappy", "lz4", "zstd")
    for name in compressions:
        kcat("-P", "-t", "t", "-K:", "-H", "h=1", "-z", name, given=f"{name}:v\n".encode() * 100)
    lines = kcat("-C", "-t", "t", "-e", "-o", "beginning", "-f", r"%o %k %s %h\n")
    assert lines.decode().splitlines() == [
        f"{number} {compressions[number // 100]} v h=1" for number in range(500)
    ]
    assert kcat("-C", "-t", "t", "-e", "-o", "-3", "-f", "%o,") == b"497,498,499,"
    assert kcat("-Q", "-t", "t:0:1").split() == [b"t", b"[0]", b"offset", b"0"]
    [topic] = json.loads(kcat("-L", "-J", "-t", "t"))["topics"]
    assert [each["partition"] for each in topic["partitions"]] == [0]
    read = ("-X", "auto.offset.reset=earliest", "-c", "500", "-f", "%o,")
    assert len(kcat("-G", "g", *read, "t").split(b",")) == 501

"""Kafka's own Java clients, tools and Streams, and Spark's connector, where Maven is reachable.

The same tests pass against Apache Kafka (``benchmarks/kafka_broker.py``).
"""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from benchmarks import kafka_broker
from dafka_core import EmbeddedCluster
from dafka_core.security.permissions import Permissions
from dafka_core.testing.waiting import PATIENCE_S
from tests.integration.kafka import maven
from tests.integration.kafka.locked import NAME, PASSWORD, Locked

TOOLS = "org.apache.kafka.tools."
GROUPS = "consumer.group.ConsumerGroupCommand"
JOB = Path(__file__).with_name("spark_connector_job.py")
WINDOW_COUNTS = Path(__file__).with_name("WindowCounts.java")
TIMEOUT_S = 240
"""A few seconds, multiplied on a busy machine."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(TIMEOUT_S + 60)]


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    maven.fetch(kafka_broker.NEWEST, kafka_broker.STREAMS)


@contextmanager
def gateway() -> Iterator[str]:
    with EmbeddedCluster(kafka=True) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with gateway() as servers:
        yield servers


def tool(name: str, *arguments: str, pom: Path = kafka_broker.POM) -> str:
    return finished(kafka_broker.java(TOOLS + name, arguments, pom=pom))


def finished(command: list[str]) -> str:
    environment = {k: v for k, v in os.environ.items() if "PYSPARK_GATEWAY" not in k}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def lines(printed: str, name: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [event for event in events if event["name"] == name]


def test_the_verifiable_clients_agree(servers: str) -> None:
    to = ("--bootstrap-server", servers, "--topic", "verified", "--max-messages", "5000")
    (sent,) = lines(tool("VerifiableProducer", *to, "--acks", "-1"), "tool_data")
    assert (sent["sent"], sent["acked"]) == (5000, 5000)
    said = tool("VerifiableConsumer", *to, "--group-id", "verifiers")
    assert sum(event["count"] for event in lines(said, "records_consumed")) == 5000
    assert all(event["success"] for event in lines(said, "offsets_committed"))
    group = ("--bootstrap-server", servers, "--describe", "--group", "verifiers")
    described = tool("consumer.group.ConsumerGroupCommand", *group)
    assert re.search(r"verifiers +verified +0 +5000 +5000 +0 ", described), described


def test_kafkas_newest_clients_write_read_and_look_around(servers: str) -> None:
    """Its minimum versions are those of brokers from 2.1 on."""

    def newest(name: str, *arguments: str) -> str:
        to = ("--bootstrap-server", servers)
        return tool(name, *to, *arguments, pom=kafka_broker.NEWEST)

    topic = ("--topic", "newest", "--max-messages", "3000")
    (sent,) = lines(newest("VerifiableProducer", *topic, "--acks", "-1"), "tool_data")
    assert (sent["sent"], sent["acked"]) == (3000, 3000)
    said = newest("VerifiableConsumer", *topic, "--group-id", "newest")
    assert sum(event["count"] for event in lines(said, "records_consumed")) == 3000
    assert re.search(r"newest +Empty", newest(GROUPS, "--list", "--state"))
    assert re.search(
        r"newest +newest +0 +3000 +3000 +0 ", newest(GROUPS, "--describe", "--group", "newest")
    )
    for stamp, offset in ("max-timestamp", r"2\d\d\d"), ("earliest-local", "0"):
        shown = newest("GetOffsetShell", "--topic", "newest", "--time", stamp)
        assert re.search(rf"newest:0:{offset}$", shown, re.MULTILINE), shown
    (sizes,) = re.findall(r'\{"brokers".*', newest("LogDirsCommand", "--describe"))
    partitions = json.loads(sizes)["brokers"][0]["logDirs"][0]["partitions"]
    assert next(each["size"] for each in partitions if each["partition"] == "newest-0") > 3000


def test_topics_are_made_and_described(servers: str) -> None:
    to = ("--bootstrap-server", servers)
    tool("TopicCommand", *to, "--create", "--topic", "made", "--partitions", "3")
    assert "made" in tool("TopicCommand", *to, "--list").split()
    described = tool("TopicCommand", *to, "--describe", "--topic", "made")
    assert "PartitionCount: 3" in described
    offsets = tool("GetOffsetShell", *to, "--topic", "made")
    assert offsets.split() == ["made:0:0", "made:1:0", "made:2:0"]


def test_the_performance_tools_move_all_records(servers: str) -> None:
    sent = tool(
        *("ProducerPerformance", "--topic", "fast", "--num-records", "200000"),
        *("--record-size", "100", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={servers}", "compression.type=lz4"),
    )
    assert "200000 records sent" in sent
    read = ("--bootstrap-server", servers, "--topic", "fast", "--messages", "200000")
    values = tool("ConsumerPerformance", *read).splitlines()[-1].split(", ")
    assert int(values[4]) == 200_000


def test_sparks_kafka_connector_writes_and_reads(servers: str, jars: Path, tmp_path: Path) -> None:
    paths = ",".join(map(str, kafka_broker.sparks_jars()))
    printed = finished([sys.executable, str(JOB), paths, servers, str(tmp_path)])
    found = json.loads(printed.splitlines()[-1])
    # Counts of rows, keys, values and headers, their digest, and whether all have a timestamp.
    whole = [20_000, 13_333, 16_000, 2_858, "359662130938492426061", True]
    assert found["first"][0] == found["second"][0] == whole
    for partitions in (found["first"][1:], found["second"][1:]):
        assert all(each[1:] == [0, 0] for each in partitions)  # contiguous from 0 on


def as_user(locked: Locked, directory: Path, name: str, program: str, *arguments: str) -> str:
    """Return the output of one of Kafka's tools, whatever its exit code."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = directory / f"{name}.properties"
    settings.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="{name}" password="{PASSWORD}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={locked.authority}\n"
    )
    to = ("--bootstrap-server", locked.servers, "--command-config", str(settings))
    command = kafka_broker.java(TOOLS + program, [*to, *arguments], pom=kafka_broker.NEWEST)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout + done.stderr


def test_tools_list_what_users_may_do_and_say_what_they_may_not(
    locked: Locked, tmp_path: Path
) -> None:
    bob = Permissions("bob", frozenset({"produce", "consume"}), ("orders.*",), ("news",))
    locked.permit(NAME, bob)
    admin, user = (partial(as_user, locked, tmp_path, name) for name in (NAME, "bob"))
    listed = admin("AclCommand", "--list", "--principal", "User:bob")
    assert "resourceType=TOPIC, name=orders., patternType=PREFIXED" in listed
    assert "principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW" in listed
    allowed = ("--allow-principal", "User:bob", "--operation", "Read", "--topic", "x")
    assert "'dafka kafka-user change NAME" in admin("AclCommand", "--add", *allowed)
    assert "ClusterAuthorizationException" in user("AclCommand", "--list")
    for topic in ("orders.made", "secret"):
        assert f"Created topic {topic}." in admin("TopicCommand", "--create", "--topic", topic)
    seen = user("TopicCommand", "--list").split()
    assert "orders.made" in seen
    assert "secret" not in seen
    for change in ("--create", "--delete"):
        assert "may not do this" in user("TopicCommand", change, "--topic", "orders.made")


WINDOW_MS, WINDOWS, EACH = 10_000, 10, 100


def produce(servers: str, begin_ms: int) -> None:
    """Write records to each window, in shuffled order."""
    numbers = [*range(WINDOWS * EACH)]
    random.Random(1).shuffle(numbers)
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        at_ms = begin_ms + number * WINDOW_MS // EACH
        producer.produce("t", b"%d" % number, b"key", timestamp=at_ms)
    assert producer.flush(PATIENCE_S) == 0


def window_counts(servers: str, directory: Path) -> dict[int, int]:
    """Return the counts of Kafka Streams by window, once it has counted every record."""
    jars = f"{kafka_broker.jars(kafka_broker.STREAMS)}/*"
    command = ["java", "-cp", jars, str(WINDOW_COUNTS), servers, "t", str(directory)]
    counts: dict[int, int] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            start_ms, count = map(int, line.split())
            counts[start_ms] = count
            if sum(counts.values()) == WINDOWS * EACH:
                break
        process.kill()
    return counts


@pytest.mark.parametrize("server", [gateway, partial(kafka_broker.broker, partitions=1)])
def test_windows_have_the_records_of_their_times_in_any_order(
    server: Callable[[], AbstractContextManager[str]], tmp_path: Path
) -> None:
    """Through the gateway one window had 994 records and another one 6."""
    begin_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS - WINDOWS * WINDOW_MS
    with server() as address:
        produce(address, begin_ms)
        found = window_counts(address, tmp_path)
    assert found == {begin_ms + number * WINDOW_MS: EACH for number in range(WINDOWS)}

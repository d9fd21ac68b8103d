"""``dafka store replace``: a store goes on in place of one that is lost, also for Kafka."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dafka_core import Store
from dafka_core.kafka.gateway import Gateway
from dafka_core.kafka.gateways import node_id
from dafka_core.nodes.store_identity import kept_address
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.cli.processes import run

PATIENCE_S = 60.0


def produced(gateway: Gateway, number: int, count: int, timeout_ms: int = 30_000) -> list[int]:
    """Writes records to a partition; the error of each."""
    errors: list[int] = []
    servers = {"bootstrap.servers": str(gateway.listens), "log_level": 0}
    producer = Producer(servers | {"message.timeout.ms": timeout_ms})

    def on_done(error: KafkaError | None, message: object) -> None:
        errors.append(0 if error is None else error.code())

    for _ in range(count):
        producer.produce("t", b"v", partition=number, on_delivery=on_done)
    producer.flush(PATIENCE_S)
    return errors


def read(gateway: Gateway, number: int, count: int) -> list[int]:
    """The offsets of a partition's first records."""
    servers = {"bootstrap.servers": str(gateway.listens), "group.id": "g", "log_level": 0}
    consumer = Consumer(servers)
    consumer.assign([TopicPartition("t", number, 0)])
    try:
        return [each.offset() or 0 for each in consumer.consume(count, PATIENCE_S)]
    finally:
        consumer.close()


def admin_of(gateway: Gateway) -> AdminClient:
    return AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0})


def create(gateway: Gateway, lost: str) -> int:
    """Makes topic t of two partitions; the number of the one that the gateway ``lost`` hosts."""
    admin = admin_of(gateway)
    wait_until(lambda: len(admin.list_topics(timeout=30).brokers) == 2)
    admin.create_topics([NewTopic("t", 2)])["t"].result(30)
    partitions = admin.list_topics("t", timeout=30).topics["t"].partitions
    return next(number for number, each in partitions.items() if each.leader == node_id(lost))


def last_line(process: subprocess.CompletedProcess[bytes]) -> str:
    """Its complaint; before it stores that are away are named."""
    return process.stderr.decode().splitlines()[-1]


def same(one: Store, other: Store) -> bool:
    held = [
        {info.tp: info.end for info in store.log.partitions() if info.end} for store in (one, other)
    ]
    return held[0] == held[1]


def test_partitions_of_a_lost_store_are_written_again_by_the_one_in_its_place(
    lone_tower: str, tmp_path: Path
) -> None:
    where, directory = ("--tower", lone_tower), str(tmp_path / "new")
    listen = "127.0.0.1:0"
    with Store(tmp_path / "a", tower=lone_tower) as a, Gateway(a, listen=listen) as gateway:
        with Store(tmp_path / "b", tower=lone_tower) as b, Gateway(b, listen=listen) as other:
            lost = b.address
            number = create(gateway, lost)
            assert produced(gateway, number, 5) == [0] * 5
            wait_until(lambda: same(a, b))
            other.close()
        shutil.rmtree(tmp_path / "b")
        assert set(produced(gateway, number, 1, 1_500)) == {KafkaError._MSG_TIMED_OUT}
        with Log(directory) as empty:  # of a store that has never met another one
            former = kept_address(empty.directory)
        refused = run("store", "replace", directory, lost, *where)
        assert "lacks records of" in last_line(refused)
        with Store(directory, tower=lone_tower) as new:
            wait_until(lambda: same(a, new))
        for wrong, why in [
            (a.address, "is there: only one that is gone for ever is replaced"),
            (former, f"no store that is away is known as {former}"),
            (lost[:-1] + "?", f"did you mean {lost}?"),
        ]:
            wait_until(lambda: former not in a.stores_here)
            refused = run("store", "replace", directory, wrong, *where)
            assert (refused.returncode, why in last_line(refused)) == (1, True), last_line(refused)
        done = run("store", "replace", directory, lost, *where)
        assert done.returncode == 0, last_line(done)
        assert f"dafka store forget {former}" in done.stderr.decode()
        assert run("store", "forget", former, *where).returncode == 0
        with (
            Store(directory, tower=lone_tower) as back,
            Gateway(back, listen=listen) as again,
        ):
            assert back.address == lost
            assert a.known_stores == (lost,)
            wait_until(lambda: len(admin_of(gateway).list_topics(timeout=30).brokers) == 2)
            assert produced(again, number, 3) == [0] * 3
            assert read(gateway, number, 8) == list(range(8))
            assert a.log.aside() == back.log.aside() == []

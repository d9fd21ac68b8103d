"""``dafka tower``, ``store`` and ``up``: they say where they are, log events, and stop cleanly."""

import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dafka_core import Store
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside, StoreSeen
from dafka_core.model.records import RecordBatch
from dafka_core.model.records import TopicPartition as RecordsTopicPartition
from dafka_core.model.values import Values
from dafka_core.nodes.store_identity import kept_address
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from dafka_kafka.gateway import Gateway
from dafka_kafka.gateways import node_id
from tests.integration.cli.processes import ANY_PORTS, Dafka, refusal, run, sentence, succeed
from tests.integration.cli.processes import PATIENCE_S as PROCESSES_PATIENCE_S

STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_tower_says_its_ports_and_stops_on_a_signal(number: int) -> None:
    with Dafka("tower", *ANY_PORTS) as tower:
        facts = tower.ready()
        assert facts["tower"] == f"127.0.0.1:{facts['sub_port']}:{facts['pub_port']}"
        assert min(facts["sub_port"], facts["pub_port"]) > 0
        assert tower.stop(number) == 0
        assert tower.out.rest() == []
        assert tower.err.rest() == [f"tower at {facts['tower']}; Ctrl-C stops it".encode()]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_store_says_where_it_is_and_stops_on_a_signal(
    number: int, lone_tower: str, tmp_path: Path
) -> None:
    with Dafka("store", "--dir", str(tmp_path / "new"), "--tower", lone_tower) as store:
        facts = store.ready()
        assert facts["dir"] == str(tmp_path / "new")
        assert len(facts["address"]) == 32
        assert store.stop(number) == 0
        assert store.out.rest() == []
        assert len(store.err.rest()) == 1


def test_a_second_sigterm_does_no_harm(lone_tower: str, tmp_path: Path) -> None:
    with Dafka("store", "--dir", str(tmp_path), "--tower", lone_tower) as store:
        store.ready()
        store.process.send_signal(signal.SIGTERM)
        assert store.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("kind", ["tower", "store", "up"])
def test_a_node_ends_with_its_parent(kind: str, lone_tower: str, tmp_path: Path) -> None:
    arguments = {
        "tower": ANY_PORTS,
        "store": ("--dir", str(tmp_path), "--tower", lone_tower),
        "up": ("--dir", str(tmp_path), *ANY_PORTS),
    }[kind]
    with Dafka(kind, "--exit-with-parent", *arguments) as node:
        node.ready()
        node.input.close()
        assert node.wait() == 0


def test_up_ignores_the_tower_of_the_environment(tmp_path: Path) -> None:
    with Dafka("up", "--dir", str(tmp_path), *ANY_PORTS, DAFKA_TOWER="127.0.0.1:1:2") as cluster:
        cluster.ready()


@pytest.mark.parametrize("second", [False, True])
def test_a_store_ends_when_its_directory_is_gone(
    second: bool, lone_tower: str, tmp_path: Path
) -> None:
    arguments = ("store", "--dir", str(tmp_path / "data"), "--tower", lone_tower)
    with Dafka(*arguments) as store:
        store.ready()
        shutil.rmtree(tmp_path / "data")
        if second:
            with Dafka(*arguments) as other:
                other.ready()
                assert store.wait() == 1
                succeed("produce", "t", "--tower", lone_tower, given=b"1\n")
        assert store.wait() == 1
        line = store.err.rest()[-1].decode()
        assert line.startswith(f"dafka: store at {tmp_path / 'data'}: the directory or a file in")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        refused = run("tower", "--sub-address", address, "--pub-address", "tcp://127.0.0.1:0")
    assert refused.returncode == 2
    assert "sub_address" in sentence(refused)
    assert address in sentence(refused)
    assert refused.stdout == b""


@pytest.mark.parametrize("below", [".", "new/store"])
def test_a_directory_that_cannot_be_one_is_named(
    below: str, lone_tower: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert refusal(1, "store", "--dir", str(file / below), "--tower", lone_tower) == (
        f"store at {file / below}: {file} is a file: name a directory, which is created if missing"
    )


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_node_still_looking_for_a_tower_stops_on_a_signal(number: int, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(PROCESSES_PATIENCE_S)
        port = mute.getsockname()[1]
        arguments = ("--dir", str(tmp_path), "--tower", f"127.0.0.1:{port}:{port}")
        with Dafka("store", "--wait-for-tower", *arguments) as store:
            mute.accept()[0].close()
            assert store.stop(number) == 128 + number
            assert store.err.rest() == []


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
        with Log(directory) as empty:  # of a store that knows no other
            former = kept_address(empty.directory)
        refused = run("store", "replace", directory, lost, *where)
        assert "lacks records of" in last_line(refused)
        with Store(directory, tower=lone_tower) as new:  # the third one: the gateway becomes leader
            wait_until(lambda: any("stores vote" in each.sentence for each in gateway.findings()))
            wait_until(lambda: same(a, new))
        for wrong, why in [
            (a.address, "is running: only a store that is gone can be replaced"),
            (former, f"no missing store is {former}"),
            (lost[:-1] + "?", f"did you mean '{lost}'?"),
        ]:
            wait_until(lambda: former not in a.known.here)
            refused = run("store", "replace", directory, wrong, *where)
            assert (refused.returncode, why in last_line(refused)) == (1, True), last_line(refused)
        done = run("store", "replace", directory, lost, *where)
        assert done.returncode == 0, last_line(done)
        assert f"dafka store forget {former}" in done.stderr.decode()
        succeed("store", "forget", former, *where)
        with Store(directory, tower=lone_tower) as back, Gateway(back, listen=listen) as again:
            assert back.address == lost
            assert a.known.names == (lost,)
            wait_until(lambda: len(admin_of(gateway).list_topics(timeout=30).brokers) == 2)
            assert produced(again, number, 3) == [0] * 3
            assert read(gateway, number, 8) == list(range(8))
            assert a.log.aside() == back.log.aside() == []


def test_a_copy_is_refused_until_it_is_restored(lone_tower: str, tmp_path: Path) -> None:
    directory, copy = str(tmp_path / "store"), str(tmp_path / "copy")
    with Dafka("store", "--dir", directory, "--tower", lone_tower) as original:
        address = original.ready()["address"]
        shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.sock"))
        refused = refusal(1, "store", "--dir", copy, "--tower", lone_tower)
        assert f"copy of those of store {address}" in refused
        restored = succeed("store", "restore", copy)
        with Dafka("store", "--dir", copy, "--tower", lone_tower) as second:
            own = second.ready()["address"]
        assert own != address
        assert restored.stderr.decode() == f"{copy} is now store {own}\n"
        assert "has it open for writing" in refusal(1, "store", "restore", directory)


def test_there_is_nothing_to_restore_in_an_empty_directory(tmp_path: Path) -> None:
    assert "there is no store here" in refusal(1, "store", "restore", str(tmp_path))


def test_what_is_set_aside_is_listed_exported_and_deleted(tmp_path: Path) -> None:
    tp, old = RecordsTopicPartition("t", "P"), Epoch.first(EpochId(2, 7, 1))
    with Log(tmp_path) as log:
        log.append([RecordBatch(tp, 0, Values.of([b"a", b"b", b"c"]), epoch=old)])
        log.write([SetAside(tp, 1)])
        (aside,) = log.aside()
        assert "has it open for writing" in refusal(1, "store", "aside", str(tmp_path))
    listed = run("store", "aside", str(tmp_path), "--json")
    assert json.loads(listed.stdout) == {
        "id": aside.id,
        "topic": "t",
        "partition": "P",
        "start": 1,
        "end": 3,
        "bytes": aside.size_bytes,
    }
    exported = run("store", "aside", str(tmp_path), "--export", str(aside.id))
    records = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [(each["offset"], each["value"]) for each in records] == [(1, "b"), (2, "c")]
    assert run("store", "aside", str(tmp_path), "--discard", "999").returncode == 1
    succeed("store", "aside", str(tmp_path), "--discard", str(aside.id))
    nothing = run("store", "aside", str(tmp_path))
    assert (nothing.stdout, nothing.stderr) == (b"", b"nothing is set aside\n")


def test_a_store_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.write([StoreSeen("B" * 32), StoreSeen("C" * 32)])
    done = run("store", "forget", str(tmp_path), "B" * 32, "--json")
    assert json.loads(done.stdout) == {"forgotten": "B" * 32}
    with Log(tmp_path) as log:
        assert log.met() == [StoreSeen("C" * 32)]
    assert f"there are '{'C' * 32}'" in refusal(1, "store", "forget", str(tmp_path), "B" * 32)


def test_stores_that_run_forget_one_that_is_gone(lone_tower: str, tmp_path: Path) -> None:
    gone, slip = "B" * 32, "B" * 31 + "C"
    with Log(tmp_path) as log:
        log.write([StoreSeen(gone, "tcp://10.0.0.7:1", 1_700_000_000_000_000)])
    with Dafka("store", "--dir", str(tmp_path), "--tower", lone_tower) as store:
        address = store.ready()["address"]
        named = f"store {gone} (tcp://10.0.0.7:1, last seen 2023-11-14T22:13:20Z) is away"
        listed = succeed("topics", "--tower", lone_tower)
        assert named in listed.stderr.decode()
        assert named in run("stores", "--tower", lone_tower).stderr.decode()
        refused = refusal(1, "topics", "--tower", lone_tower, "--min-stores", "all")
        assert f"'min_stores' = 'all': 1 store has answered; away: store {gone}" in refused
        assert run("heads", "t", "--tower", lone_tower, "--min-stores", "0").returncode == 2
        for wrong, why in [
            (slip, f"did you mean '{gone}'?"),
            ("x" * 32, f"there are '{gone}'"),
            (address, f"store {address} is running: stop it first"),
        ]:
            assert why in sentence(run("store", "forget", wrong, "--tower", lone_tower))
        assert run("store", "forget", "a", "b", "c", "--tower", lone_tower).returncode == 2
        succeed("store", "forget", gone, "--tower", lone_tower)
        succeed("topics", "--tower", lone_tower, "--min-stores", "all")
        assert gone not in run("topics", "--tower", lone_tower).stderr.decode()
    with Log(tmp_path) as log:
        assert log.met() == []


def test_a_store_tells_programs_who_comes_and_that_it_ends(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def has(store: Dafka, event: str) -> bool:
        line = store.err.next()
        assert line is not None, told
        told.append(json.loads(line))  # its output
        return bool(told[-1]["event"] == event)

    directory, json_logs = str(tmp_path / "d"), ("--log-level", "info", "--log-format", "json")
    with Dafka("up", "--dir", directory, *json_logs, *ANY_PORTS) as store:
        where = store.ready()["tower"]
        wait_until(lambda: has(store, "store_started"))
        assert told[-1]["facts"]["directory"] == directory
        succeed("produce", "t", "--tower", where, given=b"a\nb\n", DAFKA_LOG_LEVEL="debug")
        wait_until(lambda: has(store, "peer_came"))
        assert store.stop() == 0
        rest = [json.loads(line)["event"] for line in store.err.rest()]
        assert rest[-2:] == ["store_stopped", "tower_stopped"]

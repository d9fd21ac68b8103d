"""A gateway's life."""

import gc
import os
import signal
import socket
import struct
import threading
import time
import warnings
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from dafka_core import Store
from dafka_core.errors import ConfigError
from dafka_core.system.hosts import HostPort
from dafka_core.testing import wait_until
from dafka_kafka.gateway import Gateway


def drop(gateways: list[Gateway]) -> None:
    gateways.clear()
    gc.collect()


def is_listened_at(where: HostPort) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(where) == 0


def test_a_dropped_gateway_is_closed(store: Store) -> None:
    gateways = [Gateway(store, listen="127.0.0.1:0")]
    where = gateways[0].listens
    with socket.create_connection(where, timeout=30) as client:
        with pytest.warns(ResourceWarning, match="unclosed Gateway: use 'with', or close"):
            drop(gateways)
        wait_until(lambda: not is_listened_at(where))
        assert client.recv(1) == b""


def test_a_forked_child_has_nothing_of_a_gateway(gateway: Gateway) -> None:
    with socket.create_connection(gateway.listens, timeout=30) as client:
        wait_until(lambda: gateway.connection_count == 1)
        reading, writing = os.pipe()
        with warnings.catch_warnings():  # newer Pythons warn of forks beside threads
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                gateway.close()
                os.write(writing, b"closed")
                time.sleep(60)
            finally:
                os._exit(0)
        try:
            assert os.read(reading, 100) == b"closed"
            client.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            assert client.recv(1_000)
            gateway.close()
            assert client.recv(1) == b""  # the child holds no copy of the connection
            assert not is_listened_at(gateway.listens)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)


def test_a_port_that_is_taken_is_said(gateway: Gateway, store: Store) -> None:
    with pytest.raises(ConfigError, match="cannot listen there: Address already in use"):
        Gateway(store, listen=str(gateway.listens))


def test_who_listens_for_others_says_what_is_open(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"opens 0\.0\.0\.0 to other machines"):
        Gateway(store, listen="0.0.0.0:0", advertised="kafka.example.org:0")
    monkeypatch.setenv("DAFKA_INSECURE", "true")
    with pytest.raises(ConfigError, match="clients need one of them, as 'advertised'"):
        Gateway(store, listen="0.0.0.0:0")
    with Gateway(store, listen="0.0.0.0:0", advertised="kafka.example.org:0") as gateway:
        assert gateway.advertised == ("kafka.example.org", gateway.listens.port)
    assert "any client of 0.0.0.0 " in caplog.text


def test_each_other_store_is_asked_by_one_thread_for_all_that_waits(
    store: Store, gateway: Gateway, tmp_path: Path
) -> None:
    servers = {"bootstrap.servers": str(gateway.listens), "log_level": 0}
    with Store(tmp_path / "other", tower=store.options.tower) as other:
        name = f"dafka-kafka-acks-{other.address[:6]}"

        def threads() -> int:
            return sum(each.name == name for each in threading.enumerate())

        wait_until(lambda: other.address in store.known.endpoints)
        producer = Producer(servers)
        producer.produce("t", b"1")
        assert producer.flush(30) == 0
        consumer = Consumer(servers | {"group.id": "g"})
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        consumer.close()
        assert threads() == 1
        gateway.close()
        wait_until(lambda: threads() == 0)

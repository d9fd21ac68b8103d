"""A gateway's life."""

from __future__ import annotations

import socket
import struct

import pytest

from dafka_core import Store
from dafka_core.errors import ConfigError
from dafka_core.kafka.gateway import Gateway


def ask_versions(gateway: Gateway) -> bytes:
    with socket.create_connection(gateway.listens, timeout=30) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        return client.recv(1_000)


def test_a_gateway_serves_until_it_is_closed(store: Store) -> None:
    with Gateway(store, listen="127.0.0.1:0") as gateway:
        assert ask_versions(gateway)[4:8] == struct.pack(">i", 7)
    with pytest.raises(ConnectionRefusedError):
        ask_versions(gateway)
    gateway.close()


def test_a_port_that_is_taken_is_said(gateway: Gateway, store: Store) -> None:
    with pytest.raises(ConfigError, match="cannot listen there: Address already in use"):
        Gateway(store, listen=str(gateway.listens))


def test_all_addresses_of_a_machine_are_not_told_to_clients(store: Store) -> None:
    with pytest.raises(ConfigError, match="clients need one of them, as 'advertised'"):
        Gateway(store, listen="0.0.0.0:0")


def test_who_listens_for_others_says_what_is_open(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with Gateway(store, listen="0.0.0.0:0", advertised="kafka.example.org:0") as gateway:
        assert gateway.advertised == ("kafka.example.org", gateway.listens.port)
    assert "whoever reaches 0.0.0.0:" in caplog.text

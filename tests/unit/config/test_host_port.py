"""Addresses of the form ``HOST:PORT``."""

from __future__ import annotations

from dafka_core.config.node_options import HostPort, host_port


def test_an_address_is_a_host_and_perhaps_a_port() -> None:
    assert host_port("127.0.0.1:19092", 9092) == HostPort("127.0.0.1", 19092)
    assert host_port("kafka.example.org", 9092) == HostPort("kafka.example.org", 9092)
    assert host_port("[::1]:0", 9092) == HostPort("::1", 0)
    assert str(host_port("[::1]:0", 9092)) == "[::1]:0"

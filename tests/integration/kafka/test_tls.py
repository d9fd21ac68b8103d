"""TLS towards Kafka's clients."""

from __future__ import annotations

import socket
import ssl

import pytest

from dafka_core import Store
from dafka_core.errors import ConfigError
from dafka_core.kafka.gateway import Gateway
from tests.integration.kafka.locked import Locked


def test_a_certificate_that_cannot_be_used_is_refused(locked: Locked, store: Store) -> None:
    for alone in ("kafka_tls_key", "kafka_tls_certificate"):
        with pytest.raises(ConfigError, match="must be set, too"):
            Gateway(store, **{alone: locked.options[alone]})
    for wrong, why in (
        ({"kafka_tls_key": str(locked.users)}, "must be a PEM certificate and its key"),
        ({"kafka_tls_certificate": "/missing"}, "No such file"),
    ):
        with pytest.raises(ConfigError, match=why):
            Gateway(store, **locked.options | wrong)


def test_who_has_another_certificate_in_mind_does_not_connect(locked: Locked) -> None:
    """The clients of test_sasl.py trust it by its root."""
    with (
        socket.create_connection(locked.gateway.listens, timeout=30) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")
    assert locked.gateway.connection_count == 0


def test_who_has_no_tls_is_none_of_its_connections(locked: Locked) -> None:
    with socket.create_connection(locked.gateway.listens, timeout=30) as plain:
        plain.sendall(b"\0\0\0\x0e\0\x12\0\0\0\0\0\x01\xff\xff")
        assert not plain.recv(100).startswith(b"\0\0")
    assert locked.gateway.connection_count == 0

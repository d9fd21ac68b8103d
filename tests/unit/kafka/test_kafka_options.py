"""How a gateway's options are written."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError
from dafka_core.kafka.kafka_options import HostPort, KafkaOptions, host_port


def test_a_place_is_a_host_and_perhaps_a_port() -> None:
    assert host_port("127.0.0.1:19092") == HostPort("127.0.0.1", 19092)
    assert host_port("kafka.example.org") == HostPort("kafka.example.org", 9092)
    assert host_port("[::1]:0") == HostPort("::1", 0)
    assert str(host_port("[::1]:0")) == "[::1]:0"


@pytest.mark.parametrize(
    "wrong", ["", ":9092", "::1", "a:b", "a:65536", "a b", "tcp://a:1", "9092:x"]
)
def test_what_is_no_place_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT, as"):
        KafkaOptions.build({"listen": wrong})

"""A gateway's options."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError
from dafka_kafka.options import KafkaOptions


@pytest.mark.parametrize(
    "wrong", ["", ":9092", "::1", "a:b", "a:65536", "a b", "tcp://a:1", "9092:x"]
)
def test_what_is_no_place_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT, as"):
        KafkaOptions.build({"listen": wrong})

"""A gateway's options, and time limits of its clients."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError
from dafka_kafka.options import KafkaOptions, Limits


@pytest.mark.parametrize(
    "wrong", ["", ":9092", "::1", "a:b", "a:65536", "a b", "tcp://a:1", "9092:x"]
)
def test_what_is_no_place_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT, as"):
        KafkaOptions.build({"listen": wrong})


def test_what_is_large_may_take_longer() -> None:
    limits = Limits(arrival_s=10, slowest_bytes_per_s=100)
    assert (limits.patience_s(12), limits.patience_s(1_000)) == (10.12, 20)

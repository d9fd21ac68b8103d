"""The address of metrics."""

import pytest

from dafka_core.config.node_options import MetricsOptions
from dafka_core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [("9108", "127.0.0.1:9108"), (" 0 ", "127.0.0.1:0"), ("*:9108", "*:9108"), ("[::1]:1",) * 2],
)
def test_a_port_alone_is_on_loopback(given: str, expected: str) -> None:
    assert MetricsOptions.build({"metrics": given}).metrics == expected
    assert MetricsOptions.build({"metrics": expected}).metrics == expected


@pytest.mark.parametrize("given", ["", "host", "host:", ":9108", "1:2:3", "65536", "-1"])
def test_an_address_without_a_port_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"must be HOST:PORT, as 127\.0\.0\.1:9108"):
        MetricsOptions.build({"metrics": given})

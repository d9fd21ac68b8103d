"""Where numbers are served."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError
from dafka_core.ops.metrics_options import MetricsOptions, listen_address


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("9108", ("127.0.0.1", 9108)),
        (" 0 ", ("127.0.0.1", 0)),
        ("10.0.0.5:9108", ("10.0.0.5", 9108)),
        ("*:9108", ("0.0.0.0", 9108)),
        ("[::1]:9108", ("::1", 9108)),
        ("host.example:1", ("host.example", 1)),
    ],
)
def test_a_port_alone_is_on_loopback(given: str, expected: tuple[str, int]) -> None:
    assert listen_address(given) == expected
    assert listen_address(str(listen_address(given))) == expected


@pytest.mark.parametrize("given", ["", "host", "host:", ":9108", "1:2:3", "65536", "-1", "a b:1"])
def test_what_names_no_port_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT or a port"):
        MetricsOptions.build({"metrics": given})

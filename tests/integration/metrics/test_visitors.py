"""Numbers for who says the token, and health for everybody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core import ConfigError, MetricsEndpoint, Tower, serve_metrics
from dafka_core.guesses import MOST_WRONG
from dafka_core.web_access import write_token
from tests.integration.metrics.conftest import ANY_PORTS, ask


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_token(tmp_path / "token")
    return tmp_path / "token"


@pytest.fixture
def locked(file: Path) -> Iterator[MetricsEndpoint]:
    with (
        Tower(**ANY_PORTS) as tower,
        serve_metrics(tower, listen="*:0", token_file=str(file)) as endpoint,
    ):
        yield endpoint


def url(endpoint: MetricsEndpoint) -> str:
    return f"http://127.0.0.1:{endpoint.address.port}"


def test_numbers_need_the_token(locked: MetricsEndpoint, file: Path) -> None:
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}):
        for path in ("/metrics", "/", "/nothing"):
            found = ask(f"{url(locked)}{path}", **headers)
            assert found.status == 401, path
            assert "Authorization: Bearer TOKEN" in found.text
    right = {"Authorization": f"Bearer {file.read_text().strip()}"}
    assert "dafka_tower_nodes" in ask(f"{url(locked)}/metrics", **right).text


def test_that_a_node_is_well_is_for_everybody_and_what_is_found_is_not(
    locked: MetricsEndpoint, file: Path
) -> None:
    for headers in ({}, {"Accept": "application/json"}, {"Authorization": "Bearer x"}):
        assert ask(f"{url(locked)}/readyz?json", **headers)[:2] == (200, "ready\n")
        assert ask(f"{url(locked)}/healthz", **headers)[:2] == (200, "ok\n")
    right = {"Authorization": f"Bearer {file.read_text().strip()}"}
    assert json.loads(ask(f"{url(locked)}/readyz?json", **right).text)["findings"]


def test_nobody_guesses(locked: MetricsEndpoint, file: Path) -> None:
    for _ in range(MOST_WRONG):
        assert ask(f"{url(locked)}/metrics", Authorization="Bearer x").status == 401
    right = {"Authorization": f"Bearer {file.read_text().strip()}"}
    for path in ("/metrics", "/readyz"):
        assert ask(f"{url(locked)}{path}", **right).status == 429
    # Probes go on.
    assert ask(f"{url(locked)}/readyz").status == 200


def test_other_machines_are_let_in_by_a_token_or_on_purpose(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for listen in ("*:0", "0.0.0.0:0", "[::]:0"):
        with pytest.raises(ConfigError, match="dafka keys token FILE") as refused:
            MetricsEndpoint(listen)
        assert refused.value.option == "metrics"
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="read by others") as refused:
        MetricsEndpoint("*:0", token_file=str(file))
    assert refused.value.option == "metrics_token_file"
    with MetricsEndpoint("*:0", insecure=True) as endpoint:
        assert ask(f"{url(endpoint)}/metrics").status == 200
    assert "whoever reaches them reads them" in caplog.text
    monkeypatch.setenv("DAFKA_INSECURE", "true")
    with MetricsEndpoint("*:0") as endpoint:
        # Other machines know this one by any name.
        assert ask(f"{url(endpoint)}/metrics", Host="store-1:9108").status == 200


def test_on_this_machine_pages_point_no_name_of_theirs_here(endpoint: MetricsEndpoint) -> None:
    port = endpoint.address.port
    for name, status in (
        *((f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200), (f"[::1]:{port}", 200)),
        *((f"evil.example:{port}", 421), ("10.0.0.1", 421), ("[", 421)),
    ):
        for path in ("/metrics", "/readyz", "/"):
            assert ask(f"{endpoint.url}{path}", Host=name).status == status, name

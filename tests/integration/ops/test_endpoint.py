"""Metrics, health and readiness over HTTP, also for bad clients."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dafka_core import ConfigError, MetricsEndpoint, Reader, Tower, serve_metrics
from dafka_core.ops.endpoint import MOST_CONNECTIONS
from dafka_core.security.throttles import MOST_WRONG
from dafka_core.security.web_access import write_token
from dafka_core.testing import PATIENCE_S
from tests.integration.ops.conftest import ANY_PORTS, Nodes, ask


def test_nodes_that_are_well_are_healthy_and_ready(endpoint: MetricsEndpoint) -> None:
    assert endpoint.url.startswith("http://127.0.0.1:")
    assert ask(f"{endpoint.url}/healthz") == (200, "ok\n", "text/plain; charset=utf-8")
    assert ask(f"{endpoint.url}/readyz")[:2] == (200, "ready\n")
    assert "/readyz" in ask(endpoint.url).text
    assert ask(f"{endpoint.url}/metricz").status == 404


def test_programs_are_told_as_json(endpoint: MetricsEndpoint, nodes: Nodes) -> None:
    for found in (
        ask(f"{endpoint.url}/readyz?json"),
        ask(f"{endpoint.url}/readyz", Accept="application/json"),
    ):
        assert found.content_type == "application/json"
        told = json.loads(found.text)
        assert told["status"] == "ready"
        assert {each["kind"] for each in told["findings"]} == {
            *("tower", "store", "gateway", "producer", "consumer")
        }
        assert nodes.store.address in {each["node"] for each in told["findings"]}


def test_before_a_node_is_there_the_process_runs_and_is_not_ready() -> None:
    with MetricsEndpoint() as endpoint, Tower(**ANY_PORTS) as tower:
        endpoint.expect("store")
        assert ask(f"{endpoint.url}/healthz").status == 200
        status, text, _ = ask(f"{endpoint.url}/readyz")
        assert (status, text.splitlines()[0]) == (503, "not ready")
        assert "no store serves yet" in text
        endpoint.add(tower)
        assert ask(f"{endpoint.url}/readyz").status == 200


def test_what_is_wrong_is_said_and_is_no_traceback(
    endpoint: MetricsEndpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    for octets in (b"", b"\xff\x00\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"GET\r\n\r\n"):
        with socket.create_connection(endpoint.address) as client:
            client.sendall(octets)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4_096):
                pass
    assert ask(f"{endpoint.url}/readyz").status == 200
    assert capfd.readouterr().err == ""


def test_clients_that_hold_still_shut_nobody_out(endpoint: MetricsEndpoint) -> None:
    with ExitStack() as stack:
        for _ in range(2 * MOST_CONNECTIONS):
            stack.enter_context(socket.create_connection(endpoint.address))
        # The oldest of them is closed for each that comes: they hold all places still.
        for _ in range(2 * MOST_CONNECTIONS):
            assert ask(f"{endpoint.url}/readyz").status == 200


def test_who_has_most_connections_makes_room() -> None:
    with MetricsEndpoint("0.0.0.0:0", insecure=True) as endpoint, ExitStack() as stack:

        def connected(source: str) -> socket.socket:
            at = ("127.0.0.1", endpoint.address.port)
            made = socket.create_connection(at, PATIENCE_S, (source, 0))
            return stack.enter_context(made)

        slow = connected("127.0.0.2")
        greedy = [connected("127.0.0.3") for _ in range(MOST_CONNECTIONS)]
        assert greedy[0].recv(1) == b""
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: store-1\r\n\r\n")
        assert b"200 OK" in slow.recv(100)


def test_what_cannot_be_is_refused_before_anything_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MetricsEndpoint() as endpoint, pytest.raises(ConfigError, match="cannot listen there"):
        MetricsEndpoint(str(endpoint.address))
    with pytest.raises(ConfigError, match="must be HOST:PORT, as"):
        MetricsEndpoint("nowhere")
    with (
        Tower(**ANY_PORTS) as tower,
        Reader(tower=tower.tower) as reader,
        pytest.raises(ConfigError, match="must be a tower, store, producer"),
    ):
        serve_metrics(reader)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "dafka_core.ops.node_routes")
    with pytest.raises(ConfigError, match=r"pip install 'dafka-spark\[metrics\]'"):
        MetricsEndpoint()


def test_a_closed_endpoint_answers_nobody_and_a_forked_child_holds_no_copy() -> None:
    endpoint = MetricsEndpoint()
    child = os.fork()
    if not child:
        signal.pause()
    try:
        endpoint.close()
        endpoint.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(endpoint.address)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


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
    # Probes continue.
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
    assert "are open to the network" in caplog.text
    monkeypatch.setenv("DAFKA_INSECURE", "true")
    with MetricsEndpoint("*:0") as endpoint:
        # Other machines may use any name of this machine.
        assert ask(f"{url(endpoint)}/metrics", Host="store-1:9108").status == 200


def test_on_this_machine_pages_point_no_name_of_theirs_here(endpoint: MetricsEndpoint) -> None:
    port = endpoint.address.port
    for name, status in (
        *((f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200), (f"[::1]:{port}", 200)),
        *((f"evil.example:{port}", 421), ("10.0.0.1", 421), ("[", 421)),
    ):
        for path in ("/metrics", "/readyz", "/"):
            assert ask(f"{endpoint.url}{path}", Host=name).status == status, name

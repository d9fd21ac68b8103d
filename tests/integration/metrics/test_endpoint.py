"""Numbers, health and readiness over HTTP: for whoever asks, however badly."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import ExitStack

import pytest

from dafka_core import ConfigError, MetricsEndpoint, Reader, Tower, serve_metrics
from dafka_core.metrics.endpoint import MAX_REQUESTS
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.metrics.conftest import ANY_PORTS, Nodes, ask


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
        for _ in range(2 * MAX_REQUESTS):
            stack.enter_context(socket.create_connection(endpoint.address))
        # The oldest of them is closed for each that comes: they hold all places still.
        for _ in range(2 * MAX_REQUESTS):
            assert ask(f"{endpoint.url}/readyz").status == 200


def test_who_has_most_connections_makes_room() -> None:
    with MetricsEndpoint("0.0.0.0:0", insecure=True) as endpoint, ExitStack() as stack:

        def connected(source: str) -> socket.socket:
            at = ("127.0.0.1", endpoint.address.port)
            made = socket.create_connection(at, PATIENCE_S, (source, 0))
            return stack.enter_context(made)

        slow = connected("127.0.0.2")
        greedy = [connected("127.0.0.3") for _ in range(MAX_REQUESTS)]
        assert greedy[0].recv(1) == b""
        slow.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b"200 OK" in slow.recv(100)


def test_a_request_has_its_time_in_all_however_often_a_piece_of_it_comes(
    endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka_core.metrics.endpoint.REQUEST_TIMEOUT_S", 0.1)
    with socket.create_connection(endpoint.address) as client:

        def is_ended() -> bool:
            try:
                client.sendall(b"G")
            except ConnectionError:
                return True
            return False

        wait_until(is_ended)


def test_what_cannot_be_is_refused_before_anything_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MetricsEndpoint() as endpoint, pytest.raises(ConfigError, match="cannot listen there"):
        MetricsEndpoint(str(endpoint.address))
    with pytest.raises(ConfigError, match="must be HOST:PORT or a port"):
        MetricsEndpoint("nowhere")
    with (
        Tower(**ANY_PORTS) as tower,
        Reader(tower=tower.tower) as reader,
        pytest.raises(ConfigError, match="must be a tower, store, producer"),
    ):
        serve_metrics(reader)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
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

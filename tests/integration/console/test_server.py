"""The console's start and end."""

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from dafka_console import cluster_view, commands
from dafka_console.cluster_view import ClusterView
from dafka_console.server import MOST_CONNECTIONS, Console
from dafka_console.snapshot import Snapshot
from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, NodeFailedError, TowerNotFoundError
from dafka_core.model.records import TopicPartition
from dafka_core.ops import http_server
from dafka_core.testing import PATIENCE_S, StoreDouble, wait_until
from tests.integration.console.pages import ask, post


@contextmanager
def serving(
    directory: Path, options: Mapping[str, Any] = MappingProxyType({}), **console: Any
) -> Iterator[Console]:
    """Serve the console of one store."""
    settings = {"listen": "127.0.0.1:0", **console}
    with StoreDouble(directory) as store, Console(options, [store.location], **settings) as made:
        yield made


def test_stores_that_are_named_are_shown_and_nobody_writes(tmp_path: Path) -> None:
    with StoreDouble(tmp_path) as store:
        store.append(TopicPartition("t", "A" * 32), [b"x"] * 3)
        with Console({}, [store.location], listen="localhost:0", interval_ms=100) as console:
            wait_until(lambda: ask(console, "/api/overview").json["records"] == 3, "three records")
            assert console.url == f"http://localhost:{console.port}/"
            assert ask(console, "/api/overview").json["can_produce"] is False
            refused = post(console, topic="t", value="x")
            assert (refused.status, "by its towers" in refused.json["error"]) == (400, True)


def test_read_only_lets_nobody_write(tmp_path: Path) -> None:
    with serving(tmp_path, read_only=True) as console:
        refused = post(console, topic="t", value="x")
        assert (refused.status, "--read-only" in refused.json["error"]) == (403, True)


def test_the_first_search_does_not_wait_for_pandas() -> None:
    program = (
        "import sys\n"
        "from dafka_console.server import Console\n"
        "from dafka_core.flight.store_location import StoreLocation\n"
        "from dafka_core.testing import wait_until\n"
        "away = [StoreLocation('', ('grpc://127.0.0.1:1',))]\n"
        "with Console({}, away, listen='127.0.0.1:0'):\n"
        "    wait_until(lambda: 'pyarrow.pandas_compat' in sys.modules, 'it is imported')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_console_whose_view_has_failed_is_not_healthy(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(began: float) -> Snapshot:
        raise NodeFailedError("reader", "OSError: broken")

    with Console({"tower": cluster.tower}, listen="127.0.0.1:0", interval_ms=100) as console:
        monkeypatch.setattr(console.view, "_look", fail)
        wait_until(lambda: console.view.closed, "the view has ended")
        found = ask(console, "/healthz")
        assert (found.status, b"sees no more of the cluster" in found.body) == (503, True)


def test_top_ends_with_an_error_when_its_view_has_failed(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[object] = []

    class Failing(ClusterView):
        def _look(self, began: float) -> Snapshot:
            if printed:
                raise NodeFailedError("reader", "OSError: broken")
            return super()._look(began)

    def show(*shown: object) -> None:
        printed.append(shown)
        assert len(printed) < 1_000

    monkeypatch.setattr(cluster_view, "ClusterView", Failing)
    monkeypatch.setattr(commands, "_print", show)
    chosen = {"topic": None, "sort": "rate", "rows": 1, "interval_s": 0.1, "internal": False}
    with pytest.raises(NodeFailedError, match="the view of the cluster has failed"):
        commands.top(uris="", timeout_s=PATIENCE_S, once=False, tower=cluster.tower, **chosen)


def test_it_ends_while_pages_wait_for_news(tmp_path: Path) -> None:
    with StoreDouble(tmp_path) as store:
        console = Console({}, [store.location], listen="127.0.0.1:0", interval_ms=3_600_000)
        asking = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
        asking.request("GET", "/events")
        found = asking.getresponse()
        assert found.readline() == b"retry: 2000\n"
        ending = threading.Thread(target=console.close)
        ending.start()
        ending.join(PATIENCE_S)
        assert not ending.is_alive()
        assert console.wait(PATIENCE_S)
        console.close()
        asking.close()


def test_clients_that_ask_for_nothing_shut_nobody_out(tmp_path: Path) -> None:
    with serving(tmp_path) as console, ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS + 1):
            silent = socket.create_connection(("127.0.0.1", console.port), PATIENCE_S)
            stack.enter_context(silent).sendall(b"GET /")
        assert ask(console, "/api/overview").status == 200


def test_a_request_has_its_time_in_all_however_often_a_piece_of_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.1)
    whole = b"GET /api/overview HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving(tmp_path) as console:
        for asked in (
            b"",
            whole,
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", console.port), PATIENCE_S) as client:
                client.sendall(asked)
                wait_until(partial(_is_ended, client))


def _is_ended(client: socket.socket) -> bool:
    """Send one more byte; return whether it was one too many."""
    try:
        client.sendall(b"G")
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"listen": "192.0.2.1:0"}, "cannot listen there"),
        ({"token_file": "/nowhere"}, "dafka keys token FILE"),
        ({"listen": "nowhere:x"}, "must be HOST:PORT, as 127.0.0.1:8046"),
        ({"names": "a b"}, "names of hosts"),
        ({"interval_ms": 1}, "at least 100"),
    ],
)
def test_where_it_cannot_listen_is_said(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Console({}, **options)


def test_from_other_machines_without_a_token_only_if_that_is_meant(tmp_path: Path) -> None:
    options: dict[str, Any] = {"listen": "0.0.0.0:0", "names": "console.example"}
    with serving(tmp_path, {"insecure": True}, **options) as console:
        assert console.admits_all
        assert not console.token
        for name, status in (
            ("console.example", 200),
            ("192.0.2.7", 200),
            ("localhost", 200),
            ("evil.example", 421),
        ):
            asked = {"Host": f"{name}:{console.port}"}
            assert ask(console, "/api/overview", headers=asked).status == status


def test_a_port_in_use_and_a_tower_that_is_not_there(tmp_path: Path) -> None:
    in_use = "cannot listen there: Address already in use"
    with serving(tmp_path) as console, pytest.raises(ConfigError, match=in_use):
        Console({}, listen=f"127.0.0.1:{console.port}")
    with pytest.raises(TowerNotFoundError):
        Console({"tower": "127.0.0.1:1:2", "tower_timeout_s": 0.1}, listen="127.0.0.1:0")

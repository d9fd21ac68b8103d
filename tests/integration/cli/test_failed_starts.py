"""A store that cannot start leaves no trace in the mesh: no node reports it as missing."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dafka_core import Reader, Store, Tower
from dafka_core.testing.waiting import wait_until
from dafka_kafka.gateway import Gateway
from tests.integration.cli.processes import ANY_PORTS, PATIENCE_S, ended, run

WITHOUT = (
    "import sys; sys.modules[{!r}] = None; from dafka_core.cli import main; main(sys.argv[1:])"
)
"""``dafka`` where a package cannot be imported."""

KAFKA = ("--kafka", "127.0.0.1:0")
OPEN = ("--insecure", "--kafka")

DOORS = {
    "kafka port in use": ("--kafka", "127.0.0.1:{port}"),
    "kafka at another machine's address": (*OPEN, "192.0.2.1:0"),
    "kafka at an unknown host": (*OPEN, "no-such-host.invalid:0"),
    "kafka at all addresses": (*OPEN, "0.0.0.0:0"),
    "kafka open to others": ("--kafka", "0.0.0.0:0"),
    "kafka without its users": (*KAFKA, "--kafka-users", "{missing}"),
    "kafka without its certificate": (
        *KAFKA,
        *("--kafka-tls-certificate", "{missing}", "--kafka-tls-key", "{missing}"),
    ),
    "kafka with half a certificate": (*KAFKA, "--kafka-tls-key", "{missing}"),
    "metrics port in use": ("--metrics", "{port}"),
    "Flight port in use": ("--flight-port", "{port}"),
    "a node's port in use": ("--port", "{port}"),
    "host of another machine": ("--insecure", "--host", "192.0.2.1"),
    "no key": ("--secret-key-file", "{missing}", "--allowed-keys", "{missing}"),
    "directory of another store": ("--dir", "{healthy}"),
    "directory below a file": ("--dir", "{file}/store"),
}

EXTRAS = {"kafka": KAFKA, "scramp": KAFKA, "uvicorn": ("--metrics", "0")}
"""Packages, and what needs them."""


class Mesh:
    """A tower and a healthy store, in this process, and what a second store must not have."""

    def __init__(self, tmp_path: Path, nodes: ExitStack) -> None:
        self.hub = nodes.enter_context(
            Tower(sub_address="tcp://127.0.0.1:0", pub_address="tcp://127.0.0.1:0")
        )
        self.store = nodes.enter_context(Store(tmp_path / "healthy", tower=self.hub.tower))
        listener = nodes.enter_context(socket.create_server(("127.0.0.1", 0)))
        (tmp_path / "file").write_text("")
        self.names = {
            "port": listener.getsockname()[1],
            **{name: tmp_path / name for name in ("healthy", "missing", "file")},
        }

    def check(self) -> None:
        """Check that no node has heard of a second store."""
        assert self.store.known.names == ()
        with Reader(tower=self.hub.tower) as reader:
            reader.wait_for_stores(timeout_s=PATIENCE_S)
            assert {each.node for each in reader.neighbours()} == {self.store.address}
            assert reader.missing_stores(timeout_s=PATIENCE_S) == []


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with ExitStack() as nodes:
        yield Mesh(tmp_path_factory.mktemp("mesh"), nodes)


@pytest.fixture
def own_mesh(tmp_path: Path) -> Iterator[Mesh]:
    """A mesh for one test, which ends with two stores that know each other."""
    with ExitStack() as nodes:
        yield Mesh(tmp_path, nodes)


def failing(*arguments: str, lacking: str = "") -> str:
    """Runs ``dafka``, without a package, until it fails; returns what it complained of."""
    if lacking:
        command = [sys.executable, "-c", WITHOUT.format(lacking), *arguments]
        done = ended(command)
    else:
        done = run(*arguments)
    said: str = done.stderr.decode()
    assert done.returncode in (1, 2), said
    assert said.splitlines()[-1].startswith("dafka: ")
    assert "Traceback" not in said
    assert b"READY" not in done.stdout
    return said


@pytest.mark.parametrize("door", DOORS)
def test_a_store_that_cannot_start_was_never_there(door: str, mesh: Mesh, tmp_path: Path) -> None:
    given = [each.format(**mesh.names) for each in DOORS[door]]
    failing("store", "--dir", str(tmp_path / "new"), "--tower", mesh.hub.tower, *given)
    mesh.check()


@pytest.mark.parametrize("package", EXTRAS)
def test_a_store_without_an_extra_was_never_there(package: str, mesh: Mesh, tmp_path: Path) -> None:
    given = ("--dir", str(tmp_path / "new"), "--tower", mesh.hub.tower, *EXTRAS[package])
    assert "pip install" in failing("store", *given, lacking=package)
    mesh.check()


def test_a_store_that_hears_no_tower_is_not_announced_there(mesh: Mesh, tmp_path: Path) -> None:
    silent = f"127.0.0.1:{mesh.hub.sub_port}:{mesh.names['port']}"
    given = ("--dir", str(tmp_path / "new"), "--tower", silent, "--tower-timeout-s", "1")
    assert "no tower answered" in failing("store", *given)
    mesh.check()


def test_a_store_in_a_program_is_known_when_it_is_announced(own_mesh: Mesh, tmp_path: Path) -> None:
    used = f"127.0.0.1:{own_mesh.names['port']}"
    with Store(tmp_path / "new", announce=False, tower=own_mesh.hub.tower) as store:
        with pytest.raises(ValueError, match="cannot listen"):
            Gateway(store, listen=used)
        own_mesh.check()
        with Gateway(store, listen="127.0.0.1:0"):
            store.announce()
            wait_until(lambda: own_mesh.store.known.names == (store.address,))
            wait_until(lambda: store.known.names == (own_mesh.store.address,))


def test_a_directory_that_cannot_be_made_is_named_with_its_option() -> None:
    done = run("up", "--dir", "/proc/store", *ANY_PORTS)
    assert done.returncode == 1
    assert b"store at /proc/store: it cannot be created" in done.stderr
    assert b"choose another directory (--dir)" in done.stderr

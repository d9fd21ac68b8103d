"""A cluster in child processes, for demos, notebooks and tests.

It needs no Docker and no configuration: a tower and stores on free loopback ports with a temporary
directory, which end with the ``with`` block, and with their parent process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dafka_core.errors import ConfigError, NodeFailedError
from dafka_core.security.key_files import SECRET, new_key
from dafka_core.security.permissions import ADMIN, CONSUME, PRODUCE, STORE, TOWER
from dafka_core.system.closing import ProcessBound

READY: Final = "READY "  # printed by a node's process, followed by JSON, when it serves
START_TIMEOUT_S: Final = 30.0  # a loaded machine takes seconds to start Python
_LOG_BYTES: Final = 4_000  # the end of a node's log that an error shows


class EmbeddedCluster(ProcessBound):
    """A tower and ``stores`` stores.

    Args:
        stores: their number.
        directory: the stores' directories are created in it and kept at the end.  By default a
            temporary one that is removed.
        kafka: give each store a gateway for Kafka's clients (extra ``kafka``), or the gateways'
            options (``KafkaOptions``).
        keys: give the nodes keys, and admit only owners of keys made by ``key``.

    Raises:
        ConfigError: the number is invalid, or the directory has no name.
        NodeFailedError: a node did not start; the error has its output.
    """

    def __init__(
        self,
        stores: int = 1,
        directory: str | Path | None = None,
        *,
        kafka: bool | Mapping[str, object] = False,
        keys: bool = False,
    ) -> None:
        if type(stores) is not int or stores < 0:
            raise ConfigError("stores", stores, "must be a whole number of 0 or more")
        self._temporary: Callable[[], object] | None = None
        if directory is not None and not str(directory):
            raise ConfigError("directory", directory, "must name a directory, such as '.'")
        if directory is None:
            directory = tempfile.mkdtemp(prefix="dafka-")
            # Not a TemporaryDirectory, which a forked child would remove when it ends.
            self._temporary = weakref.finalize(self, _remove, directory, os.getpid())
        self.directory = Path(directory)
        self._has_keys = keys
        self._tower: _NodeProcess | None = None
        self._held: list[socket.socket] = []
        self._ports = self._hold_port(), self._hold_port()
        self._stores: dict[int, _NodeProcess] = {}
        self._has_gateways = kafka is not False
        self._kafka = {} if isinstance(kafka, bool) else dict(kafka)
        self._gateways: dict[int, str] = {}
        self.key()  # known from the start, as nodes check for new ones each second
        try:
            self.start_tower()
            for index in range(stores):
                self.start_store(index)
        except BaseException:
            self.close()
            raise

    @property
    def tower(self) -> str:
        """Return ``HOST:SUB_PORT:PUB_PORT``, for the ``tower`` option of nodes and of Spark."""
        return f"127.0.0.1:{self._ports[0]}:{self._ports[1]}"

    @property
    def stores(self) -> list[str]:
        """Return the addresses of the running stores."""
        return [str(store.ready["address"]) for _, store in sorted(self._stores.items())]

    @property
    def bootstrap_servers(self) -> str:
        """Return the ``bootstrap.servers`` of the running stores for Kafka's clients.

        Raises:
            ConfigError: they have no gateways.
        """
        if not self._has_gateways:
            raise ConfigError("kafka", False, "must be enabled: EmbeddedCluster(kafka=True)")
        return ",".join(self._gateways[index] for index in sorted(self._stores))

    @property
    def keys(self) -> Path:
        """Return the directory of allowed keys, with their secrets: for programs' tests."""
        return self.directory / "keys"

    def key(
        self,
        name: str = "client",
        roles: tuple[str, ...] = (PRODUCE, CONSUME, ADMIN),
        **patterns: tuple[str, ...],
    ) -> dict[str, str]:
        """Return the options of the owner of a key, which is created if it is missing.

        They are ``secret_key_file`` and ``allowed_keys``, for nodes, and for Spark with the prefix
        ``dafka.``; empty if the cluster has no keys.

        Args:
            name: of the key.
            roles: of a new key.
            patterns: of topics and addresses (``produce``, ``consume``, ``addresses``).

        Raises:
            ConfigError: the name is unsuitable for a file.
        """
        if not self._has_keys:
            return {}
        secret = self.keys / f"{name}{SECRET}"
        if not secret.exists():
            new_key(self.keys, name, roles, **patterns)
        return {"secret_key_file": str(secret), "allowed_keys": str(self.keys)}

    def store_directory(self, index: int = 0) -> Path:
        """Return a store's directory."""
        return self.directory / f"store-{index}"

    def start_tower(self) -> None:
        """Start the tower, on its previous ports if it was killed."""
        sub, pub = (f"tcp://127.0.0.1:{port}" for port in self._ports)
        arguments = ["--sub-address", sub, "--pub-address", pub]
        for flag in self.key(TOWER, (TOWER,)).items():
            arguments += _flag(*flag)
        self._tower = self._node("tower", arguments)

    def kill_tower(self) -> None:
        """Kill the tower as a crash would (SIGKILL)."""
        if self._tower is not None:
            self._tower.kill()
            self._tower = None

    def locations(self, index: int = 0) -> tuple[str, ...]:
        """Return the Arrow Flight URIs of a running store."""
        return tuple(self._stores[index].ready["flight"]) if index in self._stores else ()

    def start_store(self, index: int = 0, *, flight_port: int | str | None = None) -> None:
        """Start a store on its directory; the next ``index`` adds a store.

        ``flight_port``: see ``StoreOptions``.
        """
        arguments = ["--dir", str(self.store_directory(index)), "--tower", self.tower]
        for flag in self.key(f"{STORE}-{index}", (STORE,)).items():
            arguments += _flag(*flag)
        if flight_port is not None:
            arguments += ["--flight-port", str(flight_port)]
        if self._has_gateways:  # its previous port, if it was killed
            address = self._gateways.get(index) or f"127.0.0.1:{self._hold_port()}"
            arguments += ["--kafka", address]
            for name, value in self._kafka.items():
                arguments += _flag(name, value)
        self._stores[index] = store = self._node("store", arguments)
        if self._has_gateways:
            self._gateways[index] = str(store.ready["kafka"])

    def kill_store(self, index: int = 0) -> None:
        """Kill a store as a crash would (SIGKILL)."""
        if index in self._stores:
            self._stores.pop(index).kill()

    @contextmanager
    def paused_store(self, index: int = 0) -> Iterator[None]:
        """Stop a store's process meanwhile (SIGSTOP): it exists and does not answer."""
        store = self._stores[index]
        store.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            store.signal(signal.SIGCONT)  # does nothing if it was killed meanwhile

    def close(self) -> None:
        """Kill all nodes and remove the temporary directory.  Idempotent."""
        for index in tuple(self._stores):
            self.kill_store(index)
        self.kill_tower()
        for held in self._held:
            held.close()
        if self._temporary is not None:
            self._temporary()

    def _leave_with(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            for node in filter(None, (self._tower, *self._stores.values())):
                if log := node.log():
                    error.add_note(f"The log of the {node.kind}:\n{log}")
        self.close()

    def _hold_port(self) -> int:
        """Return a free port at which no node but ours listens, also while ours is killed."""
        held = socket.socket()
        self._held.append(held)
        # Nodes set it as well, and so can listen.  No connection gets a port that is bound.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])

    def _node(self, kind: str, arguments: Sequence[str]) -> _NodeProcess:
        return _NodeProcess(kind, arguments)

    def on_forked(self) -> None:
        """Close the child's copies of ports, and of pipes: nodes end when their input does."""
        for held in vars(self).get("_held", ()):
            held.close()
        tower, stores = vars(self).get("_tower"), vars(self).get("_stores", {})
        for node in filter(None, (tower, *stores.values())):
            node.close_pipes()


class _NodeProcess:
    """A node in a child process, which ends when this process does."""

    def __init__(self, kind: str, arguments: Sequence[str]) -> None:
        self.kind = kind
        # Not a pipe, which would need a thread to read it.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- ``kill`` closes it
        # The node ends when its input does, and so when this process ends.
        self._process = self._launch([kind, "--exit-with-parent", *arguments])
        watchdog = threading.Timer(START_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            self.ready: dict[str, Any] = self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        finally:
            watchdog.cancel()

    def _launch(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-m", "dafka_core.cli", *arguments], subprocess.PIPE
        streams: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": self._errors}
        # A Ctrl-C is for this process, which may continue, as a notebook's kernel does.
        return subprocess.Popen(command, **streams, text=True, start_new_session=True)

    def _wait_until_ready(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(READY):
                ready: dict[str, Any] = json.loads(line.removeprefix(READY))
                return ready
        self._process.wait()
        raise NodeFailedError(self.kind, self.log() or "it did not start in time")

    def log(self) -> str:
        """Return the end of its log."""
        file = self._errors.fileno()  # whose position it shares with the node
        start = max(os.fstat(file).st_size - _LOG_BYTES, 0)
        return os.pread(file, _LOG_BYTES, start).decode(errors="replace").strip()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close_pipes(self) -> None:
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            pipe.close()

    def kill(self) -> None:
        with self._process, self._errors:
            self._process.kill()


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)

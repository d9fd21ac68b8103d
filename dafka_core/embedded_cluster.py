"""A cluster in child processes, for demos, notebooks and tests.

No Docker and nothing to configure: a tower and stores on free loopback ports with a temporary
directory, gone when the ``with`` block ends, and when the parent dies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dafka_core.closing import Closing
from dafka_core.errors import NodeFailedError

READY: Final = "READY "
"""What a node's process prints, followed by JSON, when it serves."""

START_TIMEOUT_S: Final = 30.0
"""A loaded machine takes seconds to start Python."""


class EmbeddedCluster(Closing):
    """A tower and ``stores`` stores.

    Args:
        stores: how many.
        directory: where the stores keep their records, one subdirectory each; kept at the end.
            A temporary one that is removed, if none is given.

    Raises:
        NodeFailedError: a node did not start; says what it printed.
    """

    def __init__(self, stores: int = 1, directory: str | Path | None = None) -> None:
        self._temporary = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="dafka-")
            directory = self._temporary.name
        self.directory = Path(directory)
        self._tower: _Child | None = None
        self._ports = (0, 0)
        self._stores: list[_Child | None] = [None] * stores
        try:
            self.start_tower()
            for index in range(stores):
                self.start_store(index)
        except BaseException:
            self.close()
            raise

    @property
    def tower(self) -> str:
        """``HOST:SUB_PORT:PUB_PORT``, for the ``tower`` option of nodes and of Spark."""
        return f"127.0.0.1:{self._ports[0]}:{self._ports[1]}"

    @property
    def stores(self) -> list[str]:
        """The addresses of the stores that run."""
        return [str(store.ready["address"]) for store in self._stores if store is not None]

    def store_directory(self, index: int = 0) -> Path:
        """Where a store keeps its records."""
        return self.directory / f"store-{index}"

    def start_tower(self) -> None:
        """Starts the tower, on the ports it had before if it was killed."""
        sub, pub = (f"tcp://127.0.0.1:{port}" for port in self._ports)
        self._tower = _Child("tower", ["--sub-address", sub, "--pub-address", pub])
        self._ports = (int(self._tower.ready["sub_port"]), int(self._tower.ready["pub_port"]))

    def kill_tower(self) -> None:
        """Kills the tower as a crash would (SIGKILL)."""
        if self._tower is not None:
            self._tower.kill()
            self._tower = None

    def locations(self, index: int = 0) -> tuple[str, ...]:
        """Where a store that runs can be read in bulk, as URIs of Arrow Flight."""
        store = self._stores[index]
        return tuple(store.ready["flight"]) if store is not None else ()

    def start_store(self, index: int = 0, *, flight_port: int | str | None = None) -> None:
        """Starts a store on its directory; ``index`` may be one more than there are.

        ``flight_port``: see ``StoreOptions``, whose default it has.
        """
        if index == len(self._stores):
            self._stores.append(None)
        arguments = ["--dir", str(self.store_directory(index)), "--tower", self.tower]
        if flight_port is not None:
            arguments += ["--flight-port", str(flight_port)]
        self._stores[index] = _Child("store", arguments)

    def kill_store(self, index: int = 0) -> None:
        """Kills a store as a crash would (SIGKILL)."""
        store = self._stores[index]
        if store is not None:
            store.kill()
            self._stores[index] = None

    def close(self) -> None:
        """Stops everything and removes the temporary directory; may be called twice."""
        for child in (*self._stores, self._tower):
            if child is not None:
                child.kill()
        self._stores = [None] * len(self._stores)
        self._tower = None
        if self._temporary is not None:
            self._temporary.cleanup()


class _Child:
    """A node in a process of its own, which ends when this one does."""

    def __init__(self, what: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "dafka_core.cli", what, "--exit-with-parent", *arguments]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end tells the child that the parent is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said: list[str] = []
        self._reading = threading.Thread(target=self._read_errors, daemon=True)
        self._reading.start()
        watchdog = threading.Timer(START_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            self.ready: dict[str, Any] = self._wait_until_ready(what)
        except BaseException:
            self.kill()
            raise
        finally:
            watchdog.cancel()

    def _wait_until_ready(self, what: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(READY):
                ready: dict[str, Any] = json.loads(line.removeprefix(READY))
                return ready
        self._process.wait()
        self._reading.join()
        raise NodeFailedError(what, "".join(self._said).strip() or "it did not start in time")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            del self._said[:-100]  # the last lines say why

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

"""``dafka`` in processes that start without importing its modules.

Starting Python is most of the cost of a test's process.  These are forked from a server that has
imported everything and done nothing else.  Tests of the start or end of a process do without.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Self, cast

from dafka_core import cli
from dafka_core.cli import main
from dafka_core.testing.embedded_cluster import EmbeddedCluster, _NodeProcess

_CLI = Path(cli.__file__).parent
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "dafka_core.cli.app",
        *(f"dafka_core.cli.{path.stem}" for path in _CLI.glob("*_command*.py")),
        "dafka_core.flight.server",
        "dafka_core.flight.store_client",
        *(f"dafka_core.nodes.{node}" for node in ("consumer", "producer", "reader", "store")),
        "dafka_core.nodes.tower",
        "dafka_core.ops.endpoint",
        "dafka_core.ops.gathering",
        "dafka_core.queries.query_progress",
        "dafka_kafka.gateway",
        "rich.progress",
        "pytest",  # the main module of this process, which each child imports
        __name__,
    ]
)


class Forked:
    """``dafka`` with ``arguments`` and pipes; has the used methods of ``subprocess.Popen``.

    Args:
        arguments: of the command line.
        errors: the file for its standard error.
        environment: its complete environment.
        text: whether its pipes carry text.
        streams: by number, files that replace standard streams; None closes one.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        errors: IO[Any],
        environment: Mapping[str, str],
        *,
        text: bool = False,
        streams: Mapping[int, str | None] | None = None,
    ) -> None:
        its_input, given = os.pipe()
        taken, its_output = os.pipe()
        self.stdin: IO[Any] = os.fdopen(given, "w" if text else "wb")
        self.stdout: IO[Any] = os.fdopen(taken, "r" if text else "rb")
        ends = (
            Connection(its_input, writable=False),
            Connection(its_output, readable=False),
            Connection(os.dup(errors.fileno()), readable=False),
        )
        self._child = _SERVER.Process(
            target=_run,
            args=(arguments, dict(environment), Path.cwd(), ends, dict(streams or {})),
            daemon=True,
        )
        self._child.start()
        assert self._child.pid is not None
        self.pid = self._child.pid
        for end in ends:
            end.close()

    def poll(self) -> int | None:
        return self._child.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._child.join(timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("dafka", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


class ForkedCluster(EmbeddedCluster):
    """An ``EmbeddedCluster`` of forked nodes."""

    def _node(self, kind: str, arguments: Sequence[str]) -> _NodeProcess:
        return ForkedNode(kind, arguments)


class ForkedNode(_NodeProcess):
    def _launch(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        forked = Forked(arguments, self._errors, os.environ, text=True)
        return cast("subprocess.Popen[str]", forked)


def _run(
    arguments: Sequence[str],
    environment: dict[str, str],
    cwd: Path,
    ends: Sequence[Connection],
    streams: dict[int, str | None],
) -> None:
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    for number, path in streams.items():
        os.close(number)
        if path is not None:
            os.open(path, os.O_WRONLY if number else os.O_RDONLY)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    main(arguments)

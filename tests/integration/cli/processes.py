"""``dafka`` as a process, with its pipes."""

import contextlib
import json
import os
import pty
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from subprocess import CompletedProcess
from typing import IO, Any, Self

from tests.forked import Forked

# Generous: only failures and busy machines need all of it.
PATIENCE_S = 60.0

_STYLE = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal: colours and the like

ANY_PORTS = ("--sub-address", "tcp://127.0.0.1:0", "--pub-address", "tcp://127.0.0.1:*")


def environment(**more: str) -> dict[str, str]:
    """The test's own, without what would change where ``dafka`` goes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DAFKA_")}
    return kept | {"DAFKA_CONFIG": os.devnull} | more


def listed(done: CompletedProcess[bytes]) -> list[list[str]]:
    """The cells of a list's lines, without its headings."""
    lines = done.stdout.decode().splitlines()
    return [re.split(" {2,}", line) for line in lines[1:]]


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "dafka_core.cli", *arguments]


def ended(program: Sequence[str], *, check: bool = False, **more: Any) -> CompletedProcess[Any]:
    """Run a program to its end; ``more`` is as of ``subprocess.run``."""
    given: dict[str, Any] = {"capture_output": True, "timeout": PATIENCE_S, "env": environment()}
    return subprocess.run(program, check=check, **given | more)


def run(
    *arguments: str,
    given: bytes = b"",
    streams: Mapping[int, str | None] | None = None,
    **variables: str,
) -> CompletedProcess[bytes]:
    """Runs a command to its end; ``given`` is its standard input, ``streams`` as ``Forked``'s."""
    with tempfile.TemporaryFile() as errors:
        with Forked(arguments, errors, environment(**variables), streams=streams) as process:
            late = threading.Timer(PATIENCE_S, process.kill)
            feeding = threading.Thread(target=_feed, args=(process.stdin, given))
            late.start()
            feeding.start()
            said = process.stdout.read()
            code = process.wait()
            late.cancel()
            feeding.join()
        errors.seek(0)
        return CompletedProcess(command(arguments), code, said, errors.read())


def succeed(*arguments: str, **more: Any) -> CompletedProcess[bytes]:
    done = run(*arguments, **more)
    assert done.returncode == 0, done.stderr
    return done


def json_lines(*arguments: str, **more: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in succeed(*arguments, **more).stdout.splitlines()]


def refusal(code: int, *arguments: str, **more: Any) -> str:
    """Return the sentence in which a command complains before it exits with this code."""
    done = run(*arguments, **more)
    assert done.returncode == code, done.stderr
    return sentence(done)


def shown(*arguments: str) -> str:
    """Return a command's terminal output, beside its results."""
    terminal, its_end = pty.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        done = run(*arguments, streams={2: os.ttyname(its_end)}, TERM="xterm", COLUMNS="80")
        os.close(its_end)
        assert done.returncode == 0
        found = b""
        with contextlib.suppress(OSError):  # at its end: all writers have closed
            while octets := screen.read(65_536):
                found += octets
    return _STYLE.sub("", found.decode())


def _feed(pipe: IO[bytes], given: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(given)


def sentence(process: CompletedProcess[bytes]) -> str:
    """The one line in which a command complained."""
    [line] = process.stderr.decode().splitlines()
    assert line.startswith("dafka: ")
    return line.removeprefix("dafka: ")


class Lines:
    """The lines of a pipe, which may be waited for."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._queue: queue.Queue[bytes | None] = queue.Queue()
        self._pipe = pipe
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def next(self, timeout_s: float = PATIENCE_S) -> bytes | None:
        """The next line without its newline; None at the end."""
        return self._queue.get(timeout=timeout_s)

    def rest(self) -> list[bytes]:
        return list(iter(self.next, None))

    def abandon(self) -> None:
        """Reads no further, as ``head`` does: the writer gets a broken pipe."""
        self._abandoned.set()
        self._thread.join(PATIENCE_S)
        self._pipe.close()

    def _read(self) -> None:
        for line in self._pipe:
            self._queue.put(line.removesuffix(b"\n"))
            if self._abandoned.is_set():
                break
        self._queue.put(None)

    def close(self) -> None:
        self._thread.join(PATIENCE_S)
        self._pipe.close()


class Dafka:
    """A command that runs until it is stopped."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            command(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**variables),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.input = self.process.stdin
        self.out = Lines(self.process.stdout)
        self.err = Lines(self.process.stderr)

    def ready(self) -> dict[str, Any]:
        """Wait until the node serves; return its ready line."""
        line = self.out.next()
        assert line is not None, self.err.rest()
        assert line.startswith(b"READY ")
        facts: dict[str, Any] = json.loads(line.removeprefix(b"READY "))
        return facts

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.input.close()
        self.out.close()
        self.err.close()

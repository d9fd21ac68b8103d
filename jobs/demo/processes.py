"""Jobs as processes that can be watched, stopped and killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

JOBS = Path(__file__).resolve().parent

# A stopping query finishes its tasks and its JVM writes its logs: seconds, on a busy machine more.
STOP_TIMEOUT_S = 60.0

# A driver's JVM outlives its Python a little, to remove its temporary files.
LINGER_TIMEOUT_S = 10.0

LOG_TAIL_LINES = 25


class JobFailedError(Exception):
    """A job ended by itself with an error."""

    def __init__(self, script: str, code: int, log: Path) -> None:
        tail = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        super().__init__(f"{script} ended with {code}; the end of {log}:\n" + "\n".join(tail))
        self.code = code


class Job:
    """A job in a process group of its own; what it prints, one JSON object a line, is collected.

    Everything else it has to say goes to the file ``log``.  Leaving the context kills it.
    """

    def __init__(self, script: str, arguments: Sequence[str], log: Path) -> None:
        self.script = script
        self.log = log
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(JOBS / script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._reading = threading.Thread(target=self._read, name=f"{script} output", daemon=True)
        self._reading.start()

    def events(self) -> Iterator[dict[str, Any]]:
        """Return the output of the job since the last call.

        Raises:
            JobFailedError: it has ended with an error; raised when all it printed has been given.
        """
        code = self._process.poll()
        if code is not None:
            self._await_output()
        while not self._events.empty():
            yield self._events.get()
        if code:
            raise JobFailedError(self.script, code, self.log)

    @property
    def running(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask the job to end, and wait until it has.

        Raises:
            JobFailedError: it ended with an error.
        """
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_TIMEOUT_S)
        self._await_output()
        if code:
            raise JobFailedError(self.script, code, self.log)

    def kill(self) -> int:
        """Kill the whole process group, a Spark driver's JVM included; return the exit code."""
        # Output that is still open belongs to one of the group: the group's number is not reused.
        if self._process.poll() is None or self._reading.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _await_output(self) -> None:
        self._reading.join(LINGER_TIMEOUT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, self.log.open("a") as log:
            for line in lines:
                if line.startswith("{"):
                    self._events.put(json.loads(line))
                else:  # a JVM's warnings go to the same output
                    log.write(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

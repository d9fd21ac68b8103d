"""The life of a ``dafka`` process: signals, exit codes, memory, systemd, and standard streams."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EBADF
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, Self, TextIO

import dafka_core
from dafka_core.cli import output
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.name_limits import nearest_name
from dafka_core.system.closing import check_threads
from dafka_core.system.files import raise_open_files_limit

if TYPE_CHECKING:
    import click
    from _typeshed import ReadableBuffer


# Standard streams may be closed, their disk full or their reader gone.  Failures are reported,
# except those of standard error itself.
_INPUT, _OUTPUT, _ERRORS = range(3)

_AS_CLOSED: Final = {_INPUT: os.O_WRONLY, _OUTPUT: os.O_RDONLY, _ERRORS: os.O_WRONLY}
"""Modes in which closed streams' descriptors are opened: their reads and writes still fail."""


class OutputClosedError(Exception):
    """The process that read standard output has closed it."""


@dataclass(eq=False)
class StreamError(DafkaError):
    """A standard stream that cannot be used."""

    sentence = "standard {stream} cannot be {used}: {why}"
    stream: str
    used: str
    why: str


def settle() -> None:
    """Occupy the descriptors of closed streams, and replace ``sys.stdout`` and ``sys.stderr``.

    Call it first: a socket that got a closed stream's descriptor would be read as the input.
    """
    for number, mode in _AS_CLOSED.items():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free descriptor, which is this number
    results = io.BufferedWriter(_Output(_OUTPUT, "w", closefd=False))
    before: TextIO | None = sys.stdout  # None if it was closed when Python started
    sys.stdout = io.TextIOWrapper(
        results,
        before.encoding if before else "utf-8",
        before.errors if before else None,
        line_buffering=results.isatty(),
    )
    # Unbuffered: after a write that a signal interrupts, a buffer would be written twice.
    sys.stderr = io.TextIOWrapper(
        _Errors(_ERRORS, "w", closefd=False),
        sys.stdout.encoding,
        "backslashreplace",
        write_through=True,
    )


def read_input(most_bytes: int, wait: Callable[[], object] = lambda: None) -> bytes:
    """Return up to ``most_bytes`` of standard input, for which ``wait`` waits; empty at its end.

    Raises:
        StreamError: it is closed or cannot be read.
    """
    while True:
        try:
            wait()
            return os.read(_INPUT, most_bytes)
        except BlockingIOError:
            continue
        except OSError as error:
            raise StreamError("input", "read", _why(error)) from None


class _Output(io.FileIO):
    """Standard output: writes are complete, and after a failed write nothing is written."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(data)) is None:  # non-blocking and full
                select.select([], [self], [])
        except BaseException as error:
            # Also after a signal: at exit the interpreter writes the rest of the buffer, and must
            # not wait for a slow reader.
            self._drop()
            if isinstance(error, BrokenPipeError):
                raise OutputClosedError from None
            if isinstance(error, OSError):
                raise StreamError("output", "written", _why(error)) from None
            raise
        return written

    def _drop(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


class _Errors(io.FileIO):
    """Standard error: failed writes are ignored, as they cannot be reported."""

    def write(self, data: ReadableBuffer, /) -> int:
        left = memoryview(data)
        with contextlib.suppress(OSError):
            while left:
                written = super().write(left)
                if written is None:
                    select.select([], [self], [])
                left = left[written or 0 :]
        return memoryview(data).nbytes


def _why(error: OSError) -> str:
    return "it is closed" if error.errno == EBADF else str(error.strerror)


_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

LARGEST_KEPT_BYTES: Final = 32 << 20
"""Larger allocations are mapped and unmapped each time; this is glibc's maximum, and more than a
block of the log."""

KEPT_BYTES: Final = 128 << 20  # freed memory above this is returned to the system

STEP_BYTES: Final = 32 << 20
"""The heap grows by this: the size of a group of records that is written to disk."""


ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"  # chooses Arrow's allocator when it is imported


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse, up to a limit; other C libraries ignore it.

    Otherwise a store, which needs large buffers for every group of records, spends more than half
    of its time in the kernel zeroing new pages.  Arrow uses glibc, too: its own allocators keep any
    amount, as for a compressed batch, which a store refuses only when it is open.
    """
    if ARROW_POOL not in os.environ:
        os.putenv(ARROW_POOL, "system")  # not in os.environ, which ``dafka job`` passes on
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, STEP_BYTES)


SOCKET: Final = "NOTIFY_SOCKET"
"""Names systemd's socket for the datagrams of units with ``Type=notify``; see sd_notify(3)."""

WATCHDOG: Final = "WATCHDOG_USEC"
"""Microseconds without a heartbeat after which systemd restarts the unit."""

SIGNS: Final = 3  # heartbeats within that time, so that a late one does not restart the node
PATIENCE_S: Final = 5.0  # time limit for sending to systemd


class Served(Protocol):
    """A node, or a server, that a command runs until it is stopped."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has stopped; return whether it has."""


@contextmanager
def systemd_notified(node: Served) -> Iterator[None]:
    """Notify systemd that a node serves, send heartbeats, and notify it when the node stops."""
    address = os.environ.get(SOCKET, "")
    if not address:
        yield
        return
    _notify(address, "READY=1")
    ended = threading.Event()
    microseconds = os.environ.get(WATCHDOG, "")
    if microseconds.isdecimal() and (interval_s := int(microseconds) / 1e6 / SIGNS):
        heartbeats = partial(_send_heartbeats, address, node, interval_s, ended)
        threading.Thread(target=heartbeats, name="dafka-watchdog", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _notify(address, "STOPPING=1")


def _send_heartbeats(address: str, node: Served, interval_s: float, ended: threading.Event) -> None:
    """Send heartbeats while ``/healthz`` would report the node as alive."""
    from dafka_core.ops.health import is_alive, of_node

    while not ended.wait(interval_s):
        if not isinstance(node, dafka_core.Store | dafka_core.Tower) or is_alive([*of_node(node)]):
            _notify(address, "WATCHDOG=1")


def _notify(address: str, word: str) -> None:
    if address.startswith("@"):  # an abstract socket, which has no file
        address = "\0" + address[1:]
    # A node keeps running without systemd.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE_S)
        sender.sendto(word.encode(), address)


EXIT_OK: Final = 0  # done; also after a node was stopped, or the reader of the output closed it

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""An invalid option, argument, setting or environment variable."""

EXIT_SIGNAL: Final = 128  # plus the signal's number, as in shells: stopped before all was done

_REMIND_INTERVAL_S: Final = 0.05
"""Interval at which a signal is sent again until the main thread has handled it."""

_IMPORTING: Final = "<frozen importlib._bootstrap>"
"""The file name in the frames of Python's import system."""


class Stopped(BaseException):
    """Signal ``number``, SIGINT or SIGTERM, was received: close all nodes.

    A BaseException, so that ``except Exception`` does not catch it. ``again`` is True for a
    repeated Ctrl-C.
    """

    def __init__(self, number: int, again: bool = False) -> None:
        super().__init__(number)
        self.number = number
        self.again = again


def run(arguments: Sequence[str] | None, load_app: Callable[[], click.Command]) -> int:
    """Run a command of the app; return the process's exit code.

    ``load_app`` imports the commands, which takes a while: signals and errors are handled by then.
    """
    settle()
    output.begin()
    keep_freed_memory()
    raise_open_files_limit()  # each peer needs some descriptors
    try:
        check_threads()
        signals.handle()
        return _run(arguments, load_app)
    except Stopped as stopped:
        return EXIT_SIGNAL + stopped.number
    except OutputClosedError:
        return EXIT_OK  # as in "dafka consume t | head"
    except DafkaError as error:
        output.error(str(error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    finally:
        # At exit the interpreter restores the default, and a late signal would change the exit
        # code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _run(arguments: Sequence[str] | None, load_app: Callable[[], click.Command]) -> int:
    import click

    try:
        code = load_app().main(args=arguments, prog_name="dafka", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        output.error(_usage_sentence(error))
        code = error.exit_code
    except click.Abort:
        output.error("aborted")
        code = EXIT_FAILED
    sys.stdout.flush()  # of the help
    return code if isinstance(code, int) else EXIT_OK


class _Signals:
    """The signals received so far.

    As a context it defers the first one to ``let_in`` or to its end, but not a second Ctrl-C.
    """

    def __init__(self) -> None:
        self._numbers: Collection[signal.Signals] = ()
        self._received: list[int] = []
        self._seen = threading.Event()
        self._held = False

    def handle(self, numbers: Collection[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Make the first of these signals raise ``Stopped`` in the main thread.

        A second Ctrl-C then ends the process at once; a second SIGTERM is ignored, as service
        managers may send several. A command that continues after the first signal calls this again.
        """
        self._numbers, self._received, self._held = numbers, [], False
        sys.unraisablehook = self._on_unraisable
        self._raise_next()

    def _raise_next(self) -> None:
        """Raise ``Stopped`` for the next signal, or again for one that is received already."""
        self._seen = threading.Event()
        _remind_main_thread(self._seen, bool(self._received))
        for number in self._numbers:
            signal.signal(number, self._note)

    def _on_unraisable(self, dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, Stopped):  # of a signal that arrived in a destructor
            self._raise_next()
        else:
            sys.__unraisablehook__(dropped)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        again = number == signal.SIGINT and len(self._received) > 1  # reminders are SIGTERM
        if _is_importing(frame):
            return  # importlib may drop the exception; the signal is sent again
        if again or not self._held:
            self._stop(again)

    def _stop(self, again: bool = False) -> None:
        # Not SIG_IGN and SIG_DFL: for a pending signal the interpreter would print a traceback.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        ctypes.CDLL(None).signal(signal.SIGINT, signal.SIG_DFL)
        self._seen.set()  # last: it takes a lock, on which a nested handler would deadlock
        raise Stopped(self._received[0], again)

    def __enter__(self) -> Self:
        self._held = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._held = False
        if kind is None and self._received:
            self._stop()

    def let_in(self, wait: Callable[[], object]) -> None:
        """Call ``wait``, which the first signal may interrupt; raise a deferred one before."""
        self._held = False
        try:
            if self._received:
                self._stop()
            wait()
        finally:
            self._held = True


signals: Final = _Signals()  # the signals of this process


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTING:
        frame = frame.f_back
    return frame is not None


def serve_until_stopped(node: Served, **facts: object) -> None:
    """Report that a node serves, and wait until a signal stops it."""
    with contextlib.suppress(Stopped):
        output.ready(**facts)
        with systemd_notified(node):
            node.wait(None)


def _remind_main_thread(seen: threading.Event, received: bool) -> None:
    """Send a signal, which may be received already, again until the main thread has handled it.

    The interpreter runs handlers between two instructions. If a signal arrives after its last
    check, but before a blocking system call, the handler runs after that call, perhaps never.
    """
    arrived, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def remind() -> None:
        if not received:
            os.read(arrived, 1)
        while not seen.wait(_REMIND_INTERVAL_S):
            _interrupt_main_thread()

    threading.Thread(target=remind, name="dafka-signals", daemon=True).start()


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGTERM)


def stop_when_input_ends() -> None:
    """Stop the process, as SIGTERM does, when standard input ends.

    The parent holds the other end of the pipe, which closes when the parent ends.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):  # a closed input counts as ended
            while os.read(0, 4_096):
                continue
        _interrupt_main_thread()

    threading.Thread(target=watch, name="dafka-parent", daemon=True).start()


def _usage_sentence(error: click.ClickException) -> str:
    import click

    ctx = getattr(error, "ctx", None)
    path = "dafka" if ctx is None else ctx.command_path
    match error:
        case click.NoSuchOption() if ctx is not None:
            known = [name for each in ctx.command.get_params(ctx) for name in each.opts]
            return f"unknown option {error.option_name}{_hint(error.option_name, known, path)}"
        case click.exceptions.NoSuchCommand() if ctx is not None:
            known = ctx.command.list_commands(ctx)
            return f"unknown command {error.command_name!r}{_hint(error.command_name, known, path)}"
    message = re.sub(r"\s+", " ", error.format_message()).rstrip(".")
    return f"{message} (see '{path} --help')"


def _hint(name: str, known: Collection[str], path: str) -> str:
    near = nearest_name(name, known)
    return f"; did you mean {near}?" if near else f" (see '{path} --help')"

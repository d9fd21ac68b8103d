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
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, Self, TextIO

from dafka_core.cli import output
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.name_limits import nearest_name
from dafka_core.nodes.process_limits import raise_limit
from dafka_core.system.closing import check_threads

if TYPE_CHECKING:
    import typer
    from _typeshed import ReadableBuffer


# The process's standard streams, whatever its parent has made of them.
#
# A stream may be closed, its disk full or its reader gone.  Nothing of that is lost in silence, but
# for the words on standard error when nobody takes them: the exit code tells then.


_INPUT, _OUTPUT, _ERRORS = range(3)

_AS_CLOSED: Final = {_INPUT: os.O_WRONLY, _OUTPUT: os.O_RDONLY, _ERRORS: os.O_WRONLY}
"""How a closed stream's number is taken: reading from it and writing results to it still fail."""


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
    """Takes the numbers of closed streams, and has Python write through what watches failures.

    Must come before anything else opens a file, which would get a closed stream's number: a
    command would then take its own sockets for its input.
    """
    for number, mode in _AS_CLOSED.items():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest number that is free: this one
    results = io.BufferedWriter(_Output(_OUTPUT, "w", closefd=False))
    before: TextIO | None = sys.stdout  # None if it was closed when Python started
    sys.stdout = io.TextIOWrapper(
        results,
        before.encoding if before else "utf-8",
        before.errors if before else None,
        line_buffering=results.isatty(),
    )
    # Without a buffer: a signal that ends a write would have it written again.
    sys.stderr = io.TextIOWrapper(
        _Errors(_ERRORS, "w", closefd=False),
        sys.stdout.encoding,
        "backslashreplace",
        write_through=True,
    )


def wait_for_input() -> None:
    """Waits until some of standard input can be read, or its end."""
    select.select([_INPUT], [], [])


def read_input(most_bytes: int, wait: Callable[[], None] = wait_for_input) -> bytes:
    """Up to ``most_bytes`` of standard input, as soon as there are any; empty at its end.

    Raises:
        StreamError: it is closed, or cannot be read.
    """
    while True:
        try:
            if most_bytes:
                wait()
            return os.read(_INPUT, most_bytes)
        except BlockingIOError:
            continue
        except OSError as error:
            raise StreamError("input", "read", _why(error)) from None


class _Output(io.FileIO):
    """Standard output: no write is cut short, and the first that fails is the last."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(data)) is None:  # it does not block, and is full
                select.select([], [self], [])
        except BaseException as error:
            # Also when a signal has ended the wait for a slow reader: the interpreter, which
            # writes what is left when it ends, must not wait again.
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
    """Standard error: what cannot be written is nowhere else to be said."""

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
"""Smaller pieces come from glibc's heap, larger ones from the system each time.  glibc takes no
higher limit; a burst of messages and a block of the log are smaller."""

KEPT_BYTES: Final = 128 << 20
"""Freed memory above this goes back to the system."""

STEP_BYTES: Final = 32 << 20
"""What the heap grows by: a group of records on its way to the disk."""


def keep_freed_memory() -> None:
    """Has glibc keep freed memory for the next burst, instead of giving it back each time.

    The system zeroes each page that it hands out: a store, which needs large buffers for every
    group of records, would spend more than half of its time on that.  With another C library
    nothing happens.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, STEP_BYTES)


# What systemd is told of a node: that it serves, that it lives, and that it stops.
#
# It is systemd's protocol for units of ``Type=notify``: a word in a datagram to the socket that the
# environment names.  Without that variable nobody is told anything.


SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
"""How long systemd waits for a sign of life, in microseconds, before it starts the unit again."""

SIGNS: Final = 3
"""So many signs of life within that time: one that is late is no reason to end a node."""

PATIENCE_S: Final = 5.0
"""A systemd that does not listen holds no node up for longer."""


class Served(Protocol):
    """A node, or a server, that a command runs until it is stopped."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has stopped; return whether it has."""


@contextmanager
def told_of(node: Served) -> Iterator[None]:
    """Tells systemd that a node serves, meanwhile that it lives, and at the end that it stops."""
    address = os.environ.get(SOCKET, "")
    if not address:
        yield
        return
    _tell(address, "READY=1")
    ended = threading.Event()
    if interval_s := _interval_s(os.environ.get(WATCHDOG, "")):
        arguments = (address, node, interval_s, ended)
        threading.Thread(target=_live, args=arguments, name="dafka-watchdog", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _tell(address, "STOPPING=1")


def _live(address: str, node: Served, interval_s: float, ended: threading.Event) -> None:
    """Tells of life as long as ``/healthz`` would."""
    from dafka_core import Store, Tower
    from dafka_core.ops.health import is_alive, of_node

    while not ended.wait(interval_s):
        if not isinstance(node, Store | Tower) or is_alive([*of_node(node)]):
            _tell(address, "WATCHDOG=1")


def _interval_s(microseconds: str) -> float:
    return int(microseconds) / 1e6 / SIGNS if microseconds.isdecimal() else 0.0


def _tell(address: str, word: str) -> None:
    if address.startswith("@"):  # an abstract socket, which has no file
        address = "\0" + address[1:]
    # A node works on where nobody listens any more.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.settimeout(PATIENCE_S)
        sender.sendto(word.encode(), address)


EXIT_OK: Final = 0
"""All is done; also a node that served and was stopped, or a reader of the output that has gone."""

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""What was asked for cannot be done: an option, an argument or an environment variable is wrong."""

EXIT_SIGNAL: Final = 128
"""With a signal's number added, as shells do it: stopped before all was done."""

_REMIND_INTERVAL_S: Final = 0.05
"""How long the main thread may take to see a signal before it is reminded of it."""

_IMPORTING: Final = "<frozen importlib._bootstrap>"
"""Where Python's code for imports is, as its frames have it."""


class Stopped(BaseException):
    """SIGINT or SIGTERM, ``number``: nodes are to be closed.  No ``except Exception`` stops it.

    ``again`` says that it was Ctrl-C, and not the first one.
    """

    def __init__(self, number: int, again: bool = False) -> None:
        super().__init__(number)
        self.number = number
        self.again = again


def run(arguments: Sequence[str] | None, load_app: Callable[[], typer.Typer]) -> int:
    """Run a command of the app; return the process's exit code.

    ``load_app`` is called where signals and errors are handled already: importing the commands
    takes a while.
    """
    settle()
    output.begin()
    keep_freed_memory()
    raise_limit()  # each peer takes some descriptors
    try:
        check_threads()
        handle_stop_signals()
        return _run(arguments, load_app)
    except Stopped as stopped:
        return EXIT_SIGNAL + stopped.number
    except OutputClosedError:
        return EXIT_OK  # the reader has had enough, as in "dafka consume t | head"
    except DafkaError as error:
        output.complain(str(error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    finally:
        # The interpreter's end would restore the default, and a late signal change the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _run(arguments: Sequence[str] | None, load_app: Callable[[], typer.Typer]) -> int:
    import typer

    from dafka_core.cli.version_command import prepare_completion

    app = load_app()
    prepare_completion()
    try:
        code = app(args=arguments, prog_name="dafka", standalone_mode=False)
    except typer.TyperException as error:
        if error.format_message():  # empty without a command: the help was shown then
            output.complain(_usage_sentence(error))
        code = error.exit_code
    sys.stdout.flush()  # of the help
    return code if isinstance(code, int) else EXIT_OK


def handle_stop_signals(
    numbers: Collection[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> None:
    """Has the first of these signals raise ``Stopped`` in the main thread.

    A second Ctrl-C then ends the process at once, for a user who will not wait for the close; a
    second SIGTERM does nothing, as service managers may send several.  A command that goes on after
    the first signal calls this again.
    """
    _signals.handle(numbers)


class _Signals:
    """Those of this process that stop it, and whether they may do so now."""

    def __init__(self) -> None:
        self._come: list[int] = []
        self._seen = threading.Event()
        self._held = False

    def handle(self, numbers: Collection[signal.Signals]) -> None:
        self._come, self._seen, self._held = [], threading.Event(), False
        _remind_main_thread(self._seen)
        for number in numbers:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._come.append(number)
        again = number == signal.SIGINT and len(self._come) > 1  # reminders are SIGTERM
        if _is_importing(frame):
            return  # there, an error may end in a callback that drops it: the reminder comes again
        if again or not self._held:
            self._stop(again)

    def _stop(self, again: bool = False) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # Not SIG_IGN: if one is due already, the interpreter would print a traceback.
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        self._seen.set()  # last: it takes a lock, for which a handler within this one would wait
        raise Stopped(self._come[0], again)

    def __enter__(self) -> Self:
        self._held = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._held = False
        if kind is None and self._come:
            self._stop()

    def let_in(self, wait: Callable[[], None]) -> None:
        """Waits where the first signal may come, or has come and is raised."""
        self._held = False
        try:
            if self._come:
                self._stop()
            wait()
        finally:
            self._held = True


_signals: Final = _Signals()


def held_signals() -> _Signals:
    """A context in which the first signal comes only where it is let in, or when the context ends.

    A second Ctrl-C comes through.
    """
    return _signals


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTING:
        frame = frame.f_back
    return frame is not None


def serve_until_stopped(node: Served, **facts: object) -> None:
    """Says that a node serves, and where; waits until it is told to stop, which is its end."""
    with contextlib.suppress(Stopped):
        output.ready(**facts)
        with told_of(node):
            node.wait(None)


def _remind_main_thread(seen: threading.Event) -> None:
    """Has the main thread see a signal that arrives just when it begins to wait.

    The interpreter runs handlers between two instructions.  If a signal arrives after it has
    looked for signals last, and before the system call that waits, the handler runs when that call
    ends: without another signal perhaps never, and the node would run on.
    """
    arrived, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def remind() -> None:
        os.read(arrived, 1)
        while not seen.wait(_REMIND_INTERVAL_S):
            _interrupt_main_thread()

    threading.Thread(target=remind, name="dafka-signals", daemon=True).start()


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGTERM)


def stop_when_input_ends() -> None:
    """Has the end of standard input stop the process, as SIGTERM does.

    The parent holds the other end of the pipe, which ends with the parent, however that ends.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):  # a closed input has ended as well
            while os.read(0, 4_096):
                continue
        _interrupt_main_thread()

    threading.Thread(target=watch, name="dafka-parent", daemon=True).start()


def _usage_sentence(error: typer.TyperException) -> str:
    ctx: typer.Context | None = getattr(error, "ctx", None)
    option: str | None = getattr(error, "option_name", None)
    path = ctx.command_path if ctx is not None else "dafka"
    message = re.sub(r"\s+", " ", error.format_message()).rstrip(".").replace("Value error, ", "")
    if ctx is not None and option is not None and message.startswith("No such option"):
        known = [name for each in ctx.command.get_params(ctx) for name in each.opts]
        return f"there is no option {option}{_hint(option, known, path)}"
    if ctx is not None and (command := re.fullmatch(r"No such command '(.*)'", message)):
        known = [*getattr(ctx.command, "commands", ())]
        return f"there is no command {command[1]!r}{_hint(command[1], known, path)}"
    return f"{message} (see '{path} --help')"


def _hint(name: str, known: Collection[str], path: str) -> str:
    near = nearest_name(name, known)
    return f"; did you mean {near}?" if near else f" (see '{path} --help')"

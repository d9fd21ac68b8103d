"""The life of a ``dafka`` process: signals, the end of its parent, and errors as exit codes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, Self

from dafka_core.cli import logs, output, streams
from dafka_core.cli.malloc import keep_freed_memory
from dafka_core.cli.service_manager import Served, told_of
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.native_threads import check_threads
from dafka_core.near_names import nearest_name
from dafka_core.nodes.descriptors import raise_limit

if TYPE_CHECKING:
    import typer


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
    streams.settle()
    logs.begin()
    keep_freed_memory()
    raise_limit()  # each peer takes some descriptors
    try:
        check_threads()
        handle_stop_signals()
        return _run(arguments, load_app)
    except Stopped as stopped:
        return EXIT_SIGNAL + stopped.number
    except streams.OutputClosedError:
        return EXIT_OK  # the reader has had enough, as in "dafka consume t | head"
    except DafkaError as error:
        output.complain(str(error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    finally:
        # The interpreter's end would restore the default, and a late signal change the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _run(arguments: Sequence[str] | None, load_app: Callable[[], typer.Typer]) -> int:
    import typer

    from dafka_core.cli.itself import prepare_completion

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

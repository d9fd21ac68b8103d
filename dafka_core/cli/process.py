"""The life of a ``dafka`` process: signals, the end of its parent, and errors as exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final

from dafka_core.cli import output
from dafka_core.cli.malloc import keep_freed_memory
from dafka_core.errors import DafkaError

if TYPE_CHECKING:
    import typer

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

_INPUT_CHUNK_BYTES: Final = 4_096

_REMIND_INTERVAL_S: Final = 0.05
"""How long the main thread may take to see a signal before it is reminded of it."""


class Stopped(BaseException):
    """SIGINT or SIGTERM: whatever runs is to be closed.  No ``except Exception`` stops it."""


def run(arguments: Sequence[str] | None) -> int:
    """Runs a command; returns the process's exit code."""
    import typer

    keep_freed_memory()
    handle_stop_signals()
    try:
        from dafka_core.cli.app import app

        code = app(args=arguments, prog_name="dafka", standalone_mode=False)
    except Stopped:
        return EXIT_OK
    except output.OutputClosedError:
        # Whoever read us has had enough ("dafka consume t | head"); that is no error of ours.
        return EXIT_OK
    except DafkaError as error:
        output.complain(str(error))
        return EXIT_FAILED
    except typer.TyperException as error:
        if error.format_message():  # without a command the help was shown, and there is no more
            output.complain(_usage_sentence(error))
        return error.exit_code
    finally:
        # The interpreter's end would restore the default: the code is decided, and stays.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code if isinstance(code, int) else EXIT_OK


def handle_stop_signals() -> None:
    """Has the first SIGINT or SIGTERM raise ``Stopped`` in the main thread.

    After it a second Ctrl-C ends the process at once, for a user who will not wait for the close;
    a second SIGTERM does nothing, as whoever stops processes in order may send several.
    """
    seen = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # Not SIG_IGN: of one that is due already the interpreter would complain, with a traceback.
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        seen.set()  # last: it takes a lock, and a handler within this one would wait for it
        raise Stopped

    _remind_main_thread(seen)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def _remind_main_thread(seen: threading.Event) -> None:
    """Has a signal be seen that arrives just when the main thread begins to wait.

    Handlers run between two instructions of the interpreter.  One that became due after the last
    look at it, and before the system call that waits, is due until that call ends, which without
    another signal may be never: the node would run on.
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

    A parent holds the other end of the pipe: when it ends, however it ends, so does the pipe.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):  # a closed input has ended, too
            while os.read(0, _INPUT_CHUNK_BYTES):
                continue
        _interrupt_main_thread()

    threading.Thread(target=watch, name="dafka-parent", daemon=True).start()


def _usage_sentence(error: typer.TyperException) -> str:
    near: Sequence[str] = getattr(error, "possibilities", None) or ()
    if near:
        name = getattr(error, "option_name", "")
        return f"there is no option {name}; did you mean {near[0]}?"
    message = error.format_message()
    return message if "Did you mean" in message else f"{message.rstrip('.')} (see 'dafka --help')"

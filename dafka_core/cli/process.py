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
from dafka_core.nodes.descriptors import raise_limit

if TYPE_CHECKING:
    import typer

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

_REMIND_INTERVAL_S: Final = 0.05
"""How long the main thread may take to see a signal before it is reminded of it."""


class Stopped(BaseException):
    """SIGINT or SIGTERM: nodes are to be closed.  No ``except Exception`` stops it."""


def run(arguments: Sequence[str] | None) -> int:
    """Runs a command; returns the process's exit code."""
    import typer

    keep_freed_memory()
    raise_limit()  # each peer takes some descriptors
    handle_stop_signals()
    try:
        from dafka_core.cli.app import app

        code = app(args=arguments, prog_name="dafka", standalone_mode=False)
    except Stopped:
        return EXIT_OK
    except output.OutputClosedError:
        return EXIT_OK  # the reader has had enough, as in "dafka consume t | head"
    except DafkaError as error:
        output.complain(str(error))
        return EXIT_FAILED
    except typer.TyperException as error:
        if error.format_message():  # empty without a command: the help was shown then
            output.complain(_usage_sentence(error))
        return error.exit_code
    finally:
        # The interpreter's end would restore the default, and a late signal change the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code if isinstance(code, int) else EXIT_OK


def handle_stop_signals() -> None:
    """Has the first SIGINT or SIGTERM raise ``Stopped`` in the main thread.

    A second Ctrl-C then ends the process at once, for a user who will not wait for the close; a
    second SIGTERM does nothing, as service managers may send several.
    """
    seen = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # Not SIG_IGN: if one is due already, the interpreter would print a traceback.
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        seen.set()  # last: it takes a lock, for which a handler within this one would wait
        raise Stopped

    _remind_main_thread(seen)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


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
    near: Sequence[str] = getattr(error, "possibilities", None) or ()
    if near:
        name = getattr(error, "option_name", "")
        return f"there is no option {name}; did you mean {near[0]}?"
    message = error.format_message()
    return message if "Did you mean" in message else f"{message.rstrip('.')} (see 'dafka --help')"

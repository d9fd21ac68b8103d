"""``dafka kafka-user``: who may use a gateway."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from dafka_core.cli import output
from dafka_core.errors import ConfigError
from dafka_core.names import escape, unescape


def kafka_user(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, parser=unescape)],
    *,
    users: Annotated[
        str,
        typer.Option(
            "--kafka-users", metavar="FILE", help="The file, which is made if there is none."
        ),
    ],
    remove: Annotated[bool, typer.Option("--remove", help="Take the user out of it.")] = False,
) -> None:
    """Add a user to those that a gateway lets in, or give one another password.

    The password is asked for, or read from the standard input. Gateways that run take the change
    within a second; who is connected as a user that is removed is cut off.
    """
    path = Path(users)
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if line.partition(" ")[0] != name]
        if remove and kept == lines:
            raise ConfigError("name", name, f"is no user in {path}", "argument")
        added = [] if remove else _lines(name)
        _write(path, [*kept, *added])
    except (OSError, UnicodeError) as error:
        why = f"cannot be read and written ({getattr(error, 'strerror', None) or error})"
        raise ConfigError("kafka_users", escape(users), why) from None
    done = "is no user any more" if remove else "is a user with a new password"
    output.say(f"{escape(name)} {done} in {escape(users)}")


def _lines(name: str) -> list[str]:
    from dafka_core.kafka.users import lines_of

    if os.isatty(0):
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        with open(0, encoding="utf-8", closefd=False) as given:
            password = given.readline().rstrip("\r\n")
    try:
        return lines_of(name, password)
    except ValueError as error:
        # The error names no value: it may be the password.
        raise ConfigError("name", name, str(error), "argument") from None


def _write(path: Path, lines: list[str]) -> None:
    """As a whole, for its owner alone."""
    descriptor, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        Path(made).replace(path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise

"""``dafka keys``: keys for nodes and towers, in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.list_commands import AsJson
from dafka_core.errors import ConfigError
from dafka_core.names import escape, unescape
from dafka_core.security_options import ROLES, parse_roles

DEFAULT_DIRECTORY: Final = "keys"

# Not --dir, which a settings file says of stores.
Directory = Annotated[
    str, typer.Option("--keys", metavar="DIR", help="The directory with the files.")
]


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, parser=unescape)],
    *,
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="|".join(ROLES),
            help="What its owner is; several by commas, or given several times "
            "(default produce,consume). So far only tower is told from the others.",
            show_default=False,
        ),
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Make a key: NAME.key_secret for its owner alone, and NAME.key, which others let in.

    A key of that name that is there is kept.
    """
    from dafka_core.nodes.keys import new_key

    try:
        roles = parse_roles(role or ["produce,consume"])
    except ValueError as error:
        raise ConfigError("role", escape(",".join(role or [])), str(error)) from None
    try:
        public, secret = new_key(Path(directory), name, roles)
    except OSError as error:
        why = f"cannot be written to ({error.strerror})"
        raise ConfigError("keys", escape(directory), why) from None
    output.say(f"made a key with {', '.join(roles)}:")
    output.say(f"  {escape(str(secret))} is its owner's alone (--secret-key-file)")
    output.say(f"  {escape(str(public))} goes where others let it in (--allowed-keys DIR)")


def show(*, directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """List the keys in a directory: what each may be, and whether its secret is there and safe."""
    from dafka_core.nodes.keys import PUBLIC, SECRET, read_public, read_secret

    if not Path(directory).is_dir():
        raise ConfigError("keys", escape(directory), "is no directory")
    rows, is_wrong = [], False
    for path in sorted(Path(directory).glob(f"*{PUBLIC}")):
        secret = path.with_suffix(SECRET)
        key, roles, state = "", "", "elsewhere"
        try:
            public = read_public(path)
            key, roles = public.key, ", ".join(sorted(public.roles, key=ROLES.index))
            if secret.exists():
                state = "here"
                if read_secret(str(secret)).public.decode() != key:
                    raise ValueError(f"is not the public half of {secret.name}")
        except (ValueError, ConfigError) as error:
            is_wrong = True
            state = error.why if isinstance(error, ConfigError) else f"{path.name} {error}"
        rows.append((path.stem, roles, key, state))
    columns = ("name", "roles", "key", "secret")
    output.table(columns, rows, as_json=as_json, wrapped=("secret",))
    if is_wrong:
        raise typer.Exit(1)

"""``dafka keys``: keys for nodes and towers, in files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.list_commands import AsJson
from dafka_core.errors import ConfigError
from dafka_core.model.names import escape, unescape
from dafka_core.security.permissions import (
    ALL_TOPICS,
    CONSUME,
    PRODUCE,
    ROLES,
    Permissions,
    parse_patterns,
    parse_roles,
)

DEFAULT_DIRECTORY: Final = "keys"

DEFAULT_ROLES: Final = f"{PRODUCE},{CONSUME}"
"""Of a new key, and of a new user of a gateway."""

# Not --dir, which a settings file says of stores.
Directory = Annotated[
    str, typer.Option("--keys", metavar="DIR", help="The directory with the files.")
]

Topics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="The topics that its role of this name is for; several by commas, or given several "
        "times (default all).",
        show_default=False,
    ),
]


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, parser=unescape)],
    *,
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="|".join(ROLES),
            help="What its owner is; several by commas, or given several times "
            f"(default {DEFAULT_ROLES}).",
            show_default=False,
        ),
    ] = None,
    produce: Topics = None,
    consume: Topics = None,
    addresses: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Partitions from before that are its own, too; new ones begin with digits of it.",
            show_default=False,
        ),
    ] = None,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Make a key: NAME.key_secret for its owner alone, and NAME.key, which others let in.

    A key of that name that is there is kept.
    """
    from dafka_core.security.key_files import new_key

    try:
        roles = parse_roles(role or [DEFAULT_ROLES])
    except ValueError as error:
        raise ConfigError("role", escape(",".join(role or [])), str(error)) from None
    patterns = patterns_of({PRODUCE: produce, CONSUME: consume}, roles, "keys")
    if addresses is not None:
        patterns["addresses"] = parse_patterns(addresses)
    try:
        public, secret = new_key(Path(directory), name, roles, **patterns)
    except OSError as error:
        why = f"cannot be written to ({error.strerror})"
        raise ConfigError("keys", escape(directory), why) from None
    output.say(f"made a key with {', '.join(roles)}:")
    output.say(f"  {escape(str(secret))} is its owner's alone (--secret-key-file)")
    output.say(f"  {escape(str(public))} goes where others let it in (--allowed-keys DIR)")


def patterns_of(
    given: Mapping[str, list[str] | None], roles: Collection[str], whose: str
) -> dict[str, tuple[str, ...]]:
    """The patterns of topics that are given, by the role that they are for.

    Raises:
        ConfigError: of a role that is not among ``roles``; ``whose`` says of what.
    """
    patterns = {each: parse_patterns(words) for each, words in given.items() if words is not None}
    for each, words in patterns.items():
        if each not in roles:
            why = f"is for {whose} with role {each} only: add it to --role"
            raise ConfigError(each, escape(",".join(words)), why)
    return patterns


def renew(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, parser=unescape)],
    *,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Write into NAME.key anew what Arrow Flight needs: a file written by hand lacks it.

    NAME.key_secret has to be here. A store's certificate lasts for ten years from now on.
    """
    from dafka_core.security.key_files import renew

    try:
        renewed = renew(Path(directory), name)
    except OSError as error:
        why = f"cannot be written to ({error.strerror})"
        raise ConfigError("keys", escape(directory), why) from None
    what = "token and certificate" if renewed.certificate else "token"
    path = escape(str(Path(directory) / renewed.name))
    output.say(f"wrote its {what} into {path}.key: copy it to where others let it in")


def token(
    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False)],
) -> None:
    """Make a file with a token that who asks the console, or for metrics, has to say.

    It is for options --token-file of the console and --metrics-token-file of nodes. A file that is
    there is kept.
    """
    from dafka_core.security.web_access import write_token

    try:
        write_token(Path(file))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no path"
        why = f"cannot be made ({reason}); one that is there is kept as it is"
        raise ConfigError("file", escape(file), why, "argument") from None
    output.say(f"{escape(file)} has a token: its owner alone can read it")


def show(*, directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """List the keys in a directory: what each may be, and whether its secret is there and safe."""
    from dafka_core.security.key_files import PUBLIC, SECRET, read_public, read_secret

    if not Path(directory).is_dir():
        raise ConfigError("keys", escape(directory), "is no directory")
    rows, is_wrong = [], False
    for path in sorted(Path(directory).glob(f"*{PUBLIC}")):
        secret = path.with_suffix(SECRET)
        key, roles, topics, state = "", "", "", "elsewhere"
        try:
            public = read_public(path)
            key, roles = public.key, ", ".join(sorted(public.roles, key=ROLES.index))
            topics = topics_of(public.permissions)
            if secret.exists():
                state = "here"
                if read_secret(str(secret)).public.decode() != key:
                    raise ValueError(f"is not the public half of {secret.name}")
        except (ValueError, ConfigError) as error:
            is_wrong = True
            state = error.why if isinstance(error, ConfigError) else f"{path.name} {error}"
        rows.append((path.stem, roles, topics, key, state))
    columns = ("name", "roles", "topics", "key", "secret")
    output.table(columns, rows, as_json=as_json, wrapped=("secret",))
    if is_wrong:
        raise typer.Exit(1)


def topics_of(owner: Permissions) -> str:
    """The topics of roles that are not for all of them."""
    told = ((PRODUCE, owner.produce), (CONSUME, owner.consume))
    return "; ".join(
        f"{role} {', '.join(patterns)}"
        for role, patterns in told
        if role in owner.roles and patterns != ALL_TOPICS
    )

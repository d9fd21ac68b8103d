"""``dafka keys``: key files of nodes and towers, and token files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from dafka_core.cli import flags, output
from dafka_core.errors import ConfigError
from dafka_core.model.names import escape, unescape
from dafka_core.security import key_files
from dafka_core.security.permissions import (
    ALL_TOPICS,
    CONSUME,
    PRODUCE,
    ROLES,
    Permissions,
    parse_patterns,
    parse_roles,
)
from dafka_core.security.web_access import write_token

DEFAULT_DIRECTORY: Final = "keys"

DEFAULT_ROLES: Final = f"{PRODUCE},{CONSUME}"  # roles of a new key, and of a new user of a gateway

# Not --dir, which in a settings file is a store's directory.
keys_option: Final = flags.option(
    "--keys",
    "directory",
    default=DEFAULT_DIRECTORY,
    metavar="DIR",
    help="The directory of the key files.",
)

topics_option: Final = partial(
    flags.option,
    multiple=True,
    metavar="PATTERN",
    help="The topics of the role with this name; several separated by commas, or given "
    "several times (default all).",
)


def keys() -> None:
    """Create and list keys of towers and nodes, and tokens."""


@flags.argument("name", type=unescape, metavar="NAME")
@flags.option(
    "--role",
    multiple=True,
    metavar="|".join(ROLES),
    help="The key's roles; several separated by commas, or given several times "
    f"(default {DEFAULT_ROLES}).",
)
@topics_option("--produce")
@topics_option("--consume")
@flags.option(
    "--addresses",
    multiple=True,
    metavar="PATTERN",
    help="Existing partitions that the key may write, too; the addresses of new ones "
    "begin with digits derived from the key.",
)
@keys_option
def new(
    name: str,
    *,
    role: Sequence[str],
    produce: Sequence[str],
    consume: Sequence[str],
    addresses: Sequence[str],
    directory: str,
) -> None:
    """Create a key: NAME.key_secret for its owner only, and NAME.key for those that admit it.

    An existing key of that name is kept.
    """
    try:
        roles = parse_roles(role or [DEFAULT_ROLES])
    except ValueError as error:
        raise ConfigError("role", escape(",".join(role)), str(error)) from None
    patterns = patterns_of({PRODUCE: produce, CONSUME: consume}, roles, "keys")
    if addresses:
        patterns["addresses"] = parse_patterns(addresses)
    with flags.file_errors("keys", directory, "written to"):
        public, secret = key_files.new_key(Path(directory), name, roles, **patterns)
    output.info(f"created a key with {', '.join(roles)}:")
    output.info(f"  {escape(str(secret))} is for its owner only (--secret-key-file)")
    output.info(f"  {escape(str(public))} is for nodes that admit it (--allowed-keys DIR)")


def patterns_of(
    given: Mapping[str, Sequence[str]], roles: Collection[str], holders: str
) -> dict[str, tuple[str, ...]]:
    """Return the given topic patterns by role.

    Args:
        holders: of the roles: keys or users, for the error.

    Raises:
        ConfigError: patterns are given for a role that is not among ``roles``.
    """
    patterns = {each: parse_patterns(words) for each, words in given.items() if words}
    for each, words in patterns.items():
        if each not in roles:
            why = f"is for {holders} with role {each} only: add it to --role"
            raise ConfigError(each, escape(",".join(words)), why)
    return patterns


@flags.argument("name", type=unescape, metavar="NAME")
@keys_option
def renew(name: str, *, directory: str) -> None:
    """Write the certificate for Arrow Flight into a file NAME.key that was written by hand.

    NAME.key_secret must be in the same directory.
    """
    with flags.file_errors("keys", directory, "written to"):
        key_files.renew(Path(directory), name)
    path = escape(str(Path(directory) / name))
    output.info(f"wrote the certificate into {path}.key: copy it to all nodes that admit this key")


@flags.argument("file", metavar="FILE")
def token(file: str) -> None:
    """Create a file with a token for HTTP requests to the console or for metrics.

    Use it with --token-file of the console and --metrics-token-file of nodes. An existing file is
    kept.
    """
    try:
        write_token(Path(file))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a path"
        why = f"cannot be created ({reason}); an existing file is kept"
        raise ConfigError("file", escape(file), why, "argument") from None
    output.info(f"{escape(file)} contains a token; only its owner can read it")


@keys_option
@flags.json_option
def show(*, directory: str) -> None:
    """List the keys in a directory: roles, topics, and the state of the secret key file."""
    if not Path(directory).is_dir():
        raise ConfigError("keys", escape(directory), "is not a directory")
    rows, is_wrong = [], False
    for path in sorted(Path(directory).glob(f"*{key_files.PUBLIC}")):
        secret = path.with_suffix(key_files.SECRET)
        key, roles, topics, state = "", "", "", "elsewhere"
        try:
            public = key_files.read_public(path)
            key, roles = public.key, ", ".join(sorted(public.roles, key=ROLES.index))
            topics = topics_of(public.permissions)
            if secret.exists():
                state = "here"
                if key_files.read_secret(str(secret)).public.decode() != key:
                    raise ValueError(f"is not the public half of {secret.name}")
        except (ValueError, ConfigError) as error:
            is_wrong = True
            state = error.why if isinstance(error, ConfigError) else f"{path.name} {error}"
        rows.append((path.stem, roles, topics, key, state))
    columns = ("name", "roles", "topics", "key", "secret")
    output.table(columns, rows, wrapped=("secret",))
    if is_wrong:
        raise click.exceptions.Exit(1)


def topics_of(owner: Permissions) -> str:
    """Describe the topics of roles that are limited to some."""
    limited = ((PRODUCE, owner.produce), (CONSUME, owner.consume))
    return "; ".join(
        f"{role} {', '.join(patterns)}"
        for role, patterns in limited
        if role in owner.roles and patterns != ALL_TOPICS
    )

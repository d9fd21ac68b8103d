"""The commands of ``dafka`` for gateways: ``kafka``, ``groups`` and ``kafka-user``."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dafka_core.cli import output
from dafka_core.cli.flags import (
    argument,
    directory_option,
    exit_with_parent_option,
    json_option,
    needed,
    option,
    reads_stores,
    table_options,
)
from dafka_core.cli.inspect_commands import shown
from dafka_core.cli.keys_command import DEFAULT_ROLES, patterns_of, topics_of, topics_option
from dafka_core.cli.node_commands import run_store
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.config.node_options import MetricsOptions, StoreOptions
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, quoted, unescape
from dafka_core.security.permissions import ADMIN, CONSUME, PRODUCE, Permissions
from dafka_core.system.files import open_new
from dafka_kafka.options import DEFAULT_PORT, KafkaOptions

if TYPE_CHECKING:
    from dafka_kafka.users import User, UserFile

name_argument: Final = argument("name", type=unescape, metavar="NAME")
file_option: Final = option(
    "--kafka-users", "users", required=True, metavar="FILE", help="The file with a gateway's users."
)
roles_option: Final = option(
    "--role",
    multiple=True,
    metavar=f"{PRODUCE}|{CONSUME}|{ADMIN}",
    help="What the user may do; several by commas, or given several times "
    f"({DEFAULT_ROLES} for a new user).",
)


def kafka_user() -> None:
    """Say who may use a gateway for Kafka's clients (extra 'kafka'), and what each may do."""


@name_argument
@file_option
@roles_option
@topics_option("--produce")
@topics_option("--consume")
def add(
    name: str, *, users: str, role: Sequence[str], produce: Sequence[str], consume: Sequence[str]
) -> None:
    """Add a user of a gateway, or change a user's password.

    The command asks for the password, or reads it from the standard input. It creates a missing
    file. Running gateways apply the change within a second.
    """
    new = _new_user(name)

    def added(held: User | None) -> User:
        permissions = (held or new).permissions(name)
        return new.with_permissions(_changed(permissions, role, produce, consume))

    _rewrite(users, name, added)
    output.info(f"{escape(name)} is a user with a new password in {escape(users)}")


@name_argument
@file_option
@roles_option
@topics_option("--produce")
@topics_option("--consume")
def change(
    name: str, *, users: str, role: Sequence[str], produce: Sequence[str], consume: Sequence[str]
) -> None:
    """Change what a user may do; options that are not given, and the password, stay.

    Running gateways apply the change within a second.
    """
    if not (role or produce or consume):
        why = "say what changes: --role, --produce, --consume, or several of them"
        raise ConfigError("role", "", why)

    def changed(held: User | None) -> User:
        user = _known(held, name, users)
        return user.with_permissions(_changed(user.permissions(name), role, produce, consume))

    _rewrite(users, name, changed)
    output.info(f"what {escape(name)} may do has changed in {escape(users)}")


@name_argument
@file_option
def remove(name: str, *, users: str) -> None:
    """Remove a user of a gateway, and close the user's connections."""

    def removed(held: User | None) -> None:
        _known(held, name, users)

    _rewrite(users, name, removed)
    output.info(f"{escape(name)} was removed from {escape(users)}")


@file_option
@json_option
def show(*, users: str) -> None:
    """List a gateway's users, and what each may do."""
    from dafka_kafka.users import USER_ROLES, Users

    rows = [
        (each.name, ", ".join(r for r in USER_ROLES if r in each.roles), topics_of(each))
        for each in Users(users).permissions()
    ]
    output.table(("name", "roles", "topics"), rows)


def _known(held: User | None, name: str, users: str) -> User:
    if held is None:
        raise ConfigError("name", name, f"is no user in {users}", "argument")
    return held


def _rewrite(users: str, name: str, renew: Callable[[User | None], User | None]) -> None:
    """Replace a user by what ``renew`` makes of it, under a lock; None is no user."""
    from dafka_kafka.users import UserFile

    path = Path(users)
    try:
        with _locked(path.parent):
            file = _parsed(path) if path.exists() else UserFile()
            renewed = renew(file.users.pop(name, None))
            if renewed is not None:
                file.users[name] = renewed
            with open_new(path, 0o600) as new:
                if path.exists():  # by 'sudo', its gateway could not read a file of root
                    held = path.stat()
                    with contextlib.suppress(PermissionError):
                        os.fchown(new.fileno(), held.st_uid, held.st_gid)
                new.write(file.packed())
    except OSError as error:
        why = f"cannot be read and written ({error.strerror or error})"
        raise ConfigError("kafka_users", escape(users), why) from None


def _parsed(path: Path) -> UserFile:
    from dafka_kafka.users import UserFile

    try:
        return UserFile.parse(path.read_bytes())
    except ValueError as error:
        raise ConfigError("kafka_users", escape(str(path)), str(error)) from None


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock out other commands that rewrite a file in the directory.

    The file itself can't be locked, since each command replaces it.
    """
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _changed(
    held: Permissions,
    role: Sequence[str],
    produce: Sequence[str],
    consume: Sequence[str],
) -> Permissions:
    from dafka_kafka.users import user_roles

    try:
        roles = user_roles(role) if role else held.roles
    except ValueError as error:
        raise ConfigError("role", escape(",".join(role)), str(error)) from None
    patterns = patterns_of({PRODUCE: produce, CONSUME: consume}, roles, "users")
    may_produce = patterns.get(PRODUCE, held.produce)
    return Permissions(held.name, roles, may_produce, patterns.get(CONSUME, held.consume))


def _new_user(name: str) -> User:
    """Ask for a password, or read it from the standard input."""
    from dafka_kafka.users import new_user

    if os.isatty(0):
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        with open(0, encoding="utf-8", errors="surrogateescape", closefd=False) as given:
            password = given.readline().rstrip("\r\n")
    try:
        return new_user(name, password, DEFAULT_ROLES.split(","))
    except ValueError as error:
        # The error contains no value: it may be the password.
        raise ConfigError("name", name, str(error), "argument") from None


_BEHIND: Final = ("records_behind", "bytes_behind", "seconds_behind")
_GROUP_COLUMNS: Final = ("group", "state", "members", "partitions", *_BEHIND)
_PARTITION_COLUMNS: Final = (
    *("topic", "number", "partition", "position", "end", *_BEHIND),
    *("member", "client", "host"),
)


@argument(
    "group",
    type=unescape,
    required=False,
    metavar="[GROUP]",
    help="A group, to list its partitions and who reads them; all groups without it.",
)
@reads_stores
def groups(group: str | None, *, finder: StoreFinder) -> None:
    """List the consumer groups of Kafka's clients, and how far behind they are.

    It asks stores, not gateways: it shows the members of each group's last stable generation.
    """
    from dafka_kafka.groups.group_lag import group_lags

    with finder.clients() as asked:
        found = group_lags(asked, timeout_s=finder.timeout_s)
    if group is None:
        if not found:
            output.info("no consumer group has committed, or has members")
        rows = [shown((*each[:3], len(each.partitions), *each[3:6])) for each in found]
        output.table(_GROUP_COLUMNS, rows)
        return
    of_group = next((each for each in found if each.group == group), None)
    if of_group is None:
        near = what_there_is(group, {each.group for each in found}, "groups")
        raise DafkaError(f"unknown group {quoted(group)} ({near})")
    rows = []
    for topic, number, lag, member in of_group.partitions:
        behind = lag[2:] if lag else (None,) * 6
        reader: tuple[str | None, ...] = (None,) * 3
        if member:
            reader = member.member_id, member.joined.client_id, member.joined.host
        rows.append(shown((topic, number, *behind, *reader)))
    output.table(_PARTITION_COLUMNS, rows)


@directory_option()
@exit_with_parent_option
@table_options(KafkaOptions, StoreOptions, MetricsOptions)
def kafka(*, directory: str | None, **options: Any) -> None:
    """Run a store to which Kafka's clients connect (extra 'kafka'), as 'dafka store --kafka'.

    It prints READY and its addresses as JSON once it serves. Ctrl-C stops it.
    """
    options["kafka"] = options.pop("listen", f"127.0.0.1:{DEFAULT_PORT}")
    run_store(needed(directory), options)

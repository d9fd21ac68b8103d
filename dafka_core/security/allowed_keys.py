"""The directory of allowed keys, reread when its files change."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.config.node_options import SecurityOptions
from dafka_core.errors import ConfigError
from dafka_core.model.names import quoted
from dafka_core.security.credentials import token_digest
from dafka_core.security.key_files import PUBLIC, AllowedKey, parse_public, read_secret
from dafka_core.security.permissions import (
    EVERYBODY,
    PREFIX_DIGITS,
    ROLES,
    Permissions,
    address_prefix,
    refused,
    told,
)

LOOK_INTERVAL_S: Final = 1.0
"""Interval of checks of the directory."""

_PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE))
"""Temporary errors: the known keys stay valid until the directory can be read again."""

_OPEN: Final = "everybody can write to it, and so let in anybody: 'chmod o-w' it"

_log = logging.getLogger("dafka.security")


class _Stamp(NamedTuple):
    """The attributes of a file that change with its contents."""

    changed_ns: int
    size: int
    inode: int
    why_wrong: str


def own_permissions(config: SecurityOptions) -> Permissions:
    """Return a node's own permissions by its own directory; all without a key.

    Raises:
        ConfigError: the key or the directory is invalid.
    """
    if not config.secret_key_file:
        return EVERYBODY
    public = read_secret(config.secret_key_file).public
    known = AllowedKeys(config.allowed_keys).find(public.decode())
    return unlisted(public) if known is None else known.permissions


def check_produce(config: SecurityOptions, topic: str) -> None:
    """Check early whether stores would refuse a producer's records.

    Raises:
        NotAllowedError: the node's directory does not permit its key to produce to the topic.
        ConfigError: the key or the directory is invalid.
    """
    owner = own_permissions(config)
    if not owner.may_produce(topic):
        raise refused(owner, f"produce to {quoted(topic)}")


def unlisted(public: bytes) -> Permissions:
    """Return the assumed permissions of an own key that is not in its directory: peers decide."""
    return Permissions("(own)", frozenset(ROLES), prefix=address_prefix(public))


class AllowedKeys:
    """The public keys in a directory, kept up to date.

    Args:
        is_second: another instance in this process logs changes of the directory.

    Raises:
        ConfigError: it is no directory, or a file in it is invalid.
    """

    def __init__(self, directory: str, *, is_second: bool = False) -> None:
        self.directory = Path(directory)
        self._is_second = is_second
        self._keys: dict[str, AllowedKey] = {}
        self._by_prefix: dict[str, AllowedKey] = {}
        self._tokens: dict[str, AllowedKey] = {}
        self._with_addresses: list[AllowedKey] = []
        self._due = 0.0
        self._stamps: dict[str, _Stamp] = {}
        self._parsed: dict[str, AllowedKey | str] = {}
        self._said: frozenset[str] = frozenset()
        try:
            wrong = self._read()
        except OSError as error:
            wrong = [f"cannot be read ({error.strerror})"]
        if wrong:
            raise ConfigError("allowed_keys", directory, wrong[0])

    def find(self, key: str) -> AllowedKey | None:
        """Return an allowed key."""
        return self._keys.get(key)

    def owner(self, address: str) -> AllowedKey | None:
        """Return the allowed key that owns a node's address."""
        known = self._by_prefix.get(address[:PREFIX_DIGITS])
        listed = (each for each in self._with_addresses if each.permissions.is_own(address))
        return known or next(listed, None)

    def all(self) -> list[AllowedKey]:
        """Return all keys in the order of their names."""
        return sorted(self._keys.values(), key=lambda key: key.name)

    def find_token(self, said: str) -> AllowedKey | None:
        """Return the key that a token belongs to."""
        return self._tokens.get(token_digest(said))

    def with_role(self, role: str) -> list[AllowedKey]:
        """Return the keys with a role, in the order of their names."""
        return [key for key in self.all() if role in key.roles]

    def look(self, now: float) -> bool:
        """Reread the directory if a check is due; return True if allowed keys have changed.

        Invalid files are logged, and admit no key.
        """
        if now < self._due:
            return False
        self._due = now + LOOK_INTERVAL_S
        before = self._keys
        try:
            wrong = [f"{each}; nobody is let in by it" for each in self._read()]
        except OSError as error:
            wrong = [f"cannot be read ({error.strerror}); who was let in before is so still"]
        for each in wrong:
            if each not in self._said and not self._is_second:
                _log.error("%s: %s", self.directory, each)
        self._said = frozenset(wrong)
        if self._keys == before:
            return False
        if not self._is_second:
            self._tell(before)
        return True

    def _tell(self, before: dict[str, AllowedKey]) -> None:
        for key, text in (
            *((before[k], "is not allowed any more") for k in before.keys() - self._keys.keys()),
            *((self._keys[k], "is allowed") for k in self._keys.keys() - before.keys()),
            *(
                (now, _change(before[key].permissions, now.permissions))
                for key, now in self._keys.items()
                if before.get(key, now) != now
            ),
        ):
            facts = {"name": key.name, "key": key.key, "what": text}
            extra = {"event": "key_changed"}
            _log.info("key %(name)s (%(key)s) %(what)s from now on", facts, extra=extra)

    def _read(self) -> list[str]:
        """Read the directory; return the errors of its files.

        Raises:
            OSError: it cannot be read at present; the known keys stay.
        """
        wrong: list[str] = []
        stamps: dict[str, _Stamp] = {}
        try:
            if self.directory.stat().st_mode & stat.S_IWOTH:
                wrong.append(_OPEN)
            else:
                with os.scandir(self.directory) as entries:
                    found = ((e.name, _stamp(e)) for e in entries if e.name.endswith(PUBLIC))
                    stamps = {name: stamp for name, stamp in sorted(found) if stamp is not None}
        except OSError as error:
            if error.errno in _PASSING:
                raise
            wrong.append(f"must be a directory of public keys ({error.strerror})")
        # Unchanged files are not read again: there may be thousands, in each node.
        parsed = {
            name: self._parsed[name] if self._stamps.get(name) == stamp else self._load(name, stamp)
            for name, stamp in stamps.items()
        }
        self._stamps, self._parsed = stamps, parsed
        return wrong + self._take(parsed)

    def _load(self, name: str, stamp: _Stamp) -> AllowedKey | str:
        """Return a key, or the error of its file; empty if the file has gone."""
        if stamp.why_wrong:
            return stamp.why_wrong
        try:
            path = self.directory / name
            return parse_public(path.stem, path.read_bytes())
        except ValueError as error:
            return str(error)
        except FileNotFoundError:
            return ""
        except OSError as error:
            if error.errno in _PASSING:
                raise
            return f"cannot be read ({error.strerror})"

    def _take(self, parsed: dict[str, AllowedKey | str]) -> list[str]:
        """Accept keys that are distinguishable from all others; return the errors."""
        wrong: list[str] = []
        found: dict[str, AllowedKey] = {}
        prefixes: dict[str, AllowedKey] = {}
        tokens: dict[str, AllowedKey] = {}
        for name, each in parsed.items():
            if isinstance(each, str):
                wrong += [f"{name} {each}"] * bool(each)
                continue
            for kind, what, first in (
                ("holds the key", each.key, found),
                ("has addresses like those", each.permissions.prefix, prefixes),
                ("has the token", each.token_digest, tokens),
            ):
                if what in first:
                    wrong.append(f"{name} {kind} of {first[what].name}{PUBLIC}")
                    break
            else:
                found[each.key] = prefixes[each.permissions.prefix] = each
                if each.token_digest:
                    tokens[each.token_digest] = each
        self._keys, self._by_prefix, self._tokens = found, prefixes, tokens
        listed = (e for e in found.values() if e.permissions.addresses or e.permissions.is_store)
        self._with_addresses = list(listed)
        return wrong


def _change(before: Permissions, now: Permissions) -> str:
    if before == now:
        return "is known to Arrow Flight by something else"
    addresses = f"; addresses {', '.join(now.addresses)}" if now.addresses else ""
    return f"is allowed something else ({told(now)}{addresses})"


def _stamp(entry: os.DirEntry[str]) -> _Stamp | None:
    """Return the attributes of a file; None if it is missing, as behind a dangling link."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _PASSING:
            raise
        return _Stamp(0, 0, 0, f"cannot be read ({error.strerror})")
    why = _OPEN if status.st_mode & stat.S_IWOTH else ""
    why = why if stat.S_ISREG(status.st_mode) else "is no file"
    return _Stamp(status.st_ctime_ns, status.st_size, status.st_ino, why)

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
from dafka_core.security.key_files import PUBLIC, AllowedKey, parse_public, read_secret
from dafka_core.security.permissions import (
    EVERYBODY,
    PREFIX_DIGITS,
    ROLES,
    STORE,
    Permissions,
    address_prefix,
    described,
    refused,
)

LOOK_INTERVAL_S: Final = 1.0  # interval of checks of the directory
_PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE))
"""Temporary errors: the known keys stay valid until the directory can be read again."""

_OPEN: Final = "can be written to by all users, who could add keys: 'chmod o-w' it"

_log = logging.getLogger("dafka.security")


class _File(NamedTuple):
    """A public file: its key or error, and its attributes, which change with its contents."""

    key: AllowedKey | str
    stamp: tuple[int, ...] = ()


def own_permissions(config: SecurityOptions) -> Permissions:
    """Return a node's own permissions by its own directory; all without a key."""
    if not config.secret_key_file:
        return EVERYBODY
    public = read_secret(config.secret_key_file).public
    known = AllowedKeys(config.allowed_keys).find(public.decode())
    return unlisted(public) if known is None else known.permissions


def check_produce(config: SecurityOptions, topic: str) -> None:
    """Raise NotAllowedError early if stores would refuse a producer's records."""
    owner = own_permissions(config)
    if not owner.may_produce(topic):
        raise refused(owner, f"produce to {quoted(topic)}")


def unlisted(public: bytes) -> Permissions:
    """Return the assumed permissions of an own key that is not in its directory: peers decide."""
    return Permissions("(own)", frozenset(ROLES), prefix=address_prefix(public))


class AllowedKeys:
    """The public keys in a directory, kept up to date; ConfigError if they are invalid at first.

    With ``is_second`` another instance in this process logs changes of the directory.
    """

    def __init__(self, directory: str, *, is_second: bool = False) -> None:
        self.directory = Path(directory)
        self._is_second = is_second
        self._files: dict[str, _File] = {}
        self._keys: dict[str, AllowedKey] = {}
        self._by_prefix: dict[str, AllowedKey] = {}
        self._with_addresses: list[AllowedKey] = []
        self._due = 0.0
        self._logged: list[str] = []
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
            wrong = [f"{each}; it admits no key" for each in self._read()]
        except OSError as error:
            wrong = [f"cannot be read ({error.strerror}); the known keys stay valid"]
        if not self._is_second:
            for each in wrong:
                if each not in self._logged:
                    _log.error("%s: %s", self.directory, each)
            self._log_changes(before)
        self._logged = wrong
        return self._keys != before

    def _log_changes(self, before: dict[str, AllowedKey]) -> None:
        for key in dict.fromkeys((*before, *self._keys)):
            old, new = before.get(key), self._keys.get(key)
            if old != new and (known := new or old):
                facts = {"name": known.name, "key": key, "what": _change(old, new)}
                _log.info("key %(name)s (%(key)s) %(what)s", facts, extra={"event": "key_changed"})

    def _read(self) -> list[str]:
        """Read the directory; return its errors; raise OSError if it is temporarily unreadable."""
        wrong, found = [], {}
        try:
            is_open = self.directory.stat().st_mode & stat.S_IWOTH
            # Kubernetes mounts a directory that all may write, read-only.
            if is_open and not os.statvfs(self.directory).f_flag & os.ST_RDONLY:
                wrong = [_OPEN]
            else:
                with os.scandir(self.directory) as entries:
                    public = {each.name: each for each in entries if each.name.endswith(PUBLIC)}
                found = {name: self._file(public[name]) for name in sorted(public)}
        except OSError as error:
            if error.errno in _PASSING:
                raise
            wrong = [f"must be a directory of public keys ({error.strerror})"]
        self._files = {name: file for name, file in found.items() if file is not None}
        return wrong + self._accept()

    def _file(self, entry: os.DirEntry[str]) -> _File | None:
        """Read a file if it has changed: there may be thousands; None if it is missing."""
        try:
            status = entry.stat()
            stamp = (status.st_ctime_ns, status.st_size, status.st_ino)
            known = self._files.get(entry.name)
            if known and known.stamp == stamp:
                return known
            if not stat.S_ISREG(status.st_mode):
                return _File("is no file", stamp)
            if status.st_mode & stat.S_IWOTH:
                return _File(_OPEN, stamp)
            path = Path(entry.path)
            return _File(parse_public(path.stem, path.read_bytes()), stamp)
        except FileNotFoundError:  # also a dangling link
            return None
        except ValueError as error:
            return _File(str(error), stamp)
        except OSError as error:
            if error.errno in _PASSING:
                raise
            return _File(f"cannot be read ({error.strerror})")

    def _accept(self) -> list[str]:
        """Accept keys that are distinguishable from all others; return the errors."""
        wrong: list[str] = []
        keys: dict[str, AllowedKey] = {}
        prefixes: dict[str, AllowedKey] = {}
        for name, (each, _) in self._files.items():
            if isinstance(each, str):
                wrong.append(f"{name} {each}")
            elif same := keys.get(each.key):
                wrong.append(f"{name} holds the key of {same.name}{PUBLIC}")
            elif alike := prefixes.get(each.permissions.prefix):
                wrong.append(f"{name} has addresses like those of {alike.name}{PUBLIC}")
            else:
                keys[each.key] = prefixes[each.permissions.prefix] = each
        self._keys, self._by_prefix = keys, prefixes
        self._with_addresses = [
            each for each in keys.values() if each.permissions.addresses or STORE in each.roles
        ]
        return wrong


def _change(old: AllowedKey | None, new: AllowedKey | None) -> str:
    if old is None or new is None:
        return "is allowed now" if new else "is not allowed any more"
    if old.permissions == new.permissions:
        return "has another certificate for Arrow Flight now"
    allowed = new.permissions
    addresses = f"; addresses {', '.join(allowed.addresses)}" if allowed.addresses else ""
    return f"has other permissions now ({described(allowed)}{addresses})"

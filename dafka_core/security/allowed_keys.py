"""The directory of allowed keys: who is let in, as its files are now."""

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
"""How often the directory of allowed keys is looked at."""

_PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE))
"""Errors that say nothing of the directory: what was known counts until it can be read again."""

_OPEN: Final = "everybody can write to it, and so let in anybody: 'chmod o-w' it"

_log = logging.getLogger("dafka.security")


class _Stamp(NamedTuple):
    """What changes with a file."""

    changed_ns: int
    size: int
    inode: int
    why_wrong: str


def own_permissions(config: SecurityOptions) -> Permissions:
    """What a node with these options may do, as far as its own directory says; all without a key.

    Raises:
        ConfigError: the key or the directory is wrong.
    """
    if not config.secret_key_file:
        return EVERYBODY
    public = read_secret(config.secret_key_file).public
    known = AllowedKeys(config.allowed_keys).find(public.decode())
    return unlisted(public) if known is None else known.permissions


def check_produce(config: SecurityOptions, topic: str) -> None:
    """Has a producer know at once what else only stores' logs would say.

    Raises:
        NotAllowedError: the own directory says that the own key may not produce to the topic.
        ConfigError: the key or the directory is wrong.
    """
    owner = own_permissions(config)
    if not owner.may_produce(topic):
        raise refused(owner, f"produce to {quoted(topic)}")


def unlisted(public: bytes) -> Permissions:
    """What a node takes its own key for that its directory does not have: others decide."""
    return Permissions("(own)", frozenset(ROLES), prefix=address_prefix(public))


class AllowedKeys:
    """The public keys in a directory, as they are now.

    Args:
        is_second: whether somebody else in this process says what changes there.

    Raises:
        ConfigError: it is no directory, or a file in it is wrong.
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
        """What is known of a key that is allowed."""
        return self._keys.get(key)

    def owner(self, address: str) -> AllowedKey | None:
        """Whose a node's address is, of those that are allowed."""
        known = self._by_prefix.get(address[:PREFIX_DIGITS])
        listed = (each for each in self._with_addresses if each.permissions.is_own(address))
        return known or next(listed, None)

    def all(self) -> list[AllowedKey]:
        """All of them, in the order of their names."""
        return sorted(self._keys.values(), key=lambda key: key.name)

    def find_token(self, said: str) -> AllowedKey | None:
        """The key whose owner says a token."""
        return self._tokens.get(token_digest(said))

    def with_role(self, role: str) -> list[AllowedKey]:
        """The keys that have a role, in the order of their names."""
        return [key for key in self.all() if role in key.roles]

    def look(self, now: float) -> bool:
        """Reads the directory again if it is time; whether other keys are allowed than before.

        What is wrong in it is said, and lets nobody in.
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
        """Takes in what is there; what is wrong.

        Raises:
            OSError: nothing can be read at the moment; what was known is kept.
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
        # A file that has not changed is not read again: there may be thousands, in each node.
        parsed = {
            name: self._parsed[name] if self._stamps.get(name) == stamp else self._load(name, stamp)
            for name, stamp in stamps.items()
        }
        self._stamps, self._parsed = stamps, parsed
        return wrong + self._take(parsed)

    def _load(self, name: str, stamp: _Stamp) -> AllowedKey | str:
        """A key, or what is wrong with its file; empty where there is none any more."""
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
        """Lets in the owners of keys, each of which must be told from the others; what is wrong."""
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
    """What changes with a file; None if there is none, as where a link leads nowhere."""
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

"""Permissions of a key's owner, or of a user of the gateway for Kafka's clients."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from hashlib import sha256
from typing import Final

from dafka_core.errors import NotAllowedError
from dafka_core.model.name_limits import nearest
from dafka_core.model.names import AUDIT_TOPIC, INTERNAL, QUERIES_TOPIC, escape, quoted

TOWER: Final = "tower"
STORE: Final = "store"
PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ADMIN: Final = "admin"

ROLES: Final = (TOWER, STORE, PRODUCE, CONSUME, ADMIN)
ALL_TOPICS: Final = ("*",)

REPORTS: Final = {QUERIES_TOPIC: CONSUME, AUDIT_TOPIC: PRODUCE}
"""Internal topics that queries write, and the role that may write its own partitions of them."""

SHARED_BY_STORES: Final = "6461666B61206B61666B61206C697374"
"""An address that all stores may use, in turn: of a partition to which every store appends.

Every node checks it, also one without the package that uses it: no extension can declare it."""

PREFIX_DIGITS: Final = 12
"""Hexadecimal digits of an address that belong to its owner's key: the other 80 bits distinguish
the addresses of one key.  A second key for these 48 bits can be found, but no directory accepts
both."""


@dataclass(frozen=True)
class Permissions:
    """Permissions by roles, by patterns of topics, and by addresses.

    Args:
        name: of the key or the user, for messages.
        produce: shell patterns of the topics that may be produced to; only for holders of the role.
            ``consume`` likewise.
        addresses: patterns of own addresses beside those that begin with ``prefix``.
    """

    name: str
    roles: frozenset[str]
    produce: tuple[str, ...] = ALL_TOPICS
    consume: tuple[str, ...] = ALL_TOPICS
    addresses: tuple[str, ...] = ()
    prefix: str = ""

    def may_produce(self, topic: str) -> bool:
        """Return True if it may publish records of a topic; a store publishes those that it has.

        Internal topics with messages between stores are theirs, whatever the patterns are.
        """
        if topic.startswith(INTERNAL):
            return self.is_store or self.is_admin or REPORTS.get(topic) in self.roles
        return self.is_store or (PRODUCE in self.roles and _any(self.produce, topic))

    def may_write(self, topic: str, partition: str) -> bool:
        """Return True if records of a partition may come from it."""
        return self.may_produce(topic) and self.owns(partition)

    def may_consume(self, topic: str) -> bool:
        """Return True if it may receive records of a topic, and know of them."""
        return self.is_store or (CONSUME in self.roles and _any(self.consume, topic))

    def may_know(self, topic: str) -> bool:
        """Return True if it may know a topic's partitions and their ends."""
        return self.is_admin or self.may_consume(topic) or self.may_produce(topic)

    @property
    def knows_all(self) -> bool:
        """Return True if it may know every topic."""
        return self.is_admin or self.is_store or (CONSUME in self.roles and "*" in self.consume)

    def is_own(self, address: str) -> bool:
        """Return True if a node with that address is its own."""
        is_made = bool(self.prefix) and address.startswith(self.prefix)
        is_shared = self.is_store and address == SHARED_BY_STORES
        return is_made or is_shared or _any(self.addresses, address)

    def made_own(self, address: str) -> str:
        """Return an own address derived from a permanent text."""
        return address if self.is_own(address) else self.prefix + address[len(self.prefix) :]

    def owns(self, address: str) -> bool:
        """Return True if records of a partition may come from it; a store forwards every one."""
        return self.is_store or self.is_own(address)

    @property
    def may_send_records(self) -> bool:
        """Return True if it may send records of topics that are not internal."""
        return self.is_store or PRODUCE in self.roles

    @property
    def is_store(self) -> bool:
        """Return True if it may keep, acknowledge and forward the records of others."""
        return STORE in self.roles

    @property
    def is_admin(self) -> bool:
        """Return True if it may delete, trim, and set rules."""
        return ADMIN in self.roles


EVERYBODY: Final = Permissions("everybody", frozenset(ROLES), addresses=("*",))
"""The permissions of all nodes in a cluster without security."""

NOBODY: Final = Permissions("(revoked)", frozenset())


def refused(owner: Permissions, asked: str) -> NotAllowedError:
    """Return the error for an operation that is not permitted."""
    return NotAllowedError(escape(owner.name), described(owner), asked)


def described(owner: Permissions) -> str:
    """Describe an owner's permissions in a few words."""
    patterns = {PRODUCE: owner.produce, CONSUME: owner.consume}
    roles = sorted(owner.roles, key=ROLES.index)
    words = [
        f"{role} {', '.join(map(quoted, patterns[role])) or 'nothing'}"
        if patterns.get(role, ALL_TOPICS) != ALL_TOPICS
        else role
        for role in roles
    ]
    return "; ".join(words)


def address_prefix(public_key: bytes) -> str:
    """Return the prefix of a key's addresses, by which each node finds the owner of an address."""
    return sha256(public_key).hexdigest()[:PREFIX_DIGITS].upper()


def parse_roles(words: Iterable[str]) -> tuple[str, ...]:
    """Parse roles from words with commas; raise ValueError if one is unknown, or without any."""
    named = {each.strip() for word in words for each in word.split(",")} - {""}
    for name in sorted(named.difference(ROLES)):
        raise ValueError(f"{name!r} is no role; {nearest(name, ROLES)}")
    if not named:
        raise ValueError(f"there is no role; name one or several of {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in named)


def parse_patterns(words: Iterable[str]) -> tuple[str, ...]:
    """Parse patterns from words, each of which may have several with commas."""
    return tuple(
        dict.fromkeys(p for word in words for each in word.split(",") if (p := each.strip()))
    )


def _any(patterns: tuple[str, ...], name: str) -> bool:
    if patterns == ALL_TOPICS:
        return True
    return patterns != () and _regex(patterns).match(name) is not None


@lru_cache(10_000)
def _regex(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))

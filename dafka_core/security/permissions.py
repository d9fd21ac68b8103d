"""What the owner of a key, or a user of the gateway for Kafka's clients, may do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from hashlib import sha256
from typing import Final

from dafka_core.errors import NotAllowedError
from dafka_core.model.name_limits import nearest_name
from dafka_core.model.names import AUDIT_TOPIC, INTERNAL, QUERIES_TOPIC, escape, quoted

TOWER: Final = "tower"
STORE: Final = "store"
PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ADMIN: Final = "admin"

ROLES: Final = (TOWER, STORE, PRODUCE, CONSUME, ADMIN)
"""What somebody may be."""

ALL_TOPICS: Final = ("*",)

REPORTS: Final = {QUERIES_TOPIC: CONSUME, AUDIT_TOPIC: PRODUCE}
"""Topics in which queries say what they do, and who may."""

SHARED_BY_STORES: Final = "6461666B61206B61666B61206C697374"
"""An address that each store may use, in turn: of a partition that all stores append to.

Every node judges by it, also one without the package that uses it: no extension can declare it."""

PREFIX_DIGITS: Final = 12
"""Hexadecimal digits of an address that are its owner's key's: the other 80 bits tell the addresses
of one key apart.  A second key for these 48 bits can be found, but no directory lets in both."""


@dataclass(frozen=True)
class Permissions:
    """What somebody may do, by roles, by patterns of topics, and by addresses.

    Args:
        name: of the key or the user, for people.
        produce: patterns of the topics that may be produced to, as in a shell; they count for
            holders of the role alone, as those of ``consume`` do.
        addresses: patterns of addresses that are its own beside those that begin with ``prefix``.
    """

    name: str
    roles: frozenset[str]
    produce: tuple[str, ...] = ALL_TOPICS
    consume: tuple[str, ...] = ALL_TOPICS
    addresses: tuple[str, ...] = ()
    prefix: str = ""

    def may_produce(self, topic: str) -> bool:
        """Whether it may publish records of a topic; a store publishes those that it has.

        What stores tell each other by internal topics is theirs, whatever the patterns are.
        """
        if topic.startswith(INTERNAL):
            return self.is_store or self.is_admin or REPORTS.get(topic) in self.roles
        return self.is_store or (PRODUCE in self.roles and _any(self._produce, topic))

    def may_write(self, topic: str, partition: str) -> bool:
        """Whether records of a partition may come from it.

        Reports of queries go to partitions that are named after these, and may be anybody's.
        """
        return self.may_produce(topic) and (topic in REPORTS or self.owns(partition))

    def may_consume(self, topic: str) -> bool:
        """Whether it may have records of a topic, and know of them."""
        return self.is_store or (CONSUME in self.roles and _any(self._consume, topic))

    def may_know(self, topic: str) -> bool:
        """Whether it may know which partitions of a topic there are, and how far they go."""
        return self.is_admin or self.may_consume(topic) or self.may_produce(topic)

    @property
    def knows_all(self) -> bool:
        """Whether there is no topic that it may not know of."""
        return self.is_admin or self.is_store or (CONSUME in self.roles and "*" in self.consume)

    def is_own(self, address: str) -> bool:
        """Whether a node of that address is its own."""
        is_made = bool(self.prefix) and address.startswith(self.prefix)
        is_shared = self.is_store and address == SHARED_BY_STORES
        return is_made or is_shared or _any(self._addresses, address)

    def made_own(self, address: str) -> str:
        """An address that is made of what lasts, such that it is its own."""
        return address if self.is_own(address) else self.prefix + address[len(self.prefix) :]

    def owns(self, address: str) -> bool:
        """Whether records of a partition may come from it: it is its own, or it is a store.

        A store forwards every partition.
        """
        return self.is_store or self.is_own(address)

    @property
    def may_send_records(self) -> bool:
        """Whether it may send records of topics that are not internal."""
        return self.is_store or PRODUCE in self.roles

    @property
    def is_tower(self) -> bool:
        """Whether it may tell nodes of each other."""
        return TOWER in self.roles

    @property
    def is_store(self) -> bool:
        """Whether it may keep, acknowledge and forward the records of others."""
        return STORE in self.roles

    @property
    def is_admin(self) -> bool:
        """Whether it may delete, trim, and set rules."""
        return ADMIN in self.roles

    @cached_property
    def _produce(self) -> re.Pattern[str] | None:
        return _pattern(self.produce)

    @cached_property
    def _consume(self) -> re.Pattern[str] | None:
        return _pattern(self.consume)

    @cached_property
    def _addresses(self) -> re.Pattern[str] | None:
        return _pattern(self.addresses)


EVERYBODY: Final = Permissions("everybody", frozenset(ROLES), addresses=("*",))
"""Who is not asked who he is, where there is no security."""

NOBODY: Final = Permissions("(revoked)", frozenset())


def refused(owner: Permissions, asked: str) -> NotAllowedError:
    """What somebody is told who has asked for what he may not."""
    return NotAllowedError(escape(owner.name), told(owner), asked)


def told(owner: Permissions) -> str:
    """What a key's owner may do, in a few words."""
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
    """What the addresses of a key's owner begin with: each node can tell whose an address is."""
    return sha256(public_key).hexdigest()[:PREFIX_DIGITS].upper()


def parse_roles(words: Iterable[str]) -> tuple[str, ...]:
    """Roles from words, each of which may name several by commas; in the order of ``ROLES``.

    Raises:
        ValueError: a word is none, or there is none at all.
    """
    named = {each.strip() for word in words for each in word.split(",")} - {""}
    for name in sorted(named.difference(ROLES)):
        near = nearest_name(name, ROLES)
        cure = f"did you mean {near!r}?" if near else f"there are {', '.join(ROLES)}"
        raise ValueError(f"{name!r} is no role; {cure}")
    if not named:
        raise ValueError(f"there is no role; name one or several of {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in named)


def parse_patterns(words: Iterable[str]) -> tuple[str, ...]:
    """Patterns from words, each of which may name several by commas."""
    return tuple(
        dict.fromkeys(p for word in words for each in word.split(",") if (p := each.strip()))
    )


def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, patterns))) if patterns else None


def _any(pattern: re.Pattern[str] | None, name: str) -> bool:
    return pattern is not None and pattern.match(name) is not None

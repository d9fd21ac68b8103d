"""The keys of a locked world, and their checks by production's code.

``Security`` is production's, without sockets and files: the simulated network knows the key of each
connection, as CURVE proves it.
"""

from typing import Any, cast

from dafka_core.nodes.security import Claims, RefusedSubscriptions, Security
from dafka_core.security.key_files import AllowedKey, KeyPair
from dafka_core.security.permissions import EVERYBODY, Permissions, address_prefix


class Keys:
    """The directory of keys that each node of a world has; without keys no node needs one.

    It is asked as ``AllowedKeys`` is.
    """

    def __init__(self, *, locked: bool) -> None:
        self.locked = locked
        self.directory = "keys"
        self._keys: dict[str, AllowedKey] = {}
        self._by_prefix: dict[str, AllowedKey] = {}

    def add(self, name: str, *roles: str, **patterns: tuple[str, ...]) -> Permissions:
        """Make a key; return its owner's permissions."""
        if not self.locked:
            return EVERYBODY
        prefix = address_prefix(name.encode())
        owner = Permissions(name, frozenset(roles), prefix=prefix, **patterns)
        self._keys[name] = self._by_prefix[prefix] = AllowedKey(name, owner)
        return owner

    def find(self, key: str) -> AllowedKey | None:
        """As ``AllowedKeys.find``; a key is called as its owner is."""
        return self._keys.get(key)

    def owner(self, address: str) -> AllowedKey | None:
        return self._by_prefix.get(address[: len(address_prefix(b""))])


class SimulatedSecurity(Security):
    """A node's checks of its peers."""

    def __init__(self, keys: Keys, name: str) -> None:
        self.own = None
        self._is_tower = False
        self.claims = Claims()
        self.refused = RefusedSubscriptions()
        self._self = EVERYBODY
        self._allowed = cast("Any", keys)
        own = keys.find(name)
        if own is not None:
            self.own = KeyPair(name.encode(), b"")
            self._self = own.permissions

    def _warn(self, what: str, text: str, *facts: object) -> None:
        """The world counts what is refused."""

    def expects(self, endpoint: str, key: str) -> bool:
        """Return True if a connection to an endpoint with the owner of a key succeeds."""
        return self.own is None or self.claims.key_at(endpoint) == key

"""Keys for tests of a cluster that asks for them."""

import shutil
from pathlib import Path
from typing import Any

from dafka_core.security.key_files import KeyPair, new_key, read_secret

FAST: dict[str, Any] = {"peer_expiry_ms": 500, "beacon_interval_ms": 100}


class Keys:
    """A directory of allowed keys, and others beside it."""

    def __init__(self, directory: Path) -> None:
        self.allowed, self.away = directory / "allowed", directory / "away"
        self.allow("tower", "tower")
        self.allow("store", "store")
        self.allow("client", "produce", "consume")

    def allow(self, name: str, *roles: str, **patterns: tuple[str, ...]) -> None:
        self.make(name, *roles, **patterns)
        shutil.copy(self.away / f"{name}.key", self.allowed)

    def make(self, name: str, *roles: str, **patterns: tuple[str, ...]) -> None:
        self.allowed.mkdir(exist_ok=True, parents=True)
        new_key(self.away, name, roles, **patterns)

    def of(self, name: str) -> dict[str, Any]:
        secret = self.away / f"{name}.key_secret"
        return {"secret_key_file": str(secret), "allowed_keys": str(self.allowed)}

    def pair(self, name: str) -> KeyPair:
        """Both halves of a key, for bare sockets."""
        return read_secret(str(self.away / f"{name}.key_secret"))

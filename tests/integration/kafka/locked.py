"""A gateway that requires authentication."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import trustme

from dafka_core import Store
from dafka_core.security.permissions import Permissions
from dafka_core.testing import wait_until
from dafka_kafka.gateway import Gateway
from dafka_kafka.users import USER_ROLES, UserFile, new_user

EVERYTHING = frozenset(USER_ROLES)
NAME, PASSWORD = "alice", "wonder land"


class Locked:
    """A gateway with TLS and a user."""

    def __init__(self, directory: Path, store: Store) -> None:
        authority = trustme.CA()
        made = authority.issue_cert("127.0.0.1")
        self.authority = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        certificate, key = directory / "certificate.pem", directory / "key.pem"
        for each in made.cert_chain_pems:
            each.write_to_path(str(certificate), append=True)
        made.private_key_pem.write_to_path(str(key))
        self.users = directory / "users"
        self.allow(NAME)
        self.options = {
            "listen": "127.0.0.1:0",
            "kafka_users": str(self.users),
            "kafka_tls_certificate": str(certificate),
            "kafka_tls_key": str(key),
        }
        self.gateway = Gateway(store, **self.options)
        self.servers = str(self.gateway.listens)
        self.refused = self.gateway.server.complaints.counts

    def login(self, name: str = NAME, **more: str) -> Login:
        return Login(str(self.authority), name, **more)

    def allow(self, *users: str | Permissions) -> None:
        """Write users to the file; a name without permissions gets all of them."""
        write_users(self.users, *users)

    def permit(self, *users: str | Permissions) -> None:
        """Write users, and wait until the gateway has reloaded the file."""
        self.allow(*users)
        held = [Permissions(each, EVERYTHING) if isinstance(each, str) else each for each in users]
        known = self.gateway.server.users
        assert known is not None
        wait_until(lambda: known.permissions() == sorted(held, key=lambda each: each.name))


_new_user = cache(new_user)  # with the same salt, so that the user is unchanged


def write_users(file: Path, *users: str | Permissions, password: str = PASSWORD) -> None:
    known = UserFile()
    for each in users:
        held = Permissions(each, EVERYTHING) if isinstance(each, str) else each
        known.users[held.name] = _new_user(held.name, password, ()).with_permissions(held)
    made = file.with_suffix(".new")
    made.write_bytes(known.packed())
    made.chmod(0o600)
    made.replace(file)


class Login(NamedTuple):
    """The settings of a client that authenticates."""

    authority: str
    name: str = NAME
    password: str = PASSWORD
    mechanism: str = "SCRAM-SHA-512"

    def librdkafka(self) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.name,
            "sasl.password": self.password,
        }

    def python(self) -> dict[str, Any]:
        """Return those of kafka-python and aiokafka."""
        return {
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=self.authority),
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.name,
            "sasl_plain_password": self.password,
        }


def librdkafka(locked: Locked, name: str = NAME, **more: Any) -> dict[str, Any]:
    """Return the settings of a user's librdkafka."""
    fixed = {"bootstrap.servers": locked.servers, "log_level": 0}
    return fixed | locked.login(name).librdkafka() | more

"""A gateway that wants to know who its clients are."""

from __future__ import annotations

from pathlib import Path

import trustme

from dafka_core import Store
from dafka_core.kafka.gateway import Gateway
from dafka_core.kafka.users import lines_of

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

    def allow(self, *names: str) -> None:
        lines = [line for name in names for line in lines_of(name, PASSWORD)]
        self.users.write_text("\n".join(lines))
        self.users.chmod(0o600)

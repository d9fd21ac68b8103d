"""Authentication of Flight clients: TLS, a token made from the key, and options of gRPC.

Without keys it says nothing of itself, and talks in the clear.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pyarrow import flight

from dafka_core.config.security_options import KeyFiles
from dafka_core.errors import ConfigError
from dafka_core.flight import grpc_workarounds
from dafka_core.flight.grpc_workarounds import LOST_MS
from dafka_core.flight.store_location import TLS_SCHEME, host_of, path_of, tcp_location
from dafka_core.security.allowed_keys import AllowedKeys
from dafka_core.security.credentials import HEADER, SCHEME, SERVER_NAME, has_expired, pem, token
from dafka_core.security.key_files import read_secret
from dafka_core.security.permissions import STORE

CONNECT_TIMEOUT_MS: Final = 5_000
"""How long one attempt to connect may take; a store that is there answers at once."""

GRPC_OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),  # stores are contacted directly, as nodes of the mesh are
    # Whole blocks in few frames, and room for two of them: measured best on one machine.
    ("grpc.http2.max_frame_size", 16_777_215),
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Not for its pings, the first of which is 24 days away: what was sent to a host that has
    # vanished breaks the connection after the timeout (TCP_USER_TIMEOUT).
    ("grpc.keepalive_time_ms", (1 << 31) - 2),
    ("grpc.keepalive_timeout_ms", LOST_MS),
]


MIN_TIMEOUT_S: Final = 0.001
"""gRPC takes zero and less for no limit."""

_log = logging.getLogger("dafka.security")


class ClientKeys:
    """A client's own key, and the stores that it trusts as they are now.  Thread-safe.

    Raises:
        ConfigError: the keys are wrong.
    """

    def __init__(self, files: KeyFiles) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._allowed: AllowedKeys | None = None
        self._lock = threading.Lock()
        self._roots = b""
        if files.secret_key_file:
            own = read_secret(files.secret_key_file)
            self._headers = [(HEADER.encode(), f"{SCHEME}{token(own.secret)}".encode())]
            self._allowed = AllowedKeys(files.allowed_keys, is_second=True)
            self._take_roots()

    @classmethod
    def of(cls, files: KeyFiles) -> ClientKeys:
        """Those of a process: its clients share them."""
        return _opened(files)

    @property
    def trusted(self) -> bytes:
        """The certificates of the stores, as they are now; empty without keys."""
        if self._allowed is not None:
            with self._lock:
                if self._allowed.look(time.monotonic()):
                    self._take_roots()
        return self._roots

    def uri_of(self, location: str) -> str:
        """Where a service is asked that was named so: with keys by TLS only."""
        place = host_of(location)
        if self._allowed is None or place is None:
            return location
        return tcp_location(*place, is_tls=True)

    def may_use(self, location: str) -> bool:
        """Whether a process listens at a socket of this machine; with keys, one of this user's."""
        with contextlib.suppress(OSError):
            is_own = Path(str(path_of(location))).stat().st_uid == os.geteuid()
            return (is_own or self._allowed is None) and grpc_workarounds.accepts(location)
        return False

    def connect(self, uri: str, trusted: bytes) -> flight.FlightClient:
        """A client of pyarrow's; ``trusted`` are certificates.

        Raises:
            ConfigError: no store is trusted, or one with keys is asked without any.
        """
        if not uri.startswith(f"{TLS_SCHEME}:"):
            return flight.FlightClient(uri, generic_options=GRPC_OPTIONS)
        if self._allowed is None:
            why = f"must be set, and allowed_keys: the store at {uri} lets in owners of keys only"
            raise ConfigError("secret_key_file", "", why)
        if not trusted:
            why = (
                f"has no key with role {STORE} and a certificate, so that no store can be trusted: "
                "'dafka keys renew NAME' writes it, where the key's secret is"
            )
            raise ConfigError("allowed_keys", str(self._allowed.directory), why)
        return flight.FlightClient(
            uri,
            tls_root_certs=trusted,
            override_hostname=SERVER_NAME,
            generic_options=GRPC_OPTIONS,
        )

    def call_options(self, timeout_s: float | None = None) -> Any:
        """What pyarrow is told of a call."""
        timed = {} if timeout_s is None else {"timeout": max(timeout_s, MIN_TIMEOUT_S)}
        return flight.FlightCallOptions(headers=self._headers, **timed)

    def _take_roots(self) -> None:
        assert self._allowed is not None
        stores = [each for each in self._allowed.with_role(STORE) if each.certificate]
        for each in stores:
            if has_expired(each.certificate):
                text = "the certificate in %s.key has expired: 'dafka keys renew %s'"
                _log.warning(text, each.name, each.name)
        self._roots = b"".join(pem(each.certificate) for each in stores)


@lru_cache(maxsize=64)
def _opened(files: KeyFiles) -> ClientKeys:
    return ClientKeys(files)

"""Authentication and authorization of the Flight service: TLS and permissions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from pyarrow import flight

from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import ConfigError, NotAllowedError
from dafka_core.flight.flight_errors import REFUSED, UnavailableError
from dafka_core.flight.requests import DiscardRequest, Request, RetentionRequest
from dafka_core.model.names import escape, quoted
from dafka_core.model.records import PartitionInfo, StagedPartition
from dafka_core.security.allowed_keys import AllowedKeys
from dafka_core.security.key_files import (
    KEY_HEADER,
    TlsPair,
    key_of_name,
    pem,
    read_secret,
    tls_pair,
)
from dafka_core.security.permissions import ADMIN, EVERYBODY, STORE, TOWER, Permissions, refused
from dafka_core.security.throttles import LogThrottle

Need = Callable[[Permissions, Any], str]
"""Returns the part of a request that its sender may not do; empty if it may do all."""


def anything(owner: Permissions, request: Request) -> str:
    """Require nothing but a key."""
    return ""


def reads(owner: Permissions, request: Request) -> str:
    """Require permission to consume the topics of the request."""
    return next(
        (f"consume {quoted(each)}" for each in _topics(request) if not owner.may_consume(each)), ""
    )


def knows(owner: Permissions, request: Request) -> str:
    """Require permission to know of its topics; an answer about all topics omits the others."""
    topics = _topics(request)
    return next((f"know of {quoted(each)}" for each in topics if not owner.may_know(each)), "")


def writes(owner: Permissions, request: Request) -> str:
    """Require permission to produce to its topics, and partitions of the owner's own."""
    for topic, partition in _partitions(request):
        if not owner.may_produce(topic):
            return f"produce to {quoted(topic)}"
        if not owner.may_write(topic, partition):
            return f"write partition {escape(partition)}, which is not its own"
    return ""


def reads_or_writes(owner: Permissions, request: Request) -> str:
    """Require either ``reads`` or ``writes``."""
    return reads(owner, request) and writes(owner, request)


def discards(owner: Permissions, request: DiscardRequest) -> str:
    """Require ``writes``, or role admin."""
    return "" if owner.is_admin else writes(owner, request)


def administers(owner: Permissions, request: Request) -> str:
    """Require role admin or store."""
    may = owner.is_admin or owner.is_store
    return "" if may else f"administer stores, without role {ADMIN}"


def sets_rules(owner: Permissions, request: RetentionRequest) -> str:
    """Require role admin or store for new rules, and any role but tower for the present ones."""
    if request.reset or request.rules is not None:
        return administers(owner, request)
    # Rules name topics.
    return "know the rules of retention" if owner.roles <= {TOWER} else ""


def _topics(request: Request) -> Iterable[str]:
    named: Any = request
    if (topic := getattr(named, "topic", None)) is not None:
        return (topic,)
    return {*(getattr(named, "topics", None) or ()), *(tp[0] for tp in _partitions(request))}


def _partitions(request: Request) -> Iterable[tuple[str, str]]:
    named: Any = request
    if hasattr(named, "partition"):
        return ((named.topic, named.partition),)
    return {(topic, partition) for _, (topic, partition, *_) in request.rows}


MIDDLEWARE: Final = "key"
"""The name under which pyarrow passes the key that a client at the socket names."""

_NO_KEY: Final = (
    "it lets in owners of keys only: set secret_key_file and allowed_keys (docs/security.md)"
)
_UNKNOWN: Final = (
    "it does not know this client's key: NAME.key must be in its directory of allowed keys"
)

T = TypeVar("T", PartitionInfo, StagedPartition)

_log = logging.getLogger("dafka.security")


class ServerKeys:
    """A store's own key, and its clients', reread when they change.  Thread-safe."""

    def __init__(self, files: KeyFiles) -> None:
        own = read_secret(files.secret_key_file)
        self._allowed = AllowedKeys(files.allowed_keys, is_second=True)
        known = self._allowed.find(own.public.decode())
        if known is None or STORE not in known.roles:
            why = f"must contain this store's own key with role {STORE}: clients trust no other"
            raise ConfigError("allowed_keys", files.allowed_keys, why)
        self.tls: TlsPair = tls_pair(own.secret)
        if pem(known.certificate) != self.tls.certificate:
            why = (
                f"{known.name}.key lacks this key's certificate, by which clients identify it: run "
                "'dafka keys renew NAME' where its secret is, and copy NAME.key to all machines"
            )
            raise ConfigError("allowed_keys", files.allowed_keys, why)
        self.refusal_count = 0  # requests beyond their sender's permissions
        self._lock = threading.Lock()
        self._throttle = LogThrottle()

    @property
    def certificates(self) -> list[str]:
        """Return the certificates of the keys that are allowed now."""
        self._look()
        return [each.certificate for each in self._allowed.all() if each.certificate]

    def owner(self, key: str) -> Permissions:
        """Return the present permissions of a key's owner; raise UnavailableError without any."""
        self._look()
        found = self._allowed.find(key)
        if found is None:
            raise UnavailableError(REFUSED, _UNKNOWN if key else _NO_KEY)
        return found.permissions

    def _look(self) -> None:
        with self._lock:
            self._allowed.look(time.monotonic())

    def note_refusal(self, what: str, peer: str) -> None:
        """Count a refusal, and log it at intervals."""
        with self._lock:
            self.refusal_count += 1
        if self._throttle.is_new(what):
            extra = {"event": "request_refused"}
            _log.warning("refused a request over Flight by %s: %s", peer, what, extra=extra)


class NamedKey(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Reads the key that a client at the socket names: only the store's own user can open it."""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _NamedKey:
        """Read a call's header; pyarrow calls this first."""
        return _NamedKey(str(headers.get(KEY_HEADER, [""])[0]))


class _NamedKey(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class Caller:
    """One request's client, its name in gRPC and permissions; without ``keys`` all are allowed."""

    def __init__(self, context: Any, keys: ServerKeys | None) -> None:
        self.peer: str = context.peer()
        self._is_cancelled: Callable[[], bool] = context.is_cancelled
        self._keys = keys
        self._key = "" if keys is None else _key_of(context)
        # Until ``allow``, no key may do anything.
        self._denied: Callable[[Permissions], str] = lambda owner: "make requests without a rule"
        self._allowed_to: Permissions | None = None

    @property
    def owner(self) -> Permissions:
        """Return its present permissions."""
        return EVERYBODY if self._keys is None else self._keys.owner(self._key)

    def allow(self, request: Request | None, need: Need) -> None:
        """Check a request, now and whenever ``check`` is called."""
        self._denied, self._allowed_to = lambda owner: need(owner, request), None
        self.check()

    def check(self) -> None:
        """Check the request again: keys change during a stream."""
        if self._keys is None:
            return
        try:
            owner = self._keys.owner(self._key)
            if owner != self._allowed_to:
                if denied := self._denied(owner):
                    raise refused(owner, denied)
                self._allowed_to = owner
        except (NotAllowedError, UnavailableError) as error:
            self._keys.note_refusal(str(error), self.peer)
            raise

    def known(self, held: Iterable[T]) -> list[T]:
        """Return those of the items that it may know."""
        owner = self.owner
        if owner.knows_all:
            return list(held)
        topics: dict[str, bool] = {}
        return [each for each in held if topics.setdefault(each.topic, owner.may_know(each.topic))]

    def is_gone(self) -> bool:
        """Return True if it waits for no answer any more; raises as ``check``."""
        self.check()
        return self._is_cancelled()


def _key_of(context: Any) -> str:
    named = context.get_middleware(MIDDLEWARE)
    return key_of_name(context.peer_identity().decode()) if named is None else named.key

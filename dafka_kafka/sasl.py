"""Authentication of Kafka's clients: PLAIN (RFC 4616) and SCRAM (RFC 5802) in Kafka's frames.

Kafka's SaslHandshakeRequest, then one or two SaslAuthenticateRequests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import astuple

from dafka_core.errors import ConfigError, ProtocolError
from dafka_core.security.permissions import NOBODY
from dafka_core.security.throttles import MOST_WRONG
from dafka_kafka.api import Answer, Api, Client, Feature, Served, serves
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.users import SCRAM, Rights, Users, Verifier

try:
    from scramp import ScramException, ScramMechanism
    from scramp.core import ScramServer
except ImportError:
    _why = "needs scramp: pip install 'dafka-spark[kafka]'"
    raise ConfigError("kafka", True, _why) from None

PLAIN: Final = "PLAIN"

PATIENCE_S: Final = 30.0  # time for authentication, after which the connection is closed
FAILED_WAIT_S: Final = 0.5  # delay of a refusal, against guessing

TOO_MANY: Final = f"{MOST_WRONG} wrong passwords came from this address within a minute: wait one"

MAX_REQUEST_BYTES: Final = 64 << 10  # request size before authentication

REFUSED: Final = "clients that failed to authenticate"

_NO_RIGHTS: Final = Rights(NOBODY)


class _NotLookedAtError(Exception):
    """Too many failed attempts came from this address."""


class Sasl(Feature):
    """The authentication state of one connection.

    Args:
        is_private: whether the connection is encrypted, so that a client may send its password.
    """

    def __init__(self, users: Users, *, is_private: bool) -> None:
        self._users = users
        self._mechanisms = [*SCRAM, PLAIN] if is_private else [*SCRAM]
        self._mechanism = ""
        self._scram: ScramServer | None = None
        self._name = ""
        self._verifiers: Mapping[str, Verifier] | None = None
        self.user: str | None = None  # the user, once authenticated
        self.failure = ""  # why the connection must be closed after the response

    def available(self, api_key: int, apis: Mapping[int, Served]) -> Mapping[int, Served]:
        """Return the APIs of this connection; ``apis`` are those for authenticated users.

        Raises:
            ProtocolError: the client has not authenticated.
        """
        is_first = api_key == Api.API_VERSIONS or api_key in self.declared
        if self.user is None and not is_first:
            why = "set security.protocol, sasl.mechanism and a user's name and password"
            raise ProtocolError(f"the client has not authenticated: {why}")
        return {**apis, **self.apis} if is_first else apis

    @property
    def is_shut_out(self) -> bool:
        """True if the user was removed, or its password changed."""
        if self.user is None:
            return False
        return self.user not in self._users or self._users.verifiers(self.user) != self._verifiers

    @property
    def rights(self) -> Rights:
        """Return the user's permissions now: none before authentication.

        Raises:
            ProtocolError: the user was removed.
        """
        if self.user is None:
            return _NO_RIGHTS
        found = self._users.rights(self.user)
        if found is None:
            raise ProtocolError(f"user {self.user!r} was removed")
        return found

    @serves(Api.SASL_HANDSHAKE, range(2))
    async def _handshake(self, request: Any, client: Client) -> Answer:
        self._mechanism = ""
        if client.version == 0:  # its tokens would follow without a header
            error = KafkaError.UNSUPPORTED_VERSION
            self.failure = "it is older than Kafka 1.0, and would not send SaslAuthenticate"
        elif self.user is not None:
            error = KafkaError.ILLEGAL_SASL_STATE
            self.failure = "the client has authenticated already"
        elif request.mechanism not in self._mechanisms:
            error = KafkaError.UNSUPPORTED_SASL_MECHANISM
            self.failure = f"mechanism {request.mechanism!r} is none of {self._mechanisms}"
            if request.mechanism == PLAIN:
                self.failure = "PLAIN would show its password to others: use TLS, or SCRAM-SHA-512"
        else:
            error = KafkaError.NONE
            self._mechanism = request.mechanism
            self._scram = None
        return {"error_code": error, "mechanisms": self._mechanisms}

    @serves(Api.SASL_AUTHENTICATE, range(3))
    async def _authenticate(self, request: Any, client: Client) -> Answer | None:
        if not self._mechanism:
            self.failure = "SaslAuthenticate came before SaslHandshake"
            raise RefusedError(KafkaError.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
        guesses, is_plain = self._users.guesses, self._mechanism == PLAIN
        try:
            if guesses.are_refused(client.host):
                raise _NotLookedAtError
            said = bytes(request.auth_bytes).decode()
            told = await self._plain(said, client.host) if is_plain else self.challenge(said)
            return {"error_message": None, "auth_bytes": told.encode()}
        except _NotLookedAtError:
            # No error response: a client with the right password would take it as final. A closed
            # connection is retried until the minute is over.
            await self._wait(TOO_MANY)
            return None
        except ValueError:
            if not is_plain:
                guesses.add_wrong(client.host)
            why = f"user {self._name!r} is not known, or has another password"
            await self._wait(why)
            # One message for both, so that names can't be probed.
            failed = KafkaError.SASL_AUTHENTICATION_FAILED
            raise RefusedError(failed, "wrong name or password") from None

    async def _wait(self, why: str) -> None:
        self._mechanism = ""
        await asyncio.sleep(FAILED_WAIT_S)
        self.failure = why

    async def _plain(self, said: str, host: str) -> str:
        acts_as, self._name, password = said.split("\0")
        self._verifiers = self._users.verifiers(self._name)
        loop = asyncio.get_running_loop()
        is_right = await loop.run_in_executor(self._users.threads, self._knows, password, host)
        if not is_right or acts_as not in ("", self._name):
            raise ValueError
        self.user, self._mechanism = self._name, ""
        return ""

    def _knows(self, password: str, host: str) -> bool:
        """Check a password in a thread; return False if the address is blocked meanwhile."""
        if self._users.guesses.are_refused(host):
            raise _NotLookedAtError
        is_right = self._users.knows(self._name, password)
        if not is_right:
            self._users.guesses.add_wrong(host)
        return is_right

    def challenge(self, said: str) -> str:
        """Answer a client's first or second SCRAM message.

        Raises:
            ValueError: the message or its proof is invalid.
        """
        try:
            if self._scram is None:
                # Not by SASLprep of RFC 5802: Kafka's clients send names as they are.
                name = said.partition(",n=")[2].partition(",")[0]
                mechanism = ScramMechanism(self._mechanism)
                self._scram = mechanism.make_server(lambda prepared: self._verifier(name))
                self._scram.set_client_first(said)
                return str(self._scram.get_server_first())
            self._scram.set_client_final(said)
            told = str(self._scram.get_server_final())
        except ScramException as error:
            raise ValueError(str(error)) from None
        if self._name not in self._users:
            raise ValueError("an unknown password")
        self.user, self._mechanism = self._name, ""
        return told

    def _verifier(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name, self._verifiers = name, self._users.verifiers(name)
        return astuple(self._users.verifier(self._mechanism, name))

"""How a client of Kafka proves who it is: PLAIN (RFC 4616) and SCRAM (RFC 5802), in Kafka's frames.

Kafka: "SaslHandshakeRequest", then one or two "SaslAuthenticateRequest" on the same connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from scramp import ScramException, ScramMechanism
from scramp.core import ScramServer

from dafka_core.errors import ProtocolError
from dafka_core.security.throttles import MOST_WRONG
from dafka_kafka.api_versions import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Client, Handler
from dafka_kafka.schemas import SaslAuthenticateResponse, SaslHandshakeResponse
from dafka_kafka.users import SCRAM, Rights, Users, Verifier

PLAIN: Final = "PLAIN"

PATIENCE_S: Final = 30.0
"""Who has not said by then who it is is cut off."""

FAILED_WAIT_S: Final = 0.5
"""Before a refusal is told: passwords are not to be guessed by the thousand."""

TOO_MANY: Final = f"{MOST_WRONG} wrong passwords came from this address within a minute: wait one"

MAX_REQUEST_BYTES: Final = 64 << 10
"""Of who has not said yet who it is."""

REFUSED: Final = "clients that could not prove who they are"

BEFORE: Final = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})
"""What a client may ask before."""


class _NotLookedAtError(Exception):
    """Too much that was wrong came from where this comes from."""


class Sasl:
    """What one connection has said of who it is.

    Args:
        is_private: whether nobody else can read what the client sends: it may send its password.
    """

    def __init__(self, users: Users, *, is_private: bool) -> None:
        self._users = users
        self._mechanisms = [*SCRAM, PLAIN] if is_private else [*SCRAM]
        self._mechanism = ""
        self._scram: ScramServer | None = None
        self._name = ""
        self._verifiers: Mapping[str, Verifier] | None = None
        self.user: str | None = None
        """Who it is, once that is proved."""
        self.failure = ""
        """Why it is to be cut off, when it has been told."""

    def served(self, api_key: int, handlers: Mapping[int, Handler]) -> Mapping[int, Handler]:
        """Who answers, where these ``handlers`` do for users.

        Raises:
            ProtocolError: this may not be asked yet.
        """
        if self.user is None and api_key not in BEFORE:
            why = "set security.protocol, sasl.mechanism and a user's name and password"
            raise ProtocolError(f"it has not said who it is: {why}")
        if api_key not in BEFORE:
            return handlers
        steps = {Api.SASL_HANDSHAKE: self._handshake, Api.SASL_AUTHENTICATE: self._authenticate}
        return {**handlers, **{int(key): each for key, each in steps.items()}}

    @property
    def is_shut_out(self) -> bool:
        """Whether its user is none any more, or has another password than the one it was proved."""
        if self.user is None:
            return False
        return self.user not in self._users or self._users.verifiers(self.user) != self._verifiers

    @property
    def rights(self) -> Rights:
        """What its user may do now.

        Raises:
            ProtocolError: it is none any more.
        """
        found = None if self.user is None else self._users.rights(self.user)
        if found is None:
            raise ProtocolError(f"user {self.user!r} is none any more")
        return found

    async def _handshake(self, request: Any, client: Client) -> Any:
        self._mechanism = ""
        if client.version == 0:  # behind it there would be octets without a header
            error = KafkaError.UNSUPPORTED_VERSION
            self.failure = "it is older than Kafka 1.0, and would not send SaslAuthenticate"
        elif self.user is not None:
            error = KafkaError.ILLEGAL_SASL_STATE
            self.failure = "it has said who it is, and says so again"
        elif request.mechanism not in self._mechanisms:
            error = KafkaError.UNSUPPORTED_SASL_MECHANISM
            self.failure = f"mechanism {request.mechanism!r} is none of {self._mechanisms}"
            if request.mechanism == PLAIN:
                self.failure = "PLAIN would show its password to others: use TLS, or SCRAM-SHA-512"
        else:
            error = KafkaError.NONE
            self._mechanism = request.mechanism
            self._scram = None
        return SaslHandshakeResponse(error_code=error, mechanisms=self._mechanisms)

    async def _authenticate(self, request: Any, client: Client) -> Any:
        if not self._mechanism:
            self.failure = "it proves who it is before it says how"
            return _answer(KafkaError.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
        guesses, is_plain = self._users.guesses, self._mechanism == PLAIN
        try:
            if guesses.are_refused(client.host):
                raise _NotLookedAtError
            said = bytes(request.auth_bytes).decode()
            told = await self._plain(said, client.host) if is_plain else self.challenge(said)
            return _answer(auth_bytes=told.encode())
        except _NotLookedAtError:
            # Not an answer: who has the right password would take that for final, and end.  A
            # connection that ends is made again, until the minute is over.
            await self._wait(TOO_MANY)
            return None
        except ValueError:
            if not is_plain:
                guesses.add_wrong(client.host)
            why = f"user {self._name!r} is not known, or has another password"
            await self._wait(why)
            # No more is told, nor which of the two it is.
            return _answer(KafkaError.SASL_AUTHENTICATION_FAILED, "wrong name or password")

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
        self.user = self._name
        return ""

    def _knows(self, password: str, host: str) -> bool:
        """In a thread: whether that is the password; others may have been wrong meanwhile."""
        if self._users.guesses.are_refused(host):
            raise _NotLookedAtError
        is_right = self._users.knows(self._name, password)
        if not is_right:
            self._users.guesses.add_wrong(host)
        return is_right

    def challenge(self, said: str) -> str:
        """What SCRAM answers to a client's message, the first or the second one.

        Raises:
            ValueError: it is none, or proves nothing.
        """
        try:
            if self._scram is None:
                self._scram = ScramMechanism(self._mechanism).make_server(self._verifier)
                self._scram.set_client_first(said)
                return str(self._scram.get_server_first())
            self._scram.set_client_final(said)
            told = str(self._scram.get_server_final())
        except ScramException as error:
            raise ValueError(str(error)) from None
        if self._name not in self._users:
            raise ValueError("nobody knows its password")
        self.user, self._mechanism = self._name, ""
        return told

    def _verifier(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name, self._verifiers = name, self._users.verifiers(name)
        return self._users.verifier(self._mechanism, name)


def _answer(
    error: KafkaError = KafkaError.NONE, message: str | None = None, auth_bytes: bytes = b""
) -> Any:
    return SaslAuthenticateResponse(
        error_code=error, error_message=message, auth_bytes=auth_bytes, session_lifetime_ms=0
    )

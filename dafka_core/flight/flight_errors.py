"""Errors across Flight: a status with a sentence, and the facts as JSON in its ``extra_info``.

The facts are the error's fields, by their names.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from dafka_core.config.node_options import StoreLimitError
from dafka_core.errors import (
    DafkaError,
    DataLossError,
    FencedError,
    HistoryChangedError,
    InvalidRequestError,
    NotAllowedError,
    OffsetConflictError,
    StoreBusyError,
    StoreUnreachableError,
)
from dafka_core.flight.limits import MAX_MESSAGE_CHARS
from dafka_core.model.json_message import VERSION, convert, json_object, pack
from dafka_core.model.log_entries import TransactionExistsError

_KINDS: Final[dict[str, type[DafkaError]]] = {
    "bad-request": InvalidRequestError,
    "not-held": DataLossError,
    "history-changed": HistoryChangedError,
    "offset-conflict": OffsetConflictError,
    "fenced": FencedError,
    "transaction-exists": TransactionExistsError,
    "not-allowed": NotAllowedError,
    "limit-reached": StoreLimitError,
}
_CODES: Final[dict[type[BaseException], str]] = {kind: code for code, kind in _KINDS.items()}
BEHIND, BUSY, CLOSING, IDLE, OTHER_STORE = "behind", "busy", "closing", "idle", "other-store"
REFUSED = "refused"

FLIGHT_ERRORS: Final = (flight.FlightError, pa.ArrowException, OSError)
"""Errors of pyarrow's client that are not mistakes of its caller."""

_TLS_ERRORS: Final = {
    "certificate verify failed": "its certificate does not belong to a store in this client's "
    "directory of allowed keys: copy its NAME.key there, unless another program has taken its "
    "address",
    "wrong version number": "it does not use TLS, as stores with keys do: start it with "
    "secret_key_file and allowed_keys, unless another program has taken its address",
    "Socket closed": "it closed the connection; if it has keys, set secret_key_file and "
    "allowed_keys here, and copy this client's NAME.key to its directory of allowed keys, with a "
    "line certificate ('dafka keys renew NAME' writes it)",
}
"""Sentences for failed TLS handshakes, by gRPC's message."""

_UNREACHABLE: Final = re.compile(
    r"last error: \w+: (?:ipv[46]:|unix:)?(.+?): (?:Failed to connect to remote host: )?([^:]+)$"
)
"""The address and the reason in gRPC's message."""

_log = logging.getLogger("dafka.store")


@dataclass(eq=False)
class UnavailableError(DafkaError):
    """A valid request that this store does not serve now; the rest as in ``StoreBusyError``."""

    sentence = "{why}"
    code: str
    why: str
    waited_s: float = 0.0
    moves: bool = False


@contextmanager
def refusing() -> Iterator[None]:
    """Convert errors to Flight's, with a code and facts; log those of the store itself."""
    try:
        yield
    except flight.FlightError:
        raise
    except Exception as error:
        raise refusal(error) from error


def refusal(error: BaseException) -> flight.FlightError:
    """Convert an error to Flight's."""
    kind, code, sentence = flight.FlightServerError, "failed", str(error)
    facts: dict[str, Any] = {}
    if isinstance(error, UnavailableError):
        kind, code = flight.FlightUnavailableError, error.code
        if code == REFUSED:
            kind = flight.FlightUnauthenticatedError
        facts = {"waited_s": error.waited_s, "moves": error.moves} if code == BUSY else {}
    elif type(error) in _CODES:
        code, facts = _CODES[type(error)], msgspec.to_builtins(error)
        if isinstance(error, NotAllowedError):
            kind = flight.FlightUnauthorizedError
    elif isinstance(error, DafkaError):
        _log.error("%s", error)
    else:
        sentence = f"{type(error).__name__}: {error}"
        _log.error("a request over Flight failed", exc_info=error)
    if "why" in facts:
        facts["why"] = _cut(facts["why"])
    packed = pack({"error": code, "message": _cut(sentence), **facts})
    return kind(_cut(sentence), extra_info=packed)


def translated(error: BaseException, store: str) -> DafkaError:
    """Convert an error of a call for the caller of ``store``."""
    facts = json_object(getattr(error, "extra_info", b"")) or {}
    if facts.get("v") != VERSION:
        facts = {}
    kind = _KINDS.get(str(facts.get("error")))
    if kind in (DataLossError, HistoryChangedError):
        facts["why"] = f"{facts.get('why')} (store {store})"
    if kind is InvalidRequestError and facts.get("member") == "action":
        facts["why"] = (
            f"store {store} has another version, which does not support this: upgrade the stores "
            "before their clients"
        )
    if kind is not None:
        with suppress(msgspec.ValidationError):  # with unknown facts the sentence remains
            return convert(facts, kind)
    tls_error = next((_TLS_ERRORS[reason] for reason in _TLS_ERRORS if reason in str(error)), "")
    why = str(facts.get("message") or tls_error or _reason(error))
    if facts.get("error") == BUSY:
        with suppress(msgspec.ValidationError):
            return convert({**facts, "store": store, "why": why}, StoreBusyError)
    return StoreUnreachableError(store, why)


def _cut(sentence: str) -> str:
    whole = sentence.encode("ascii", "backslashreplace").decode("ascii")
    return whole if len(whole) <= MAX_MESSAGE_CHARS else f"{whole[:MAX_MESSAGE_CHARS]}..."


def _reason(error: BaseException) -> str:
    sentence = (str(error).splitlines() or [""])[0].partition(". gRPC client debug context")[0]
    if unreachable := _UNREACHABLE.search(sentence):
        return _cut(f"no connection to {unreachable[1]} ({unreachable[2]})")
    return _cut(sentence.rpartition("with message: ")[2] or type(error).__name__)

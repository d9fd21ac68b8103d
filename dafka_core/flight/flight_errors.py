"""Errors across Flight: a status with a sentence, and the facts as JSON in its ``extra_info``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import (
    ConfigError,
    DafkaError,
    DataLossError,
    FencedError,
    OffsetConflictError,
    StoreUnreachableError,
    TransactionExistsError,
)
from dafka_core.flight.limits import MAX_MESSAGE_CHARS
from dafka_core.records import Transaction
from dafka_core.storage import WrongOffsetError

VERSION: Final = 1

BAD_REQUEST: Final = "bad-request"
NOT_HELD: Final = "not-held"
CONFLICT: Final = "offset-conflict"
FENCED: Final = "fenced"
TRANSACTION_EXISTS: Final = "transaction-exists"
FAILED: Final = "failed"

FLIGHT_ERRORS: Final = (flight.FlightError, pa.ArrowException, OSError)
"""What a call of pyarrow's client may raise that is not a mistake of its caller."""

_NAMES: Final = ("topic", "partition")

_log = logging.getLogger("dafka.store")


class UnavailableError(DafkaError):
    """A request that there is nothing wrong with, and that this store does not serve now."""

    code = ""


class BusyError(UnavailableError):
    """The service has as much to do as it may."""

    code = "busy"


class ClosingError(UnavailableError):
    """The service is about to end."""

    code = "closing"


class OtherStoreError(UnavailableError):
    """A request meant for another store."""

    code = "other-store"


@contextmanager
def refusing() -> Iterator[None]:
    """Errors leave as Flight's, with a code and facts; those nobody foresaw are logged."""
    try:
        yield
    except flight.FlightError:
        raise
    except Exception as error:
        raise refusal(error) from error


def refusal(error: BaseException) -> flight.FlightError:
    """An error as Flight carries it."""
    facts: dict[str, Any] = {}
    match error:
        case flight.FlightError():
            return error
        case UnavailableError():
            return _unavailable(error.code, str(error))
        case ConfigError():
            code = BAD_REQUEST
            facts = {"member": error.option, "value": error.value, "why": error.why}
        case DataLossError():
            code = NOT_HELD
            facts = {"wanted": error.wanted, "available": error.available, "why": error.why}
        case OffsetConflictError() | WrongOffsetError():
            code, facts = CONFLICT, _names(error) | {"offset": error.offset, "end": error.end}
        case FencedError():
            code, facts = FENCED, _names(error) | {"attempt": error.attempt}
        case TransactionExistsError():
            number, start, end = error.transaction
            last = {"version": number, "start": start, "end": end}
            code, facts = TRANSACTION_EXISTS, _names(error) | last
        case DafkaError():
            code = FAILED
            _log.error("%s", error)
        case _:
            _log.error("a request over Flight failed", exc_info=error)
            return _error(FAILED, f"{type(error).__name__}: {error}", {})
    return _error(code, str(error), facts)


def translated(
    error: BaseException, store: str, topic: str = "", partition: str = ""
) -> DafkaError:
    """What a call's error means to whoever called ``store``."""
    facts = _facts(error)
    code = facts.get("error")
    try:
        if code == BAD_REQUEST:
            return ConfigError(str(facts["member"]), facts["value"], str(facts["why"]))
        if code == NOT_HELD:
            available = None if facts["available"] is None else int(facts["available"])
            why = f"{facts['why']} (store {store})"
            return DataLossError(topic, partition, int(facts["wanted"]), available, why)
        # A request may be about many partitions: the error says which one it is.
        topic = str(facts.get("topic", topic))
        partition = str(facts.get("partition", partition))
        if code == CONFLICT:
            offset, end = int(facts["offset"]), int(facts["end"])
            return OffsetConflictError(topic, partition, offset, end)
        if code == FENCED:
            return FencedError(topic, partition, str(facts["attempt"]))
        if code == TRANSACTION_EXISTS:
            transaction = Transaction(int(facts["version"]), int(facts["start"]), int(facts["end"]))
            return TransactionExistsError(topic, partition, transaction)
    except (KeyError, TypeError, ValueError):
        pass  # facts of another kind than ours; their sentence remains
    return StoreUnreachableError(store, str(facts.get("message") or _reason(error)))


def _names(
    error: OffsetConflictError | WrongOffsetError | FencedError | TransactionExistsError,
) -> dict[str, Any]:
    return {"topic": error.topic, "partition": error.partition}


def _error(code: str, sentence: str, facts: dict[str, Any]) -> flight.FlightError:
    return flight.FlightServerError(_cut(sentence), extra_info=_packed(code, sentence, facts))


def _unavailable(code: str, sentence: str) -> flight.FlightError:
    return flight.FlightUnavailableError(_cut(sentence), extra_info=_packed(code, sentence, {}))


def _packed(code: str, sentence: str, facts: dict[str, Any]) -> bytes:
    facts = {"v": VERSION, "error": code, "message": _cut(sentence), **facts}
    numbers = (int, float, type(None))
    plain = {
        # Names are never long, and must arrive as they are.
        name: fact if isinstance(fact, numbers) or name in _NAMES else _cut(str(fact))
        for name, fact in facts.items()
    }
    return json.dumps(plain).encode("ascii")


def _facts(error: BaseException) -> dict[str, Any]:
    try:
        found = json.loads(getattr(error, "extra_info", b""))
    except (ValueError, RecursionError, TypeError):
        return {}
    return found if isinstance(found, dict) and found.get("v") == VERSION else {}


def _cut(sentence: str) -> str:
    whole = sentence.encode("ascii", "backslashreplace").decode("ascii")
    return whole if len(whole) <= MAX_MESSAGE_CHARS else f"{whole[:MAX_MESSAGE_CHARS]}..."


def _reason(error: BaseException) -> str:
    """What gRPC says is wrong, without what it says about itself."""
    sentence = (str(error).splitlines() or [""])[0].partition(". gRPC client debug context")[0]
    return _cut(sentence.rpartition("with message: ")[2] or type(error).__name__)

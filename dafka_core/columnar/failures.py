"""Errors across Flight: a status with a sentence, and the facts as JSON in its ``extra_info``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.columnar.limits import MAX_MESSAGE_CHARS
from dafka_core.errors import (
    ConfigError,
    DafkaError,
    DataLossError,
    OffsetConflictError,
    StoreUnreachableError,
)
from dafka_core.storage import WrongOffsetError

VERSION: Final = 1

BAD_REQUEST: Final = "bad-request"
NOT_HELD: Final = "not-held"
CONFLICT: Final = "offset-conflict"
FAILED: Final = "failed"

FLIGHT_ERRORS: Final = (flight.FlightError, pa.ArrowException, OSError)
"""What a call of pyarrow's client may raise that is not a mistake of its caller."""

_log = logging.getLogger("dafka.store")


class AskAnotherError(DafkaError):
    """A request that there is nothing wrong with, and that this store does not serve now."""

    code = ""


class BusyError(AskAnotherError):
    """The service has as much to do as it may."""

    code = "busy"


class ClosingError(AskAnotherError):
    """The service is about to end."""

    code = "closing"


class OtherStoreError(AskAnotherError):
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
    match error:
        case flight.FlightError():
            return error
        case ConfigError():
            facts = {"member": error.option, "value": error.value, "why": error.why}
            return _error(BAD_REQUEST, str(error), **facts)
        case DataLossError():
            facts = {"wanted": error.wanted, "available": error.available, "why": error.why}
            return _error(NOT_HELD, str(error), **facts)
        case OffsetConflictError() | WrongOffsetError():
            return _error(CONFLICT, str(error), offset=error.offset, end=error.end)
        case AskAnotherError():
            return _unavailable(error.code, str(error))
        case DafkaError():
            _log.error("%s", error)
            return _error(FAILED, str(error))
    _log.error("a request over Flight failed", exc_info=error)
    return _error(FAILED, f"{type(error).__name__}: {error}")


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
        if code == CONFLICT:
            offset, end = int(facts["offset"]), int(facts["end"])
            return OffsetConflictError(topic, partition, offset, end)
    except (KeyError, TypeError, ValueError):
        pass  # facts of another kind than ours; their sentence remains
    return StoreUnreachableError(store, str(facts.get("message") or _reason(error)))


def _error(code: str, sentence: str, **facts: object) -> flight.FlightError:
    return flight.FlightServerError(_cut(sentence), extra_info=_packed(code, sentence, facts))


def _unavailable(code: str, sentence: str) -> flight.FlightError:
    return flight.FlightUnavailableError(_cut(sentence), extra_info=_packed(code, sentence, {}))


def _packed(code: str, sentence: str, facts: dict[str, Any]) -> bytes:
    facts = {"v": VERSION, "error": code, "message": _cut(sentence), **facts}
    numbers = (int, float, type(None))
    plain = {
        name: fact if isinstance(fact, numbers) else _cut(str(fact)) for name, fact in facts.items()
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

"""Errors cross Flight with their type, their sentence and their facts."""

import logging

import pytest
from pyarrow import flight

from dafka_core.errors import (
    DafkaError,
    DataLossError,
    FencedError,
    InvalidRequestError,
    OffsetConflictError,
    StoreBusyError,
    StoreUnreachableError,
)
from dafka_core.flight import flight_errors, limits
from dafka_core.model.log_entries import TransactionExistsError
from dafka_core.model.records import Transaction


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (InvalidRequestError("start", -1, "is"), InvalidRequestError("start", -1, "is")),
        (InvalidRequestError("rows", ["é", 1], "is"), InvalidRequestError("rows", ["é", 1], "is")),
        (DataLossError("t", "P", 3, 9, "why"), DataLossError("t", "P", 3, 9, "why (store S)")),
        (
            DataLossError("t", "P", 3, None, "why"),
            DataLossError("t", "P", 3, None, "why (store S)"),
        ),
        (OffsetConflictError("t", "P", 3, 9), OffsetConflictError("t", "P", 3, 9)),
        # A request may be about many partitions; their names come as they are.
        (OffsetConflictError("é", "\udcff", 3, 9), OffsetConflictError("é", "\udcff", 3, 9)),
        (FencedError("u", "Q", "A" * 32), FencedError("u", "Q", "A" * 32)),
        (
            TransactionExistsError("u", "Q", Transaction(1, 2, 9)),
            TransactionExistsError("u", "Q", Transaction(1, 2, 9)),
        ),
        (flight_errors.UnavailableError("busy", "why"), StoreBusyError("S", "why")),
        (
            flight_errors.UnavailableError("busy", "why", waited_s=30.5, moves=True),
            StoreBusyError("S", "why", 30.5, True),
        ),
        (flight_errors.UnavailableError("closing", "end"), StoreUnreachableError("S", "end")),
        (DafkaError("broken"), StoreUnreachableError("S", "broken")),
        (KeyError("x"), StoreUnreachableError("S", "KeyError: 'x'")),
    ],
)
def test_errors_cross_with_their_facts(
    error: Exception, again: DafkaError, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "dafka.store"):
        sent = flight_errors.refusal(error)
    said = str(error).encode("ascii", "backslashreplace").decode()
    assert str(sent) == ("KeyError: 'x'" if isinstance(error, KeyError) else said)
    found = flight_errors.translated(sent, "S")
    assert type(found) is type(again)
    assert vars(found) == vars(again)


def test_a_store_that_lacks_an_action_is_of_another_version() -> None:
    asked = InvalidRequestError("action", "dafka.watch.v1", "did you mean 'dafka.wait.v1'?")
    found = flight_errors.translated(flight_errors.refusal(asked), "S")
    assert type(found) is InvalidRequestError
    assert str(found) == (
        "member 'action' = 'dafka.watch.v1': store S has another version, which does not "
        "support this: upgrade the stores before their clients"
    )


@pytest.mark.parametrize(
    "info", [b"", b"[]", b"{", b'{"v": 2}', b'{"v": 1, "error": "not-held"}', b"\xff", b"[" * 9_999]
)
def test_errors_without_facts_are_the_stores(info: bytes) -> None:
    error = flight.FlightServerError("a sentence", extra_info=info)
    assert vars(flight_errors.translated(error, "S")) == {"store": "S", "why": "a sentence"}


def refuse(error: Exception) -> None:
    with flight_errors.refusing():
        raise error


def test_errors_leave_as_flights_and_those_of_flight_as_they_are() -> None:
    busy = flight_errors.UnavailableError("busy", "ask another")
    with pytest.raises(flight.FlightUnavailableError, match=busy.why) as left:
        refuse(busy)
    assert left.value.__cause__ is busy
    known = flight.FlightCancelledError("gone")
    with pytest.raises(flight.FlightCancelledError) as same:
        refuse(known)
    assert same.value is known


ODD = "\udcff" * 255


@pytest.mark.parametrize(
    "error",
    [
        DafkaError("x" * 5_000),
        FencedError(ODD, "P", "A"),
        DataLossError(ODD, ODD, 0, 9, "x" * 5_000),
    ],
)
def test_a_sentence_and_its_facts_fit_in_a_header(error: DafkaError) -> None:
    sent = flight_errors.refusal(error)
    assert str(sent).isascii()
    assert len(str(sent)) == limits.MAX_MESSAGE_CHARS + len("...")
    # gRPC sends it in base64, and accepts headers of 8 KiB.
    assert len(sent.extra_info) * 4 / 3 < 8_000


def test_grpc_says_what_is_wrong_and_nothing_of_itself() -> None:
    said = (
        "Flight returned unavailable error, with message: failed to connect. gRPC client debug "
        "context: UNKNOWN:something\nand more"
    )
    found = flight_errors.translated(OSError(said), "S")
    assert vars(found) == {"store": "S", "why": "failed to connect"}
    assert vars(flight_errors.translated(OSError(), "S")) == {"store": "S", "why": "OSError"}
    for place, shown in (
        ("ipv4:127.0.0.1:37321", "127.0.0.1:37321"),
        ("unix:/d/f.sock", "/d/f.sock"),
    ):
        said = (
            "Flight returned unavailable error, with message: failed to connect to all addresses; "
            f"last error: UNKNOWN: {place}: Failed to connect to remote host: Connection refused"
        )
        found = flight_errors.translated(OSError(said), "S")
        assert vars(found)["why"] == f"no connection to {shown} (Connection refused)"

"""Requests that are none: each is refused with a sentence, and the service goes on."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from dafka_core.errors import InvalidRequestError
from dafka_core.flight import requests, server_actions
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.limits import (
    MAX_ACTION_BYTES,
    MAX_BATCH_BYTES,
    MAX_REQUEST_BYTES,
    MAX_TRANSACTIONS_BYTES,
)
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import (
    LARGEST,
    PARTITION,
    TOPIC,
    TP,
    Served,
    array,
    check,
)

GET: dict[str, Any] = {"v": 1, "topic": TOPIC, "partition": PARTITION, "start": 0, "end": 5}
PUT: dict[str, Any] = {"v": 1, "topic": TOPIC, "partition": PARTITION, "start": 5}
NAMES_WRONG: tuple[object, ...] = ("", "x" * 256, "é" * 128, "a\0b", "\ud800", 7, None, [], {})
OFFSETS_WRONG: tuple[object, ...] = (-1, 2**63, 10**30, 1.5, "1", True, None, [])


def variants(good: dict[str, Any], **wrong: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each member that is wrong, in a request that is right otherwise."""
    for name, values in wrong.items():
        for value in values:
            yield name, good | {name: value}
    for name in ("v", "topic", "partition", "start", "end"):
        if name in good:
            yield name, {key: value for key, value in good.items() if key != name}
    yield "colums", good | {"colums": ["value"]}
    yield "v", good | {"v": 2}
    yield "v", good | {"v": "1"}
    yield "v", good | {"v": True}


GETS = [
    *variants(
        GET,
        topic=NAMES_WRONG,
        partition=NAMES_WRONG,
        start=OFFSETS_WRONG,
        end=OFFSETS_WRONG,
        columns=("value", [], ["valu"], ["value", "value"], [1], None, {"value": 1}, [None]),
        times=(1, "true", None),
        max_records=(0, -1, 65_537, 1.0, "1", None, False),
        max_bytes=(0, MAX_BATCH_BYTES + 1, 2**70, None),
        store=(1, None, []),
    ),
    ("end", GET | {"start": 5, "end": 4}),
]
ATTEMPT = "3F2504E04F8911D39A0C0305E82C3301"
ATTEMPTS_WRONG: tuple[object, ...] = (
    "",
    "A" * 31,
    "A" * 33,
    "a" * 32,
    "G" * 32,
    "0" * 32,
    "\uff11" * 32,
    7,
    None,
    ["A" * 32],
)
VERSIONS_WRONG: tuple[object, ...] = (-2, 2**63 - 1, 1.0, "1", True, None, [])
TRANSACTIONS_WRONG: tuple[object, ...] = (
    7,
    [],
    [1, 2],
    [1, 0, 5, 6],
    [-1, 0, 5],
    [1, 5, 5],
    [1, 6, 5],
    [1, 0, 6],
    [1, -1, 5],
    [True, 0, 5],
    [1, 0, "5"],
    {"version": 1},
)
PUTS = [
    *variants(PUT, topic=NAMES_WRONG, partition=NAMES_WRONG, start=OFFSETS_WRONG, store=(1, None)),
    *variants(PUT | {"attempt": ATTEMPT}, attempt=ATTEMPTS_WRONG, version=VERSIONS_WRONG),
    ("version", PUT | {"version": 1}),
]
COMMIT: list[object] = ["t", "P", ATTEMPT, 0, 5, 1]


def rows_wrong(row: list[object], *wrong: Sequence[object]) -> Iterator[list[object]]:
    """Lists of one row in which something is wrong; ``wrong`` says what can be, at each place."""
    for index, values in enumerate(wrong):
        for value in values:
            yield [[*row[:index], value, *row[index + 1 :]]]
    yield [row[:-1]]
    yield [[*row, 0]]
    yield [{"topic": "t"}]
    yield ["row"]


NOT_OBJECTS = [
    b"",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b"[" * 5_000,
    b'{"v": ' * 1_000,
    b"\0" * 100,
    b'{"v": 1' + b"1" * 5_000 + b"}",
    b"NaN",
]


def say(refused: pytest.ExceptionInfo[Exception]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(refused.value.extra_info)  # type: ignore[attr-defined]
    assert told["v"] == 1
    assert told["error"] == "bad-request"
    assert told["message"] in str(refused.value)
    return told


def test_the_right_ones_are_served(served: Served) -> None:
    """What the others are variants of."""
    served.extend(5)
    plain = served.plain()
    ticket = flight.Ticket(json.dumps(GET).encode())
    assert plain.do_get(ticket).read_all().num_rows == 5
    descriptor = flight.FlightDescriptor.for_command(json.dumps(PUT).encode())
    writer, _ = plain.do_put(descriptor, VALUES_SCHEMA)
    writer.write_batch(pa.record_batch([array(5, 6)], schema=VALUES_SCHEMA))
    writer.close()
    assert served.log.end(TP) == 6


def test_every_malformed_ticket_is_refused(served: Served) -> None:
    served.extend(5)
    plain = served.plain()
    for member, request in GETS:
        ticket = flight.Ticket(json.dumps(request).encode())
        with pytest.raises(flight.FlightServerError) as refused:
            plain.do_get(ticket).read_all()
        assert say(refused)["member"] == member
    for packed in [*NOT_OBJECTS, b" " * (MAX_REQUEST_BYTES + 1)]:
        with pytest.raises(flight.FlightServerError) as refused:
            plain.do_get(flight.Ticket(packed)).read_all()
        assert say(refused)["member"] == "ticket"
    unharmed(served)


def test_every_malformed_put_is_refused(served: Served) -> None:
    served.extend(5)
    plain = served.plain()
    for member, request in PUTS:
        with pytest.raises(flight.FlightServerError) as refused:
            _put_nothing(plain, flight.FlightDescriptor.for_command(json.dumps(request).encode()))
        assert say(refused)["member"] == member
    for packed in [*NOT_OBJECTS, b" " * (MAX_REQUEST_BYTES + 1)]:
        with pytest.raises(flight.FlightServerError) as refused:
            _put_nothing(plain, flight.FlightDescriptor.for_command(packed))
        assert say(refused)["member"] == "command"
    with pytest.raises(flight.FlightServerError) as refused:
        _put_nothing(plain, flight.FlightDescriptor.for_path(TOPIC, PARTITION))
    assert say(refused)["member"] == "descriptor"
    unharmed(served)


def test_every_malformed_descriptor_is_refused(served: Served) -> None:
    served.extend(5)
    plain = served.plain()
    descriptors = [
        ("path", flight.FlightDescriptor.for_path()),
        ("path", flight.FlightDescriptor.for_path("a", "b", "c")),
        ("topic", flight.FlightDescriptor.for_path("")),
        ("partition", flight.FlightDescriptor.for_path("t", "x" * 256)),
        ("partition", flight.FlightDescriptor.for_path("t", "a\0")),
        *(("command", flight.FlightDescriptor.for_command(packed)) for packed in NOT_OBJECTS),
        ("topic", flight.FlightDescriptor.for_command(b'{"v": 1}')),
        ("columns", flight.FlightDescriptor.for_command(b'{"v":1,"topic":"t","columns":[]}')),
        ("end", flight.FlightDescriptor.for_command(b'{"v":1,"topic":"t","end":5}')),
    ]
    for member, descriptor in descriptors:
        with pytest.raises(flight.FlightServerError) as refused:
            plain.get_flight_info(descriptor)
        assert say(refused)["member"] == member
        with pytest.raises(pa.ArrowInvalid, match=f"member '{member}' = "):
            plain.get_schema(descriptor)
    unharmed(served)


def test_every_malformed_criteria_is_refused(served: Served) -> None:
    served.extend(5)
    plain = served.plain()
    wrong = [each for each in NOT_OBJECTS if each]
    for packed in [*wrong, b'{"v": 1, "topic": ""}', b'{"v": 1, "partition": "P"}', b"{}"]:
        with pytest.raises(flight.FlightServerError) as refused:
            list(plain.list_flights(packed))
        assert say(refused)["member"] in ("criteria", "topic", "partition", "v")
    unharmed(served)


def test_every_malformed_action_is_refused(served: Served) -> None:
    served.extend(5)
    plain = served.plain()
    bodies: dict[str, list[dict[str, Any]]] = {
        "dafka.heads.v1": [{"topics": "t"}, {"topics": [""]}, {"topics": [1]}, {"topic": "t"}],
        "dafka.offsets.v1": [
            {},
            {"times": 1},
            {"times": [["t", "P"]]},
            {"times": [["t", "P", 1.5]]},
            {"times": [["t", "P", 2**63]]},
            {"times": [["t", "P", 0]] * 1_001},
        ],
        "dafka.wait.v1": [
            {"topic": "t", "partition": "P", "end": 5},
            *(
                {"topic": "t", "partition": "P", "end": 5, "timeout_s": seconds}
                for seconds in (-1, 3_601, "1", None, True, float("nan"), float("inf"))
            ),
            {"topic": "t", "partition": "P", "end": -1, "timeout_s": 1},
            *(
                {
                    "topic": "t",
                    "partition": "P",
                    "end": 5,
                    "timeout_s": 1,
                    "transaction": transaction,
                }
                for transaction in TRANSACTIONS_WRONG
            ),
        ],
        "dafka.transactions.v1": [
            {},
            {"partitions": {}},
            {"partitions": [["t", "P"]] * 10_001},
            *({"partitions": rows} for rows in rows_wrong(["t", "P"], NAMES_WRONG, NAMES_WRONG)),
        ],
        "dafka.commit.v1": [
            {},
            {"transactions": "x"},
            {"transactions": [[*COMMIT[:1], f"P{n}", *COMMIT[2:]] for n in range(10_001)]},
            {"transactions": [COMMIT, COMMIT]},
            {"transactions": [["t", "P", ATTEMPT, 5, 5, 1]]},
            *(
                {"transactions": rows}
                for rows in rows_wrong(
                    COMMIT,
                    NAMES_WRONG,
                    NAMES_WRONG,
                    ATTEMPTS_WRONG,
                    OFFSETS_WRONG,
                    OFFSETS_WRONG,
                    VERSIONS_WRONG,
                )
            ),
        ],
        "dafka.discard.v1": [
            {},
            {"stages": None},
            {"stages": [["t", "P", ATTEMPT]] * 10_001},
            *(
                {"stages": rows}
                for rows in rows_wrong(
                    ["t", "P", ATTEMPT], NAMES_WRONG, NAMES_WRONG, ATTEMPTS_WRONG
                )
            ),
        ],
        "dafka.stores.v1": [{"x": 1}, {"store": 1}],
        "dafka.describe.v1": [{"x": 1}],
    }
    assert sorted(bodies) == sorted(server_actions.ACTIONS)
    for name, wrong in bodies.items():
        packed = [json.dumps({"v": 1} | members).encode() for members in wrong]
        large = name in ("dafka.transactions.v1", "dafka.commit.v1", "dafka.discard.v1")
        most = MAX_TRANSACTIONS_BYTES if large else MAX_ACTION_BYTES
        packed += [each for each in NOT_OBJECTS if each] + [b" " * (most + 1)]
        for body in packed:
            with pytest.raises(flight.FlightServerError) as refused:
                list(plain.do_action(flight.Action(name, body)))
            say(refused)
    for name in ("", "dafka.heads", "dafka.heads.v2", "x" * 10_000):
        with pytest.raises(
            flight.FlightServerError, match=r"'action' = .*(must be one of|did you mean 'dafka)"
        ):
            list(plain.do_action(flight.Action(name, b"{}")))
    unharmed(served)


def test_methods_that_are_not_served(served: Served) -> None:
    writer, reader = served.plain().do_exchange(flight.FlightDescriptor.for_path("t"))
    with pytest.raises(flight.FlightServerError, match=r"DoExchange.*is not served"):
        reader.read_chunk()
    with pytest.raises(flight.FlightServerError):
        writer.close()


def test_batches_that_lead_outside_of_their_buffers_are_refused(served: Served) -> None:
    for middle in (2**30, 6, -1, -(2**31)):
        offsets = np.array([0, 2, 5], np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"hello")]
        bad = pa.record_batch([pa.Array.from_buffers(pa.binary(), 2, buffers)], VALUES_SCHEMA)
        offsets[1] = middle  # Arrow makes no such array, but sends it
        descriptor = flight.FlightDescriptor.for_command(json.dumps(PUT | {"start": 0}).encode())
        writer, _ = served.plain().do_put(descriptor, VALUES_SCHEMA)
        with pytest.raises(flight.FlightServerError) as refused:
            _write(writer, bad)
        assert say(refused)["member"] == "batch"
    assert served.log.partitions() == []
    served.extend(5)
    unharmed(served)


def _put_nothing(plain: Any, descriptor: flight.FlightDescriptor) -> None:
    writer, _ = plain.do_put(descriptor, VALUES_SCHEMA)
    writer.close()


def _write(writer: Any, batch: pa.RecordBatch) -> None:
    writer.write_batch(batch)
    writer.close()


def test_metadata_alone_are_passed_over(served: Served) -> None:
    descriptor = flight.FlightDescriptor.for_command(json.dumps(PUT | {"start": 0}).encode())
    writer, _ = served.plain().do_put(descriptor, VALUES_SCHEMA)
    writer.write_metadata(b"hello")
    writer.write_with_metadata(pa.record_batch([array(0, 5)], schema=VALUES_SCHEMA), b"again")
    writer.close()
    unharmed(served)


def test_errors_say_no_more_than_fits(served: Served) -> None:
    topic = "\udcff" * 255
    asked: list[Callable[[], object]] = [
        lambda: served.plain().get_flight_info(
            flight.FlightDescriptor.for_command(json.dumps({"v": 1, "topic": topic}).encode())
        ),
        lambda: served.plain().do_get(
            flight.Ticket(json.dumps(GET | {"columns": ["\udc80" * 1_000]}).encode())
        ),
        lambda: served.plain().do_get(
            flight.Ticket(json.dumps(GET | {"topic": topic, "partition": topic}).encode())
        ),
    ]
    for ask in asked:
        with pytest.raises(flight.FlightServerError) as refused:
            ask()
        assert json.loads(refused.value.extra_info)["v"] == 1
        assert len(refused.value.extra_info) < 5_000


def test_octets_that_are_no_grpc(served: Served) -> None:
    served.extend(5)
    chance = random.Random(1)
    host, port = "127.0.0.1", served.service.port
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for number in range(60):
        octets = chance.randbytes(chance.choice((1, 10, 100, 10_000)))
        where: tuple[Any, Any] = (socket.AF_INET, (host, port))
        if number % 2:
            where = (socket.AF_UNIX, str(served.directory / "flight.sock"))
        with socket.socket(where[0]) as peer:
            peer.settimeout(PATIENCE_S)
            peer.connect(where[1])
            peer.sendall(preface * (number % 3 > 0) + octets)
    unharmed(served)


@pytest.fixture(scope="module")
def parsers() -> list[Callable[[bytes], object]]:
    return [
        requests.GetRequest.parse,
        requests.PutRequest.parse,
        requests.InfoRequest.parse,
        requests.Criteria.parse,
        requests.HeadsRequest.parse,
        requests.OffsetsRequest.parse,
        requests.WaitRequest.parse,
        requests.TransactionsRequest.parse,
        requests.CommitRequest.parse,
        requests.DiscardRequest.parse,
        requests.StoresRequest.parse,
        requests.DescribeRequest.parse,
    ]


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
members = st.sampled_from(
    [
        "v",
        "topic",
        "partition",
        "start",
        "end",
        "columns",
        "times",
        "topics",
        "timeout_s",
        "store",
        "attempt",
        "version",
        "transaction",
        "transactions",
        "partitions",
        "stages",
    ]
)
objects = st.dictionaries(members, plain_values).map(lambda found: json.dumps({"v": 1} | found))


@settings(deadline=None, max_examples=300)
@given(packed=st.binary(max_size=200) | objects.map(str.encode))
def test_anything_is_parsed_or_refused(
    parsers: list[Callable[[bytes], object]], packed: bytes
) -> None:
    for parse in parsers:
        # Anything but InvalidRequestError fails the test.
        with contextlib.suppress(InvalidRequestError):
            request: Any = parse(packed)
            assert parse(request.packed()) == request


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(packed=st.binary(max_size=200) | objects.map(str.encode), path=st.lists(st.text(max_size=9)))
def test_anything_is_answered(served: Served, packed: bytes, path: list[str]) -> None:
    plain = served.plain()
    asked: list[Callable[[], object]] = [
        lambda: plain.do_get(flight.Ticket(packed)).read_all(),
        lambda: plain.get_flight_info(flight.FlightDescriptor.for_command(packed)),
        lambda: _put_nothing(plain, flight.FlightDescriptor.for_command(packed)),
        lambda: list(plain.list_flights(packed)),
        lambda: list(plain.do_action(flight.Action("dafka.offsets.v1", packed))),
        lambda: list(plain.do_action(flight.Action("dafka.heads.v1", packed))),
        lambda: list(plain.do_action(flight.Action("dafka.transactions.v1", packed))),
        lambda: list(plain.do_action(flight.Action("dafka.commit.v1", packed))),
        lambda: list(plain.do_action(flight.Action("dafka.discard.v1", packed))),
        lambda: list(plain.do_action(flight.Action(packed.decode("latin-1"), packed))),
        lambda: plain.get_flight_info(flight.FlightDescriptor.for_path(*path)),
    ]
    codes = {_code_of(ask) for ask in asked}
    assert codes <= {"", "bad-request", "not-held", "other-store"}
    plain.close()


def _code_of(ask: Callable[[], object]) -> str:
    try:
        ask()
    except (flight.FlightServerError, flight.FlightUnavailableError) as error:
        return str(json.loads(error.extra_info)["error"])
    return ""


def unharmed(served: Served) -> None:
    """Asserts that the service does as before."""
    client = served.client()
    check(client.read(TP, 0, 5, times=True, timeout_s=PATIENCE_S, **LARGEST), 0, 5)
    assert client.heads(None, timeout_s=PATIENCE_S) == [(TOPIC, PARTITION, 0, 5)]
    context = served.service.context
    for limiter in (context.gets, context.puts, context.waits, context.commits):
        assert limiter.free == limiter.count

"""Invalid requests are refused with a sentence, and the service continues."""

import json
import random
import socket
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.flight import server_requests
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.limits import MAX_REQUEST_BYTES, MAX_TICKET_BYTES
from dafka_core.model.records import PartitionInfo
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import LARGEST, PARTITION, TOPIC, TP, Served, array, check
from tests.integration.flight.malformed import BODIES, GET, GETS, NOT_OBJECTS, PUT, PUTS


def say(refused: pytest.ExceptionInfo[Exception]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(refused.value.extra_info)  # type: ignore[attr-defined]
    assert told["v"] == 1
    assert told["error"] == "bad-request"
    assert told["message"] in str(refused.value)
    return told


def test_the_right_ones_are_served(served: Served) -> None:
    """The valid request that the others vary."""
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
    for packed in [*NOT_OBJECTS, json.dumps(GET).encode().ljust(MAX_TICKET_BYTES + 1)]:
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
    for packed in [*NOT_OBJECTS, json.dumps(PUT).encode().ljust(MAX_REQUEST_BYTES + 1)]:
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


@pytest.mark.parametrize("name", server_requests.ACTIONS)
def test_every_malformed_action_is_refused(served: Served, name: str) -> None:
    served.extend(5)
    plain = served.plain()
    most = server_requests.ACTIONS[name].request.largest_bytes
    wrong = [json.dumps({"v": 1} | members).encode() for members in BODIES[name]]
    for body in [*wrong, *filter(None, NOT_OBJECTS), b'{"v": 1}'.ljust(most + 1)]:
        with pytest.raises(flight.FlightServerError) as refused:
            list(plain.do_action(flight.Action(name, body)))
        say(refused)
    unharmed(served)


def test_actions_that_there_are_not_are_refused(served: Served) -> None:
    served.extend(5)
    assert sorted(BODIES) == sorted(server_requests.ACTIONS)
    for name in ("", "dafka.heads", "dafka.heads.v2", "x" * 10_000):
        with pytest.raises(
            flight.FlightServerError, match=r"'action' = .*(must be one of|did you mean 'dafka)"
        ):
            list(served.plain().do_action(flight.Action(name, b"{}")))
    unharmed(served)


def test_methods_that_are_not_served(served: Served) -> None:
    writer, reader = served.plain().do_exchange(flight.FlightDescriptor.for_path("t"))
    with pytest.raises(flight.FlightServerError, match=r"DoExchange.*is not supported"):
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


def unharmed(served: Served) -> None:
    """Check that the service still works."""
    client = served.client()
    check(client.read(TP, 0, 5, times=True, timeout_s=PATIENCE_S, **LARGEST), 0, 5)
    assert client.heads(None, timeout_s=PATIENCE_S) == [PartitionInfo(TOPIC, PARTITION, 0, 5)]
    context = served.service.context
    for limiter in (context.gets, context.puts, context.waits, context.commits):
        assert limiter.free == limiter.count

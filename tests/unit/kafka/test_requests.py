"""Requests, from their bytes to the bytes of their responses."""

import asyncio
import logging
import struct
from typing import Any

import pytest

from dafka_core.errors import ProtocolError
from dafka_kafka import schemas
from dafka_kafka.api import Api, Client, Handler
from dafka_kafka.gateway import APIS
from dafka_kafka.gateway_node import Complaints
from dafka_kafka.options import Limits
from dafka_kafka.produce import PartitionAnswer, encoded_answers
from dafka_kafka.server import FAILED, Requests, parse_head
from tests.unit.kafka.messages import named, request, response, versions


def frame(key: int, version: int, body: bytes = b"", client: bytes = b"me") -> memoryview:
    return memoryview(struct.pack(">hhih", key, version, 7, len(client)) + client + body)


class Handlers:
    def __init__(self) -> None:
        self.complaints = Complaints()
        self.asked: list[tuple[Any, Client]] = []
        handlers: dict[int, Handler] = {
            Api.HEARTBEAT: self.beat,
            Api.PRODUCE: self.keep_still,
            Api.FETCH: self.fetch,
            Api.LEAVE_GROUP: self.fail,
            Api.METADATA: self.fail,
            Api.SYNC_GROUP: self.close,
        }
        limits = Limits(max_request_bytes=1_000)
        apis = {api: APIS[api]._replace(handler=each) for api, each in handlers.items()}
        self.requests = Requests(apis, limits, self.complaints)

    def answer(self, octets: memoryview) -> bytes:
        head = parse_head(octets, self.requests.apis)
        return bytes(asyncio.run(self.requests.answer(head, octets, "10.0.0.1", lambda: False)))

    async def beat(self, request: Any, client: Client) -> Any:
        self.asked.append((request, client))
        return response(Api.HEARTBEAT, error_code=27)

    async def keep_still(self, request: Any, client: Client) -> None:
        self.asked.append((request, client))

    async def fetch(self, request: Any, client: Client) -> bytes:
        return b"onetwo"

    async def close(self, request: Any, client: Client) -> Any:
        raise ProtocolError("there is no answer")

    async def fail(self, request: Any, client: Client) -> Any:
        raise RuntimeError("a\nb")


HEARTBEAT = struct.pack(">h1sih1s", 1, b"g", 3, 1, b"m")


def test_a_handler_gets_the_request_and_who_sent_it() -> None:
    handlers = Handlers()
    assert handlers.answer(frame(12, 0, HEARTBEAT)) == struct.pack(">iih", 6, 7, 27)
    ((asked, client),) = handlers.asked
    assert (asked.group_id, asked.generation_id, asked.member_id) == ("g", 3, "m")
    assert (client.client_id, client.host, client.version) == ("me", "10.0.0.1", 0)


def test_a_handler_may_give_the_octets_of_the_response() -> None:
    body = struct.pack(">iiii", -1, 0, 1, 0)
    assert Handlers().answer(frame(1, 0, body)) == struct.pack(">ii6s", 10, 7, b"onetwo")


def test_nothing_is_said_to_who_waits_for_nothing() -> None:
    assert Handlers().answer(frame(0, 0, struct.pack(">hii", 0, 100, 0))) == b""


def test_a_version_that_is_too_new_is_answered_in_the_oldest_form() -> None:
    answer = named(Api.API_VERSIONS, "Response").decode(
        Handlers().answer(frame(18, 99)), version=0, header=True, framed=True
    )
    assert answer.error_code == 35
    assert (18, 0, 4) in {(e.api_key, e.min_version, e.max_version) for e in answer.api_keys}


def test_what_is_not_served_is_refused_where_that_can_be_said() -> None:
    assert Handlers().answer(frame(16, 0)) == struct.pack(">iihi", 10, 7, 35, 0)
    assert Handlers().answer(frame(17, 0))[8:10] == b"\0\x23"  # SASL
    for key, version in ((3, 99), (999, 0), (4, 0), (-1, 0), (12, -1)):
        with pytest.raises(ProtocolError, match="to which there is no answer"):
            Handlers().answer(frame(key, version))


def test_an_error_of_ours_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    handlers = Handlers()
    leave = struct.pack(">h1sh1s", 1, b"g", 1, b"m")
    with caplog.at_level(logging.WARNING, "dafka.kafka"):
        for _ in range(3):
            assert handlers.answer(frame(13, 0, leave)) == struct.pack(">iih", 6, 7, -1)
    assert handlers.complaints.counts == {FAILED: 3}
    assert len(caplog.records) == 2
    assert "\n" not in caplog.records[1].message
    with pytest.raises(ProtocolError, match="UNKNOWN_SERVER_ERROR"):
        handlers.answer(frame(3, 0, struct.pack(">i", 0)))


def test_a_handler_may_have_the_connection_closed() -> None:
    handlers = Handlers()
    with pytest.raises(ProtocolError, match="there is no answer"):
        handlers.answer(frame(14, 0, HEARTBEAT + struct.pack(">i", 0)))
    assert handlers.complaints.counts == {}


def test_only_requests_with_records_may_be_large() -> None:
    with pytest.raises(ProtocolError, match="which may have 1000"):
        Handlers().answer(frame(12, 0, HEARTBEAT + bytes(1_100)))
    Handlers().answer(frame(0, 0, struct.pack(">hii", 0, 100, 0) + bytes(1_100)))


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\0" * 9,
        struct.pack(">hhih", 18, 0, 1, -2),
        struct.pack(">hhih", 18, 0, 1, 5),
        struct.pack(">hhih", 18, 3, 1, -1),  # no tagged fields
        struct.pack(">hhih", 18, 3, 1, -1) + b"\xff\xff\xff\xff\xff\xff",
        struct.pack(">hhih", 18, 3, 1, -1) + b"\x01\x00\x85",
    ],
)
def test_what_has_no_header_is_none(octets: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_head(memoryview(octets), APIS)


def test_the_tagged_fields_of_a_header_are_passed_over() -> None:
    octets = struct.pack(">hhih", 18, 3, 1, -1) + b"\x02\x00\x03abc\x81\x00\x00rest"
    assert bytes(octets[parse_head(memoryview(octets), APIS).start :]) == b"rest"


def produce_request(version: int, topics: int = 2, partitions: int = 3) -> memoryview:
    parts = [{"index": at, "records": (b"", None, b"abc")[at % 3]} for at in range(partitions)]
    data = [{"name": f"t{n}", "partition_data": parts} for n in range(topics)]
    asked = {"transactional_id": None, "acks": 1, "timeout_ms": 1, "topic_data": data}
    return memoryview(b"head" + bytes(request(Api.PRODUCE, **asked).encode(version=version)))


@pytest.mark.parametrize("version", versions(Api.PRODUCE))
def test_topics_and_partitions_are_counted(version: int) -> None:
    most = produce_request(version, 2, schemas.MAX_PARTITIONS // 2 - 1)
    found = schemas.decode_request(Api.PRODUCE, version, most, 4)
    assert sum(1 + len(each.partition_data) for each in found.topic_data) == schemas.MAX_PARTITIONS
    for more in ((2, schemas.MAX_PARTITIONS // 2), (schemas.MAX_PARTITIONS + 1, 0)):
        with pytest.raises(ProtocolError, match="more than 20000 partitions"):
            schemas.decode_request(Api.PRODUCE, version, produce_request(version, *more), 4)


@pytest.mark.parametrize("version", [2, 3, 9])
def test_one_that_is_cut_short_anywhere_is_refused(version: int) -> None:
    whole = produce_request(version)
    for length in range(4, len(whole)):
        with pytest.raises(ProtocolError):
            schemas.decode_request(Api.PRODUCE, version, whole[:length], 4)


@pytest.mark.parametrize("count", [-2, -(2**31)])
def test_counts_below_null_are_zero(count: int) -> None:
    no_topics = memoryview(struct.pack(">hii", 1, 1, count))
    assert schemas.decode_request(Api.PRODUCE, 2, no_topics, 0).topic_data == []
    no_partitions = memoryview(struct.pack(">hiih1si", 1, 1, 1, 1, b"t", count))
    (topic,) = schemas.decode_request(Api.PRODUCE, 2, no_partitions, 0).topic_data
    assert topic.partition_data == []


@pytest.mark.parametrize("version", versions(Api.PRODUCE))
def test_answers_are_as_the_library_has_them(version: int) -> None:
    answers = [
        PartitionAnswer("one", 0, 0, 2**40),
        PartitionAnswer("another €", 3, 87, -1, "no record: ü"),
        PartitionAnswer("one", 2**31 - 1, 3, -1, ""),
    ]
    by_topic = {"one": [answers[0], answers[2]], "another €": [answers[1]]}
    fields = ("index", "error_code", "base_offset", "error_message")
    topics = [
        {"name": name, "partition_responses": [dict(zip(fields, e[1:5], strict=True)) for e in of]}
        for name, of in by_topic.items()
    ]
    for some, responses in ((answers, topics), ([], [])):
        expected = response(Api.PRODUCE, responses=responses, throttle_time_ms=0)
        assert encoded_answers(some, version) == bytes(expected.encode(version=version))

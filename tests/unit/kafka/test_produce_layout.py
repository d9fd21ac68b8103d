"""The parts of a request with records, before it is taken apart."""

from __future__ import annotations

import struct

import pytest

from dafka_core.errors import ProtocolError
from dafka_kafka.api import Api
from dafka_kafka.requests import PartitionAnswer, check_partitions, encoded_answers
from tests.unit.kafka.messages import request, response, versions


def produce(version: int, topics: int = 2, partitions: int = 3) -> memoryview:
    records = zip(range(partitions), (b"", None, b"abc"), strict=True)
    parts = [{"index": index, "records": each} for index, each in records]
    data = [{"name": f"t{n}", "partition_data": parts} for n in range(topics)]
    asked = {"transactional_id": None, "acks": 1, "timeout_ms": 1, "topic_data": data}
    return memoryview(b"head" + bytes(request(Api.PRODUCE, **asked).encode(version=version)))


@pytest.mark.parametrize("version", versions(Api.PRODUCE))
def test_topics_and_partitions_are_counted(version: int) -> None:
    check_partitions(produce(version), 4, version, 8)
    with pytest.raises(ProtocolError, match="more than 7 partitions"):
        check_partitions(produce(version), 4, version, 7)


@pytest.mark.parametrize("version", [2, 3, 9])
def test_one_that_is_cut_short_anywhere_is_refused(version: int) -> None:
    whole = produce(version)
    for length in range(4, len(whole)):
        with pytest.raises(ProtocolError, match="cut short"):
            check_partitions(whole[:length], 4, version, 100)


def test_counts_below_zero_are_none() -> None:
    check_partitions(memoryview(struct.pack(">hii", 1, 1, -1)), 0, 0, 0)
    no_partitions = struct.pack(">hiihi", 1, 1, 1, -1, -(2**31))
    check_partitions(memoryview(no_partitions), 0, 0, 1)


@pytest.mark.parametrize("version", versions(Api.PRODUCE))
def test_answers_are_as_the_library_has_them(version: int) -> None:
    answers = [
        PartitionAnswer("one", 0, 0, 2**40),
        PartitionAnswer("another €", 3, 87, -1, "no record: ü"),
        PartitionAnswer("one", 2**31 - 1, 3, -1, ""),
    ]
    by_topic = {"one": [answers[0], answers[2]], "another €": [answers[1]]}
    topics = [
        {
            "name": name,
            "partition_responses": [
                {
                    "index": each.number,
                    "error_code": each.error,
                    "base_offset": each.base_offset,
                    "error_message": each.why,
                }
                for each in parts
            ],
        }
        for name, parts in by_topic.items()
    ]
    for some, responses in ((answers, topics), ([], [])):
        expected = response(Api.PRODUCE, responses=responses, throttle_time_ms=0)
        assert encoded_answers(some, version) == bytes(expected.encode(version=version))

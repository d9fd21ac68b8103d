"""Kafka's messages."""

from __future__ import annotations

import runpy
import sys

import pytest

from dafka_core.errors import ConfigError, ProtocolError
from dafka_kafka import schemas
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import APIS


def body(version: int = 1) -> bytes:
    request = schemas.MetadataRequest(version=version, topics=None)
    request.topics = [schemas.MetadataRequest.MetadataRequestTopic(name="topic")]
    return bytes(request.encode(version=version))


def test_a_request_is_read_from_its_octets() -> None:
    request = schemas.decode_request(Api.METADATA, 1, memoryview(b"xx" + body() + b"more"), 2)
    assert [each.name for each in request.topics] == ["topic"]


def test_a_request_that_is_cut_short_anywhere_is_refused() -> None:
    whole = body()
    for length in range(len(whole)):
        with pytest.raises(ProtocolError, match="MetadataRequest of version 1"):
            schemas.decode_request(Api.METADATA, 1, memoryview(whole[:length]), 0)


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    monkeypatch.delitem(sys.modules, "kafka.protocol", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'dafka-spark\[kafka\]'"):
        runpy.run_path(schemas.__file__)


def test_a_message_that_kafka_has_not_got_is_named() -> None:
    with pytest.raises(AttributeError, match="no message 'FrobResponse'"):
        _ = schemas.FrobResponse


FLEXIBLE_FROM = {
    Api.API_VERSIONS: 3,
    Api.CREATE_TOPICS: 5,
    Api.DELETE_TOPICS: 4,
    Api.DESCRIBE_CLUSTER: 0,
    Api.DESCRIBE_LOG_DIRS: 2,
    Api.LIST_GROUPS: 3,
    Api.LIST_PARTITION_REASSIGNMENTS: 0,
    Api.LIST_TRANSACTIONS: 0,
}


@pytest.mark.parametrize("key", APIS)
def test_each_version_that_is_taken_has_a_schema_and_few_have_tagged_fields(key: int) -> None:
    for version in APIS[key].versions:
        flexible = version >= FLEXIBLE_FROM.get(Api(key), 99)
        assert schemas.is_flexible(key, version) is flexible
        assert schemas.response_head(7, key, version)[:4] == b"\0\0\0\7"


def test_an_error_is_said_where_a_response_has_a_place_for_it() -> None:
    found = schemas.error_response(Api.HEARTBEAT, 0, KafkaError.UNSUPPORTED_VERSION)
    assert schemas.encode_response(1, found, 0)[-2:] == b"\0\x23"
    assert schemas.error_response(Api.METADATA, 1, KafkaError.UNSUPPORTED_VERSION) is None
    assert schemas.error_response(9_999, 0, KafkaError.UNSUPPORTED_VERSION) is None

"""Kafka's messages, and the versions that the page lists."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from dafka_core.errors import ConfigError, ProtocolError
from dafka_kafka import schemas
from dafka_kafka.api import API_VERSIONS, Api, api_versions
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import APIS
from tests.unit.kafka.messages import request

each_version = pytest.mark.parametrize("version", [1, 9, 13])


def body(version: int) -> bytes:
    return bytes(request(Api.METADATA, topics=[{"name": "topic"}]).encode(version=version))


@each_version
def test_a_request_is_read_from_its_octets(version: int) -> None:
    octets = memoryview(b"xx" + body(version) + b"more")
    found = schemas.decode_request(Api.METADATA, version, octets, 2)
    assert [each.name for each in found.topics] == ["topic"]


@each_version
def test_a_request_that_is_cut_short_anywhere_is_refused(version: int) -> None:
    whole = body(version)
    for length in range(len(whole)):
        with pytest.raises(ProtocolError, match=f"MetadataRequest of version {version}"):
            schemas.decode_request(Api.METADATA, version, memoryview(whole[:length]), 0)


def test_tagged_fields_are_passed_over_in_linear_time() -> None:
    tags = b"\x81\x01" + b"\x07\x01x" * 129
    topics = (b"\x02t" + tags) * 20_000
    octets = schemas.encoded_varint(20_001) + topics + b"\1\0\0" + tags
    request = schemas.decode_request(Api.METADATA, 9, memoryview(octets), 0)
    assert (len(request.topics), request.allow_auto_topic_creation) == (20_000, True)


def test_a_number_of_more_than_32_bits_is_refused_at_once() -> None:
    for octets in (b"\x80" * 1_000_000, b"\x02" + b"\xff" * 1_000_000):
        with pytest.raises(ProtocolError, match="more than 32 bits"):
            schemas.decode_request(Api.METADATA, 9, memoryview(octets), 0)
    assert [schemas.encoded_varint(each) for each in (0, 127, 128)] == [b"\0", b"\x7f", b"\x80\1"]
    for number in (0, 127, 128, 2**31 - 1, 2**32 - 1):
        octets = schemas.encoded_varint(number)
        assert schemas.varint(memoryview(octets), 0) == (number, len(octets))


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    monkeypatch.delitem(sys.modules, "kafka.protocol", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'dafka-spark\[kafka\]'"):
        runpy.run_path(schemas.__file__)


@pytest.mark.parametrize("key", APIS)
def test_a_response_head_has_tagged_fields_in_a_flexible_version(key: int) -> None:
    for version in APIS[key].versions:
        tags = b"\0" if schemas.is_flexible(key, version) else b""
        assert schemas.response_head(7, key, version) == b"\0\0\0\7" + tags


def test_an_error_is_said_where_a_response_has_a_place_for_it() -> None:
    found = schemas.error_response(Api.HEARTBEAT, 0, KafkaError.UNSUPPORTED_VERSION)
    assert schemas.encode_response(1, found, 0)[-2:] == b"\0\x23"
    assert schemas.error_response(Api.METADATA, 1, KafkaError.UNSUPPORTED_VERSION) is None
    assert schemas.error_response(9_999, 0, KafkaError.UNSUPPORTED_VERSION) is None


def test_a_null_in_a_structure_is_refused() -> None:
    for cursor in (b"\xff", b"\1\2t\0\0\0\7\0"):
        octets = memoryview(b"\1\0\0\0\1" + cursor + b"\0")
        request = schemas.decode_request(Api.DESCRIBE_TOPIC_PARTITIONS, 0, octets, 0)
        assert (request.cursor is None) is (cursor == b"\xff")
    octets = memoryview(b"\1\0\0\0\1\1\0\0\0\0\7\0\0")
    with pytest.raises(ProtocolError, match="topic_name is null"):
        schemas.decode_request(Api.DESCRIBE_TOPIC_PARTITIONS, 0, octets, 0)


ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_only_what_is_served_is_named() -> None:
    answer = api_versions({Api.FETCH: APIS[Api.FETCH]}, KafkaError.UNSUPPORTED_VERSION)
    assert answer.error_code == 35
    named = [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys]
    assert named == [(1, 0, 12), (18, 0, 4)]


def test_the_page_has_what_is_served() -> None:
    page = (ROOT / "docs/from_kafka.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) to (\d+) \| (.+) \|$", page, re.MULTILINE)
    said = [
        (name, int(first), int(last)) for first, last, names in rows for name in names.split(", ")
    ]
    versions = {Api(key): each.versions for key, each in APIS.items()}
    versions[Api.API_VERSIONS] = API_VERSIONS
    assert sorted(said) == sorted(
        (api.name.title().replace("_", ""), each[0], each[-1]) for api, each in versions.items()
    )


def test_each_kind_of_request_has_versions_from_0_on() -> None:
    assert all(each.versions.start == 0 for each in APIS.values())
    assert {*APIS, Api.API_VERSIONS} == set(Api)

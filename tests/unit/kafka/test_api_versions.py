"""What the gateway says of itself."""

from __future__ import annotations

from dafka_core.kafka.api_versions import VERSIONS, Api, api_versions
from dafka_core.kafka.kafka_errors import KafkaError


def test_only_what_is_served_is_named() -> None:
    answer = api_versions({Api.FETCH, Api.API_VERSIONS}, KafkaError.UNSUPPORTED_VERSION)
    assert answer.error_code == 35
    named = [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys]
    assert named == [(1, 0, 11), (18, 0, 3)]


def test_each_kind_of_request_has_versions_from_0_on() -> None:
    assert all(versions.start == 0 for versions in VERSIONS.values())
    assert set(VERSIONS) == set(Api)

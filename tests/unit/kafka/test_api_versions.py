"""ApiVersions, and the page that lists it."""

from __future__ import annotations

import re
from pathlib import Path

from dafka_kafka.api_versions import VERSIONS, Api, api_versions
from dafka_kafka.errors import KafkaError

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_only_what_is_served_is_named() -> None:
    answer = api_versions({Api.FETCH, Api.API_VERSIONS}, KafkaError.UNSUPPORTED_VERSION)
    assert answer.error_code == 35
    named = [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys]
    assert named == [(1, 0, 11), (18, 0, 3)]


def test_the_page_has_what_is_served() -> None:
    page = (ROOT / "docs/kafka_clients.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \((\d+)\) \| (\d+) to (\d+) \|$", page, re.MULTILINE)
    said = {(name.lower(), int(key), int(first), int(last)) for name, key, first, last in rows}
    assert said == {
        (api.name.replace("_", "").lower(), int(api), VERSIONS[api][0], VERSIONS[api][-1])
        for api in Api
    }


def test_each_kind_of_request_has_versions_from_0_on() -> None:
    assert all(versions.start == 0 for versions in VERSIONS.values())
    assert set(VERSIONS) == set(Api)

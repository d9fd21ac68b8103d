"""ApiVersions, and the page that lists it."""

from __future__ import annotations

import re
from pathlib import Path

from dafka_kafka.api import Api
from dafka_kafka.api_versions import VERSIONS, api_versions
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import APIS

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
    versions[Api.API_VERSIONS] = VERSIONS
    assert sorted(said) == sorted(
        (api.name.title().replace("_", ""), each[0], each[-1]) for api, each in versions.items()
    )


def test_each_kind_of_request_has_versions_from_0_on() -> None:
    assert all(each.versions.start == 0 for each in APIS.values())
    assert {*APIS, Api.API_VERSIONS} == set(Api)

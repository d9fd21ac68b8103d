"""What each kind of request needs, and how it is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core.kafka import schemas
from dafka_core.kafka.access_rules import RULES
from dafka_core.kafka.api_versions import VERSIONS, Api
from dafka_core.kafka.rights import REFUSALS, Resource
from dafka_core.kafka.sasl import BEFORE

TOPIC = SimpleNamespace(
    name="t",
    topic="t",
    resource_name="t",
    resource_name_filter="t",
    resource_type=Resource.TOPIC,
    partitions=[SimpleNamespace(partition_index=7, partition=7)],
    partition_data=[SimpleNamespace(index=7)],
    partition_indexes=[7],
)
"""What requests list, with the fields of all of them."""

NAMES = (Api.DESCRIBE_GROUPS, Api.DELETE_TOPICS, Api.DELETE_GROUPS)
"""Kinds of requests that list names alone."""


def test_each_request_that_is_served_has_a_rule() -> None:
    assert RULES.keys() | BEFORE == VERSIONS.keys()


def error_codes(octets_of: Any, version: int) -> list[int]:
    """All errors in a response, as its client reads them."""
    found: list[int] = []

    def walk(each: Any) -> None:
        if isinstance(each, (list, tuple)):
            for one in each:
                walk(one)
        elif hasattr(each, "fields"):
            for name in each.fields:
                value = getattr(each, name)
                found.extend([value] if name == "error_code" else [])
                walk(value)

    walk(type(octets_of).decode(octets_of.encode(version=version), version=version))
    return found


@pytest.mark.parametrize("api", [each for each in RULES if RULES[each].each is not None])
def test_a_part_is_refused_with_the_error_of_its_resource(api: Api) -> None:
    rule = RULES[api]
    part = "t" if api in NAMES else TOPIC
    assert rule.each is not None
    need, name = rule.each(part)
    assert name == "t"
    error = REFUSALS[need.resource]
    for version in VERSIONS[api]:
        response = schemas.empty_response(api, version, 0, None)
        setattr(response, rule.answered, [rule.refusal(part, error)])
        assert [each for each in error_codes(response, version) if each] == [error]


@pytest.mark.parametrize("api", [each for each in RULES if RULES[each].whole is not None])
def test_all_of_a_request_is_refused_where_its_response_has_a_place_for_it(api: Api) -> None:
    whole = RULES[api].whole
    assert whole is not None
    for version in VERSIONS[api]:
        response = schemas.empty_response(api, version, REFUSALS[whole.resource], "why")
        has_place = schemas.error_response(api, version, 0) is not None
        wanted = [REFUSALS[whole.resource]] if has_place else []
        assert [each for each in error_codes(response, version) if each] == wanted
        # The others have a list of what was asked, each with an error, or are empty then.
        assert has_place or RULES[api].answered or api == Api.DESCRIBE_LOG_DIRS

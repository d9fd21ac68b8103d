"""What Kafka has and a gateway has not."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import SecurityDisabledError

from dafka_core.kafka import schemas
from dafka_core.kafka.api_versions import VERSIONS, Api
from dafka_core.kafka.gateway import Gateway
from tests.integration.kafka.one_request import tell

FILTER: dict[str, Any] = {
    "resource_type_filter": 2,
    "resource_name_filter": "t",
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 2,
    "permission_type": 3,
}
DISABLED = 54


def test_there_are_no_acls(gateway: Gateway) -> None:
    for version in VERSIONS[Api.DESCRIBE_ACLS]:
        found = tell(gateway, schemas.DescribeAclsRequest(**FILTER), version)
        assert (found.error_code, found.resources) == (DISABLED, [])
    client = KafkaAdminClient(bootstrap_servers=str(gateway.listens))
    everything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    asked = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, everything)
    try:
        with pytest.raises(SecurityDisabledError, match="there is no authorizer"):
            client.describe_acls(asked)
    finally:
        client.close()


def test_no_acl_is_made_and_none_is_deleted(gateway: Gateway) -> None:
    create: Any = schemas.CreateAclsRequest
    acl = create.AclCreation(
        resource_type=2,
        resource_name="t",
        resource_pattern_type=3,
        principal="User:a",
        host="*",
        operation=2,
        permission_type=3,
    )
    delete: Any = schemas.DeleteAclsRequest
    for version in VERSIONS[Api.CREATE_ACLS]:
        made = tell(gateway, create(creations=[acl, acl]), version)
        assert [each.error_code for each in made.results] == [DISABLED, DISABLED]
        asked = delete(filters=[delete.DeleteAclsFilter(**FILTER)])
        (gone,) = tell(gateway, asked, version).filter_results
        assert (gone.error_code, gone.matching_acls) == (DISABLED, [])


def test_nothing_moves_and_nothing_is_limited(gateway: Gateway) -> None:
    moves = schemas.ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None)
    found = tell(gateway, moves, 0)
    assert (found.error_code, found.topics) == (0, [])
    quotas = schemas.DescribeClientQuotasRequest(components=[], strict=False)
    limited = tell(gateway, quotas, 0)
    assert (limited.error_code, limited.entries) == (0, [])


def test_there_are_no_transactions(gateway: Gateway) -> None:
    for version in VERSIONS[Api.LIST_TRANSACTIONS]:
        asked = schemas.ListTransactionsRequest(
            state_filters=[], producer_id_filters=[], duration_filter=-1
        )
        found = tell(gateway, asked, version)
        assert (found.error_code, found.transaction_states) == (0, [])

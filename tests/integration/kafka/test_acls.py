"""ACLs, as Kafka's tools list them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import ClusterAuthorizationFailedError, SecurityDisabledError

from dafka_core.security.permissions import Permissions
from dafka_kafka import schemas
from dafka_kafka.acls import PatternFilter, fits
from dafka_kafka.api import Api
from dafka_kafka.gateway import APIS, Gateway
from dafka_kafka.users import Acl, Operation, Pattern, Resource
from tests.integration.kafka.locked import NAME, PASSWORD, Locked, librdkafka
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
confluent: Any = confluent_kafka.admin


def test_there_are_no_acls(gateway: Gateway) -> None:
    for version in APIS[Api.DESCRIBE_ACLS].versions:
        found = tell(gateway, schemas.DescribeAclsRequest(**FILTER), version)
        assert (found.error_code, found.resources) == (DISABLED, [])
    client = KafkaAdminClient(bootstrap_servers=str(gateway.listens))
    everything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    asked = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, everything)
    try:
        with pytest.raises(SecurityDisabledError, match="no authorizer"):
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
    for version in APIS[Api.CREATE_ACLS].versions:
        made = tell(gateway, create(creations=[acl, acl]), version)
        assert [each.error_code for each in made.results] == [DISABLED, DISABLED]
        asked = delete(filters=[delete.DeleteAclsFilter(**FILTER)])
        (gone,) = tell(gateway, asked, version).filter_results
        assert (gone.error_code, gone.matching_acls) == (DISABLED, [])


def admin(locked: Locked) -> KafkaAdminClient:
    return KafkaAdminClient(
        bootstrap_servers=locked.servers,
        security_protocol="SASL_SSL",
        ssl_cafile=str(locked.authority),
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=NAME,
        sasl_plain_password=PASSWORD,
    )


EVERYTHING = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
BOB = Permissions("bob", frozenset({"produce", "consume"}), ("orders.*",), ("x",))


def test_kafka_python_lists_what_users_may_do(locked: Locked) -> None:
    locked.permit(NAME, BOB)
    client = admin(locked)
    try:
        found, _ = client.describe_acls(
            ACLFilter("User:bob", None, ACLOperation.ANY, ACLPermissionType.ANY, EVERYTHING)
        )
        listed = {
            (each.resource_pattern.resource_name, each.operation.name, each.permission_type.name)
            for each in found
        }
        assert {
            ("orders.", "WRITE", "ALLOW"),
            ("x", "READ", "ALLOW"),
            ("kafka-cluster", "IDEMPOTENT_WRITE", "ALLOW"),
        } < listed
        assert {each.principal for each in found} == {"User:bob"}
        about_all = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, EVERYTHING)
        ((_, gone, error),) = client.delete_acls([about_all])
        assert (gone, error) == ([], SecurityDisabledError)
        mine = ResourcePattern(ResourceType.TOPIC, "t", ACLResourcePatternType.LITERAL)
        made = client.create_acls(
            [ACL("User:bob", "*", ACLOperation.READ, ACLPermissionType.ALLOW, mine)]
        )
        assert made["failed"] == [SecurityDisabledError]
        # Without role admin a user may neither list nor change.
        locked.permit(Permissions(NAME, frozenset({"produce"})), BOB)
        with pytest.raises(ClusterAuthorizationFailedError):
            client.describe_acls(about_all)
    finally:
        client.close()


def test_librdkafka_lists_them_and_is_told_what_changes_them(locked: Locked) -> None:
    locked.permit(NAME, BOB)
    client = confluent.AdminClient(librdkafka(locked))
    everything = confluent.AclBindingFilter(
        confluent.ResourceType.TOPIC,
        "orders.new",
        confluent.ResourcePatternType.MATCH,
        *("User:bob", None, confluent.AclOperation.WRITE, confluent.AclPermissionType.ALLOW),
    )
    (found,) = client.describe_acls(everything).result(30)
    assert (found.name, found.principal) == ("orders.", "User:bob")
    assert found.resource_pattern_type == confluent.ResourcePatternType.PREFIXED
    one = confluent.AclBinding(
        confluent.ResourceType.TOPIC,
        "t",
        confluent.ResourcePatternType.LITERAL,
        *("User:bob", "*", confluent.AclOperation.READ, confluent.AclPermissionType.ALLOW),
    )
    for made in client.create_acls([one]).values():
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            made.result(30)
        assert refused.value.args[0].code() == DISABLED
        assert "dafka kafka-user change" in refused.value.args[0].str()


def asked(**named: Any) -> Any:
    anything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": PatternFilter.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return SimpleNamespace(**(anything | named))


@pytest.mark.parametrize(
    ("named", "fitting"),
    [
        ({}, "all start name"),
        ({"resource_type_filter": 3}, ""),
        ({"operation": 4}, ""),
        ({"operation": 2}, ""),
        ({"permission_type": 2}, ""),
        ({"principal_filter": "User:bob"}, "all start name"),
        ({"principal_filter": "bob"}, ""),
        ({"host_filter": "10.0.0.1"}, ""),
        ({"host_filter": "*"}, "all start name"),
        ({"resource_name_filter": "order"}, "start"),
        ({"resource_name_filter": "orders", "pattern_type_filter": 2}, "all start name"),
        ({"resource_name_filter": "order", "pattern_type_filter": 2}, "all start"),
        ({"resource_name_filter": "x", "pattern_type_filter": 2}, "all"),
        ({"resource_name_filter": "orders", "pattern_type_filter": 3}, "name"),
        ({"resource_name_filter": "orders", "pattern_type_filter": 4}, ""),
        ({"pattern_type_filter": 4}, "start"),
        ({"pattern_type_filter": 9}, ""),
    ],
)
def test_a_filter_means_what_it_means_to_a_broker(named: dict[str, Any], fitting: str) -> None:
    known = {
        "all": ("*", Pattern.LITERAL),
        "start": ("order", Pattern.PREFIXED),
        "name": ("orders", Pattern.LITERAL),
    }
    acls = {key: Acl(Resource.TOPIC, *each, "bob", Operation.READ) for key, each in known.items()}
    assert [key for key, each in acls.items() if fits(asked(**named), each)] == fitting.split()

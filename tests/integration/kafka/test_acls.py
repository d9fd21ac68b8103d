"""ACLs, as Kafka's tools list them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from dafka_core.security.permissions import Permissions
from dafka_kafka.acls import PatternFilter, fits
from dafka_kafka.api import Api
from dafka_kafka.gateway import Gateway
from dafka_kafka.users import Acl, Operation, Pattern, Resource
from tests.integration.kafka.locked import NAME, Locked, librdkafka
from tests.integration.kafka.one_request import tell
from tests.unit.kafka.messages import rows, versions

FILTER: dict[str, Any] = {
    "resource_type_filter": 2,
    "resource_name_filter": "t",
    "pattern_type_filter": 3,
    "operation": 2,
    "permission_type": 3,
}
ACL: dict[str, Any] = {
    "resource_type": 2,
    "resource_name": "t",
    "principal": "User:a",
    "host": "*",
    "operation": 2,
    "permission_type": 3,
}
DISABLED = 54
confluent: Any = confluent_kafka.admin


def test_there_are_no_acls(gateway: Gateway) -> None:
    for version in versions(Api.DESCRIBE_ACLS):
        found = tell(gateway, Api.DESCRIBE_ACLS, version, **FILTER)
        assert (found.error_code, found.resources) == (DISABLED, [])
        made = tell(gateway, Api.CREATE_ACLS, version, creations=[ACL, ACL])
        assert rows(made, "results", "error_code") == [DISABLED, DISABLED]
        gone = tell(gateway, Api.DELETE_ACLS, version, filters=[FILTER])
        assert rows(gone, "filter_results", "error_code", "matching_acls") == [(DISABLED, [])]
    assert "no authorizer" in found.error_message


BOB = Permissions("bob", frozenset({"produce", "consume"}), ("orders.*",), ("x",))


def test_librdkafka_lists_them_and_is_told_what_changes_them(locked: Locked) -> None:
    locked.permit(NAME, BOB)
    client = confluent.AdminClient(librdkafka(locked))
    write = (confluent.AclOperation.WRITE, confluent.AclPermissionType.ALLOW)
    topic, pattern = confluent.ResourceType.TOPIC, confluent.ResourcePatternType
    one = confluent.AclBindingFilter(topic, "orders.new", pattern.MATCH, "User:bob", None, *write)
    (found,) = client.describe_acls(one).result(30)
    assert (found.name, found.principal) == ("orders.", "User:bob")
    assert found.resource_pattern_type == pattern.PREFIXED
    acl = confluent.AclBinding(topic, "t", pattern.LITERAL, "User:bob", "*", *write)
    changes = [*client.create_acls([acl]).values(), *client.delete_acls([one]).values()]
    for each in changes:
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            each.result(30)
        assert refused.value.args[0].code() == DISABLED
        assert "dafka kafka-user change" in refused.value.args[0].str()


ANYTHING = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": PatternFilter.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


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
    asked = SimpleNamespace(**(ANYTHING | named))
    assert [key for key, each in acls.items() if fits(asked, each)] == fitting.split()

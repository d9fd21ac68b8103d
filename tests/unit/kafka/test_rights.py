"""What a user may do, in Kafka's terms."""

from __future__ import annotations

from dafka_core.kafka.rights import (
    MAX_TOPICS,
    OPERATIONS,
    REFUSALS,
    USER_ROLES,
    Need,
    Operation,
    Pattern,
    Resource,
    Rights,
    acls,
)
from dafka_core.permissions import Permissions


def held(*roles: str, produce: str = "*", consume: str = "*") -> Permissions:
    return Permissions("alice", frozenset(roles), tuple(produce.split()), tuple(consume.split()))


def test_patterns_count_for_their_role() -> None:
    rights = Rights(held("produce", "consume", produce="orders.* x", consume="x y"))
    wanted = {
        "orders.new": {Operation.WRITE},
        "x": {Operation.WRITE, Operation.READ},
        "y": {Operation.READ},
        "z": set[Operation](),
    }
    for topic, operations in wanted.items():
        found = rights.operations(Resource.TOPIC, topic)
        assert found & {Operation.WRITE, Operation.READ} == operations
        assert rights.may(Need(Resource.TOPIC, Operation.DESCRIBE), topic) is bool(operations)
        assert not rights.may(Need(Resource.TOPIC, Operation.DELETE), topic)
    assert rights.operations(Resource.CLUSTER) == {Operation.IDEMPOTENT_WRITE}
    assert rights.operations(Resource.GROUP) == {Operation.READ, Operation.DESCRIBE}


def test_an_admin_changes_everything_and_reads_and_writes_no_record() -> None:
    rights = Rights(held("admin"))
    found = rights.operations(Resource.TOPIC, "any")
    assert {Operation.DELETE, Operation.ALTER_CONFIGS, Operation.DESCRIBE} < found
    assert not found & {Operation.READ, Operation.WRITE}
    assert Operation.CREATE in rights.operations(Resource.CLUSTER)
    assert not rights.may(Need(Resource.GROUP, Operation.READ))


def test_who_sees_all_is_known_by_its_patterns() -> None:
    for permissions, sees in (
        (held("produce"), True),
        (held("consume", produce="*", consume="a*"), False),
        (held("produce", "consume", produce="a", consume="*"), True),
        (held("admin", produce="", consume=""), True),
    ):
        assert Rights(permissions).sees_all is sees


def test_what_is_kept_of_topics_is_bounded() -> None:
    rights = Rights(held("consume", consume="t1*"))
    need = Need(Resource.TOPIC, Operation.READ)
    for _ in range(2):
        for number in range(MAX_TOPICS + 10):
            assert rights.may(need, f"t{number}") is str(number).startswith("1")
    assert len(rights._topics) == MAX_TOPICS


def test_acls_say_what_the_roles_have() -> None:
    listed = [*acls(held("produce", "consume", produce="orders.* a*b c", consume="*"))]
    names = {(each.name, each.pattern) for each in listed if each.operation is Operation.WRITE}
    # Kafka's patterns know no 'a*b': it is named as it is written.
    assert names == {
        ("orders.", Pattern.PREFIXED),
        ("a*b", Pattern.LITERAL),
        ("c", Pattern.LITERAL),
    }
    reads = {(each.resource, each.name) for each in listed if each.operation is Operation.READ}
    assert reads == {(Resource.TOPIC, "*"), (Resource.GROUP, "*")}
    cluster = [each for each in listed if each.resource is Resource.CLUSTER]
    assert [(each.name, each.operation) for each in cluster] == [
        ("kafka-cluster", Operation.IDEMPOTENT_WRITE)
    ]
    for role in USER_ROLES:
        told: dict[Resource, set[Operation]] = {}
        for each in acls(held(role)):
            told.setdefault(each.resource, set()).add(each.operation)
        assert told == OPERATIONS[role]
    assert [*acls(Permissions("nobody", frozenset()))] == []


def test_each_resource_has_a_refusal() -> None:
    assert [REFUSALS[each] for each in Resource] == [29, 30, 31]

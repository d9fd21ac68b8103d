"""The file with the users of a gateway, their rights and ACLs."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.security.permissions import Permissions
from dafka_kafka import sasl
from dafka_kafka.acls import PatternFilter, fits
from dafka_kafka.users import (
    MAX_TOPICS,
    OPERATIONS,
    REFUSALS,
    SCRAM,
    USER_ROLES,
    Acl,
    Need,
    Operation,
    Pattern,
    Resource,
    Rights,
    User,
    UserFile,
    Users,
    Verifier,
    acls,
    new_user,
)


def user(name: str, password: str) -> User:
    return new_user(name, password, ["consume"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    written(path, alice=user("alice", "wonder land"), bób=user("bób", "b"))
    return path


def written(path: Path, salt_key: bytes = b"key", /, **users: User) -> None:
    path.write_bytes(UserFile(salt_key, users).packed())
    path.chmod(0o600)


def test_a_user_is_known_by_name_and_password(file: Path) -> None:
    users = Users(str(file))
    assert "alice" in users
    assert "carol" not in users
    assert users.knows("alice", "wonder land")
    assert users.knows("bób", "b")
    for name, password in (("alice", "b"), ("alice", ""), ("carol", "b"), ("alice", "\ud800")):
        assert not users.knows(name, password)


@pytest.mark.parametrize("password", ["", "a\0b", "\ud800", "é" * 513])
def test_what_no_password_can_be_is_refused_without_telling_it(password: str) -> None:
    with pytest.raises(ValueError, match=r"^a password (is text|has 1 to 1024 octets)"):
        user("alice", password)


def test_what_a_user_may_do_is_read_as_it_was_written(tmp_path: Path) -> None:
    odd = ("a b*", "\\xff", "\udcff\n", "[x]?", "ä")
    for held in (
        Permissions("alice", frozenset({"produce", "admin"}), produce=odd, consume=()),
        Permissions("bob", frozenset({"consume"})),
    ):
        written(tmp_path / "users", **{held.name: user("x", "p").with_permissions(held)})
        users = Users(str(tmp_path / "users"))
        assert users.permissions() == [held]
        rights = users.rights(held.name)
        assert rights is not None
        assert rights.permissions == held
    assert users.rights("alice") is None


def lengths(verifier: Verifier) -> list[int]:
    return [len(each) for each in (verifier.salt, verifier.stored_key, verifier.server_key)]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_nobody_is_told_which_names_there_are(file: Path, mechanism: str) -> None:
    salts = set()
    for key in (UserFile().salt_key, UserFile().salt_key):  # of two clusters
        written(file, key, alice=user("alice", "a"))
        users, again = Users(str(file)), Users(str(file))  # at another gateway, or after a restart
        known, unknown = users.verifier(mechanism, "alice"), users.verifier(mechanism, "carol")
        assert unknown.iterations == known.iterations
        assert lengths(unknown) == lengths(known)
        assert {each.verifier(mechanism, "carol").salt for each in (users, again)} == {unknown.salt}
        salts |= {users.verifier(each, "carol").salt for each in SCRAM}
    assert len(salts) == 2 * len(SCRAM)


def test_the_file_is_read_again(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = Users(str(file))
    written(file, carol=user("carol", "c"))
    users.look()
    assert "carol" in users
    assert "alice" not in users
    file.write_bytes(b"nonsense")
    users.look()
    users.look()
    assert "carol" not in users
    [logged] = [each.getMessage() for each in caplog.records]
    assert logged == f"Kafka: users: {file} {NO_OBJECT}; all are rejected"
    written(file, carol=user("carol", "c"))
    users.look()
    assert users.knows("carol", "c")


NO_OBJECT = "is no JSON object, as 'dafka kafka-user' writes it"
INVALID = "is not as 'dafka kafka-user' writes it"


def changed(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: UserFile().packed().decode(), "has no user"),
        (lambda text: text[:-1], NO_OBJECT),
        (lambda _: "[]", NO_OBJECT),
        (changed("SCRAM-SHA-256", "SCRAM-SHA-1"), "another length than SCRAM-SHA-1 has"),
        (changed("SCRAM-SHA-512", "SCRAM-SHA-256"), "another length than SCRAM-SHA-256 has"),
        (changed('"stored_key": "', '"stored_key": "AAAA'), "another length than SCRAM-SHA-256"),
        (changed('"stored_key": "', '"stored_key": "!'), INVALID),
        (changed('"iterations": 16384', '"iterations": 4095'), "`int` >= 4096"),
        (changed('"iterations": 16384', '"iterations": 9999999'), "`int` <= 1048576"),
        (lambda text: re.sub('"salt": ".*?"', '"salt": ""', text), "length >= 1"),
        (
            lambda text: re.sub(r'"verifiers": \{.*\},\s+"roles"', '"roles"', text, flags=re.S),
            "field",
        ),
        (changed('"roles"', '"rules"'), "unknown field `rules`"),
        (changed('"alice"', '"al ice"'), "has user 'al ice', and a name has 1 to 255 characters"),
        (changed('"consume"', '"store"'), "has user 'alice', and 'store' is for keys of nodes"),
        (changed('"consume"', '"consum"'), "'consum' is no role; did you mean 'consume'"),
    ],
)
def test_a_file_that_is_wrong_is_refused(
    tmp_path: Path, change: Callable[[str], str], why: str
) -> None:
    file = tmp_path / "users"
    written(file, alice=user("alice", "a"))
    text = file.read_text()
    file.write_text(change(text))
    with pytest.raises(ConfigError, match=re.escape(why)) as error:
        Users(str(file))
    assert error.value.option == "kafka_users"
    secrets = re.findall(r'"(?:salt|stored_key|server_key)": "(.*?)"', text)
    assert len(secrets) == 6
    assert [each for each in secrets if each in str(error.value)] == []


def test_a_file_that_others_can_read_or_that_is_none_is_refused(file: Path, tmp_path: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        Users(str(file))
    for path in (str(tmp_path / "missing"), str(tmp_path), "\0"):
        with pytest.raises(ConfigError, match=r"must be a file|can be read by others"):
            Users(path)


def test_what_cannot_be_a_user_is_refused() -> None:
    names = [(name, "p") for name in ("", "a b", "a=b", "a,b")]
    for name, password in (*names, ("a", ""), ("a", "x" * 1_025)):
        with pytest.raises(ValueError, match="has 1 to"):
            user(name, password)


def test_who_lacks_a_library_is_not_told_of_an_option_that_was_never_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scramp", None)
    with pytest.raises(ConfigError, match="option 'kafka' = True: needs scramp: pip install"):
        runpy.run_path(sasl.__file__)


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


def test_who_sees_any_topic_is_known_by_its_patterns() -> None:
    see = Need(Resource.TOPIC, Operation.DESCRIBE)
    for permissions, sees in (
        (held("produce"), True),
        (held("consume", produce="*", consume="a*"), False),
        (held("produce", "consume", produce="a", consume="*"), True),
        (held("admin", produce="", consume=""), True),
    ):
        assert Rights(permissions).may(see, "zoo") is sees


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

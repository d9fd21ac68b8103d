"""The file with the users of a gateway."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from dafka_core.errors import ConfigError
from dafka_core.security.permissions import Permissions
from dafka_kafka import users as module
from dafka_kafka.users import (
    MAX_TOPICS,
    OPERATIONS,
    REFUSALS,
    SCRAM,
    USER_ROLES,
    Need,
    Operation,
    Pattern,
    Resource,
    Rights,
    Users,
    acls,
    line_of,
    lines_of,
    permissions_of,
    salt_key_line,
)


def user(name: str, password: str) -> list[str]:
    return [*lines_of(name, password), f"{name} roles=consume"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    written(path, *user("alice", "wonder land"), "", "# a comment", *user("bób", "b"))
    return path


def written(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines), "utf-8")
    path.chmod(0o600)


def test_a_user_is_known_by_name_and_password(file: Path) -> None:
    users = Users(str(file))
    assert "alice" in users
    assert "carol" not in users
    assert users.knows("alice", "wonder land")
    assert users.knows("bób", "b")
    for name, password in (("alice", "b"), ("alice", ""), ("carol", "b"), ("alice", "\ud800")):
        assert not users.knows(name, password)


def test_what_a_user_may_do_is_read_as_it_was_written(tmp_path: Path) -> None:
    odd = ("a b*", "\\xff", "\udcff\n", "[x]?", "ä")
    for held in (
        Permissions("alice", frozenset({"produce", "admin"}), produce=odd, consume=()),
        Permissions("bob", frozenset({"consume"})),
    ):
        assert permissions_of(line_of(held)) == held
        written(tmp_path / "users", *lines_of(held.name, "p"), line_of(held))
        users = Users(str(tmp_path / "users"))
        assert users.permissions() == [held]
        rights = users.rights(held.name)
        assert rights is not None
        assert rights.permissions == held
    assert users.rights("alice") is None


@pytest.mark.parametrize("mechanism", SCRAM)
def test_nobody_is_told_which_names_there_are(file: Path, mechanism: str) -> None:
    salts = set()
    for line in (salt_key_line(), salt_key_line()):  # of two clusters
        written(file, line, *user("alice", "a"))
        users, again = Users(str(file)), Users(str(file))  # at another gateway, or after a restart
        known, unknown = users.verifier(mechanism, "alice"), users.verifier(mechanism, "carol")
        assert unknown.iterations == known.iterations
        assert [*map(len, unknown[:3])] == [*map(len, known[:3])]
        assert {each.verifier(mechanism, "carol").salt for each in (users, again)} == {unknown.salt}
        salts |= {users.verifier(each, "carol").salt for each in SCRAM}
    assert len(salts) == 2 * len(SCRAM)


def test_the_file_is_read_again(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = Users(str(file))
    written(file, *user("carol", "c"))
    users.look()
    assert "carol" in users
    assert "alice" not in users
    written(file, "nonsense")
    users.look()
    users.look()
    assert "carol" not in users
    assert [each.getMessage() for each in caplog.records] == [
        f"Kafka: users: {file} line 1 is no line that 'dafka kafka-user' writes; all are rejected"
    ]
    written(file, *user("carol", "c"))
    users.look()
    assert users.knows("carol", "c")


GOOD = lines_of("alice", "a")[0]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((), "has no user"),
        (("alice secret",), "line 1 is no line"),
        ((GOOD, GOOD.replace("SHA-256", "SHA-512")), "line 2 has a key of another length"),
        ((GOOD.replace("$16384:", "$4095:"),), "line 1 has 4095 iterations"),
        ((GOOD.replace("$16384:", "$9999999:"),), "iterations"),
        ((GOOD[:-5] + "!!!!!",), "line 1 "),
        ((GOOD,), "has no roles of user 'alice'"),
        (("alice roles=consume",), "has no password of user 'alice'"),
        ((GOOD, "alice roles=consume", "alice roles=admin"), "line 3 gives a user roles a second"),
        ((GOOD, "alice roles=consume topics=x"), "line 2 is no line"),
        ((GOOD, "alice roles=store"), "line 2 'store' is for keys of nodes"),
        ((GOOD, "alice roles=consum"), "line 2 'consum' is no role; did you mean 'consume'"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, lines: tuple[str, ...], why: str) -> None:
    written(tmp_path / "users", *lines)
    with pytest.raises(ConfigError, match=why) as error:
        Users(str(tmp_path / "users"))
    assert error.value.option == "kafka_users"


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
            lines_of(name, password)


def test_who_lacks_a_library_is_not_told_of_an_option_that_was_never_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scramp", None)
    with pytest.raises(ConfigError, match="option 'kafka' = True: needs scramp: pip install"):
        runpy.run_path(module.__file__)


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

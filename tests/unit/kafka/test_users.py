"""The file with the users of a gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.errors import ConfigError
from dafka_core.kafka.users import SCRAM, Users, lines_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    written(path, *lines_of("alice", "wonder land"), "", "# a comment", *lines_of("bób", "b"))
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


@pytest.mark.parametrize("mechanism", SCRAM)
def test_nobody_is_told_which_names_there_are(file: Path, mechanism: str) -> None:
    users = Users(str(file))
    known, unknown = users.verifier(mechanism, "alice"), users.verifier(mechanism, "carol")
    assert unknown.iterations == known.iterations
    assert [*map(len, unknown[:3])] == [*map(len, known[:3])]
    assert users.verifier(mechanism, "carol").salt == unknown.salt


def test_the_file_is_read_again(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = Users(str(file))
    written(file, *lines_of("carol", "c"))
    users.look()
    assert "carol" in users
    assert "alice" not in users
    written(file, "nonsense")
    users.look()
    users.look()
    assert "carol" not in users
    assert [each.getMessage() for each in caplog.records] == [
        f"Kafka: users: {file}: line 1 is no line that 'dafka kafka-user' writes; nobody is let in"
    ]
    written(file, *lines_of("carol", "c"))
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
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, lines: tuple[str, ...], why: str) -> None:
    written(tmp_path / "users", *lines)
    with pytest.raises(ConfigError, match=why) as error:
        Users(str(tmp_path / "users"))
    assert error.value.option == "kafka_users"


def test_a_file_that_others_can_read_or_that_is_none_is_refused(file: Path, tmp_path: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read it"):
        Users(str(file))
    for path in (str(tmp_path / "missing"), str(tmp_path), "\0"):
        with pytest.raises(ConfigError, match=r"must be a file|others can read it"):
            Users(path)


@pytest.mark.parametrize(
    ("name", "password"),
    [("", "p"), ("a b", "p"), ("a=b", "p"), ("a,b", "p"), ("a", ""), ("a", "x" * 1_025)],
)
def test_what_cannot_be_a_user_is_refused(name: str, password: str) -> None:
    with pytest.raises(ValueError, match="has 1 to"):
        lines_of(name, password)

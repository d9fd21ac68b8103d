"""``dafka kafka-user``."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from dafka_core.testing import wait_until
from dafka_kafka.commands import _rewrite
from dafka_kafka.users import User, UserFile, Users, new_user
from tests.integration.cli.processes import run


class Command:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, *words: str, password: str = "") -> tuple[int, str]:
        where = ("--kafka-users", str(self.file))
        done = run("kafka-user", *words, *where, given=password.encode("utf-8", "surrogateescape"))
        return done.returncode, " ".join(done.stderr.decode().split())

    def listed(self) -> list[dict[str, str]]:
        done = run("kafka-user", "show", "--json", "--kafka-users", str(self.file))
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def kafka_user(tmp_path: Path) -> Command:
    return Command(tmp_path / "users")


def test_users_are_added_changed_and_removed(kafka_user: Command) -> None:
    assert kafka_user("add", "alice", password="one\n")[0] == 0
    salt_key = UserFile.parse(kafka_user.file.read_bytes()).salt_key
    assert kafka_user("add", "bob", password="b\n")[0] == 0
    assert kafka_user("add", "alice", password="wonder land\n")[0] == 0
    users = Users(str(kafka_user.file))
    assert users.knows("alice", "wonder land")
    assert not users.knows("alice", "one")
    assert stat.S_IMODE(kafka_user.file.stat().st_mode) == 0o600
    assert UserFile.parse(kafka_user.file.read_bytes()).salt_key == salt_key
    code, told = kafka_user("remove", "bob")
    assert (code, told.split(" from ")[0]) == (0, "bob was removed")
    code, told = kafka_user("remove", "bob")
    assert code == 2
    assert "is no user in" in told
    code, told = kafka_user("add", "a b", password="hidden\n")
    assert code == 2
    assert "without spaces" in told
    assert "hidden" not in told
    code, told = kafka_user("add", "carol", password="\udcff\n")
    assert code == 2
    assert "a password is text in UTF-8" in told


def test_a_file_keeps_its_owner(kafka_user: Command) -> None:
    assert kafka_user("add", "alice", password="one\n")[0] == 0
    # Only root gives files to others.
    owner = (os.geteuid(), os.getegid()) if os.geteuid() else (12_345, 23_456)
    os.chown(kafka_user.file, *owner)
    assert kafka_user("add", "bob", password="b\n")[0] == 0
    status = kafka_user.file.stat()
    assert (status.st_uid, status.st_gid) == owner
    assert stat.S_IMODE(status.st_mode) == 0o600


def test_what_a_user_may_do_changes_without_another_password(kafka_user: Command) -> None:
    roles = ("--role", "produce,consume", "--produce", "orders.*", "--produce", "x y")
    assert kafka_user("add", "alice", *roles, password="p\n")[0] == 0
    assert kafka_user("add", "bob", "--role", "admin", password="b\n")[0] == 0
    assert kafka_user.listed() == [
        {"name": "alice", "roles": "produce, consume", "topics": "produce orders.*, x y"},
        {"name": "bob", "roles": "admin", "topics": ""},
    ]
    assert kafka_user("change", "alice", "--consume", "news")[0] == 0
    assert kafka_user.listed()[0]["topics"] == "produce orders.*, x y; consume news"
    assert kafka_user("change", "alice", "--role", "consume")[0] == 0
    # Another password leaves what the user may do.
    assert kafka_user("add", "alice", password="q\n")[0] == 0
    assert kafka_user.listed()[0] == {"name": "alice", "roles": "consume", "topics": "consume news"}
    users = Users(str(kafka_user.file))
    assert users.knows("alice", "q")
    assert users.knows("bob", "b")


@pytest.mark.parametrize("command", ["add", "change"])
def test_a_user_with_a_wrong_role_is_not_let_do_everything(
    kafka_user: Command, command: str
) -> None:
    assert kafka_user("add", "alice", password="p\n")[0] == 0
    text = kafka_user.file.read_text()
    wrong = text.replace('"produce"', '"audit"', 1)
    assert wrong != text
    kafka_user.file.write_text(wrong)
    code, told = kafka_user(command, "alice", "--consume", "secret.*", password="q\n")
    assert code == 2
    assert "has user 'alice', and 'audit' is no role" in told
    assert kafka_user.file.read_text() == wrong


def test_of_two_commands_at_a_time_neither_is_lost(tmp_path: Path) -> None:
    file, begun, go_on = tmp_path / "users", threading.Event(), threading.Event()

    made = new_user("alice", "a", ["consume"])

    def slow(_: User | None) -> User:
        begun.set()
        assert go_on.wait(30)
        return made

    def is_waiting() -> bool:
        locks = Path("/proc/locks").read_text().splitlines()
        return any("->" in each and f":{tmp_path.stat().st_ino} " in each for each in locks)

    first = threading.Thread(target=_rewrite, args=(str(file), "alice", slow))
    second = threading.Thread(target=_rewrite, args=(str(file), "bob", lambda _: made))
    first.start()
    assert begun.wait(30)
    second.start()
    wait_until(lambda: is_waiting() or not second.is_alive())
    go_on.set()
    for each in (first, second):
        each.join()
    assert [*UserFile.parse(file.read_bytes()).users] == ["alice", "bob"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("change", "alice"), "say what changes"),
        (("change", "carol", "--role", "admin"), "is no user in"),
        (("change", "alice", "--role", "store"), "'store' is for keys of nodes"),
        (("change", "alice", "--role", "admn"), "did you mean 'admin'"),
        (("change", "alice", "--role", "consume", "--produce", "x"), "add it to --role"),
        (("add", "dora", "--role", "admin", "--consume", "x"), "add it to --role"),
    ],
)
def test_what_no_user_can_be_is_refused(
    kafka_user: Command, words: tuple[str, ...], why: str
) -> None:
    assert kafka_user("add", "alice", password="p\n")[0] == 0
    before = kafka_user.file.read_bytes()
    code, told = kafka_user(*words, password="p\n")
    assert code == 2
    assert why in told
    assert kafka_user.file.read_bytes() == before

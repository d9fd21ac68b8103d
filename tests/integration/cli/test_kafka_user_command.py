"""``dafka kafka-user``."""

from __future__ import annotations

import stat
from pathlib import Path

from dafka_core.kafka.users import Users
from tests.integration.cli.processes import run


def test_users_are_added_changed_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "users"

    def kafka_user(name: str, *flags: str, password: str = "") -> tuple[int, str]:
        done = run("kafka-user", name, "--kafka-users", str(file), *flags, given=password.encode())
        return done.returncode, " ".join(done.stderr.decode().split())

    assert kafka_user("alice", password="one\n")[0] == 0
    assert kafka_user("bob", password="b\n")[0] == 0
    assert kafka_user("alice", password="wonder land\n")[0] == 0
    users = Users(str(file))
    assert users.knows("alice", "wonder land")
    assert not users.knows("alice", "one")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, told = kafka_user("bob", "--remove")
    assert (code, told.split(" in ")[0]) == (0, "bob is no user any more")
    code, told = kafka_user("bob", "--remove")
    assert code == 2
    assert "is no user in" in told
    code, told = kafka_user("a b", password="hidden\n")
    assert code == 2
    assert "without spaces" in told
    assert "hidden" not in told

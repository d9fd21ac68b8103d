"""Kafka's consumer groups, as the console shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.console.consumer_groups import ConsumerGroups
from dafka_core.console.server import Console
from dafka_core.errors import InvalidRequestError
from dafka_core.records import TopicPartition
from dafka_core.testing import StoreDouble
from tests.integration.console.pages import ask
from tests.integration.kafka.groups.kept import FIRST, keep


def test_groups_their_members_and_what_they_have_committed(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "one", "1" * 32) as store:
        keep(store)
        groups, clients = ConsumerGroups(), [store.client()]
        reading, idle = groups.listed(clients)
        assert (reading["name"], reading["state"], reading["members"]) == ("g", "stable", 1)
        assert (reading["partitions"], reading["records_behind"]) == (4, 6)
        assert reading["seconds_behind"] >= 0
        assert (idle["name"], idle["state"], idle["records_behind"]) == ("idle", "empty", 0)
        found = groups.partitions(clients, "g")
        assert found["total"] == 4
        first, second, third, gone = found["rows"]
        assert (first["topic"], first["number"], first["partition"]) == ("t", 0, FIRST.partition)
        assert (first["committed"], first["end"], first["records_behind"]) == (4, 10, 6)
        assert (first["member"], first["client"], first["host"]) == ("app-1", "app", "10.0.0.7")
        assert (second["committed"], "member" in second) == (10, False)
        assert (third["member"], "committed" in third) == ("app-1", False)
        assert gone == {"topic": "t", "number": 7}
        with pytest.raises(InvalidRequestError, match="it has not committed"):
            groups.partitions(clients, "gg")


def test_stores_are_not_asked_at_each_look(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "one", "1" * 32) as store:
        keep(store)
        groups, clients = ConsumerGroups(), [store.client()]
        before = groups.listed(clients)
        store.append(TopicPartition("t", FIRST.partition), [b"more"])
        assert groups.listed(clients) == before
        assert ConsumerGroups().listed(clients)[0]["records_behind"] == 7


def test_a_console_answers_of_groups(console: Console) -> None:
    assert isinstance(ask(console, "/api/groups").json["rows"], list)
    asked = ask(console, "/api/group", group="nobody<b>")
    assert asked.status == 400
    assert "it has not committed" in asked.json["error"]

"""A console with stores that do not answer shows what it knew last, and which stores are away."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dafka_console.server import Console
from dafka_core import EmbeddedCluster, Producer
from dafka_core.flight.requests import DeleteRequest
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.console.pages import ask

LISTS = ("overview", "map", "topics", "partitions", "queries", "groups", "health")


@pytest.fixture
def looking(own: EmbeddedCluster) -> Iterator[Console]:
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=100) as console:
        yield console


def write(cluster: EmbeddedCluster, topic: str, count: int) -> str:
    with Producer(topic, tower=cluster.tower) as producer:
        producer.publish_many([b"%d" % n for n in range(count)])
        producer.flush(PATIENCE_S)
        return producer.address


def partitions(console: Console, topic: str) -> list[tuple[int, bool, list[int]]]:
    """The end of each partition, its staleness, and the end at the answering stores."""
    rows = ask(console, "/api/partitions", topic=topic).json["rows"]
    return [(row["end"], row["stale"], [*row["holders"].values()]) for row in rows]


def away(console: Console) -> int:
    return len(ask(console, "/api/overview").json["away"])


def test_without_a_store_all_answers_say_so_and_have_what_was_known_last(
    own: EmbeddedCluster, looking: Console, dafka_topic: str
) -> None:
    partition = write(own, dafka_topic, 500)
    where: dict[str, Any] = {"topic": dafka_topic, "partition": partition}
    wait_until(
        lambda: partitions(looking, dafka_topic) == [(500, False, [500, 500])], "all is there"
    )
    before = ask(looking, "/api/overview").json
    assert (before["live"], before["away"]) == (True, [])
    own.kill_store(0)
    wait_until(lambda: away(looking) == 1, "one store is away")
    found = ask(looking, "/api/overview").json
    assert (found["live"], found["stores"], found["stores_known"]) == (True, 1, 2)
    assert partitions(looking, dafka_topic) == [(500, False, [500])]
    found = ask(looking, "/api/records", topic=dafka_topic, most=50)
    assert [row["offset"] for row in found.json["rows"]] == [*range(499, 449, -1)]
    began_us = time.time() * 1e6
    own.kill_store(1)
    wait_until(lambda: away(looking) == 2, "no store answers")
    for path in LISTS:
        found = ask(looking, f"/api/{path}")
        assert (found.status, found.json["live"], len(found.json["away"])) == (200, False, 2), path
    first, second = sorted(found.json["away"], key=lambda each: each["since_us"])
    assert 0 < began_us - 1e9 < first["since_us"] < second["since_us"] < time.time() * 1e6
    found = ask(looking, "/api/overview").json
    assert [found[name] for name in ("topics", "partitions", "records", "bytes")] == [
        before[name] for name in ("topics", "partitions", "records", "bytes")
    ]
    assert (found["stores"], found["file_bytes"] > 0) == (0, True)
    (row,) = ask(looking, "/api/topics", internal=0).json["rows"]
    assert (row["name"], row["records"], row["stale"]) == (dafka_topic, 500, 1)
    assert partitions(looking, dafka_topic) == [(500, True, [])]
    for path, parameters in (
        ("records", {"topic": dafka_topic}),
        ("records", where),
        ("records", where | {"since_us": 1}),
        ("record", where | {"offset": 3}),
    ):
        refused = ask(looking, f"/api/{path}", **parameters)
        assert refused.status == 502
        assert "no store that has" in refused.json["error"]
    own.start_store(0)
    own.start_store(1)
    wait_until(lambda: away(looking) == 0, "both are back")
    wait_until(
        lambda: partitions(looking, dafka_topic) == [(500, False, [500, 500])], "all is there"
    )
    write(own, dafka_topic, 7)
    wait_until(lambda: len(partitions(looking, dafka_topic)) == 2, "it goes on")


def test_what_only_a_store_has_that_is_away_is_stale_and_the_rest_is_not(
    own: EmbeddedCluster, looking: Console, dafka_topic: str
) -> None:
    write(own, dafka_topic, 20)
    wait_until(lambda: partitions(looking, dafka_topic) == [(20, False, [20, 20])], "all is there")
    only = f"{dafka_topic}-only"
    with own.paused_store(1):
        write(own, only, 30)
        wait_until(lambda: partitions(looking, only) == [(30, False, [30])], "one store has it")
        wait_until(lambda: away(looking) == 1, "the second store does not answer")
        own.kill_store(0)
        wait_until(lambda: away(looking) == 2, "neither does")
        assert partitions(looking, only) == [(30, True, [])]
    wait_until(lambda: away(looking) == 1, "one goes on")
    assert partitions(looking, dafka_topic) == [(20, False, [20])]
    assert partitions(looking, only) == [(30, True, [])]
    rows = ask(looking, "/api/topics", internal=0).json["rows"]
    assert [(row["name"], row["stale"]) for row in rows] == [(dafka_topic, 0), (only, 1)]
    assert ask(looking, "/api/records", topic=dafka_topic).status == 200
    assert ask(looking, "/api/records", topic=only).status == 502


def test_a_topic_that_is_deleted_is_not_kept_as_what_was_known_last(
    own: EmbeddedCluster, looking: Console, dafka_topic: str
) -> None:
    write(own, dafka_topic, 20)
    wait_until(lambda: partitions(looking, dafka_topic) == [(20, False, [20, 20])], "all is there")
    own.kill_store(0)
    wait_until(lambda: away(looking) == 1, "one store is away")
    (client,) = looking.view.clients()
    client.ask(PATIENCE_S, DeleteRequest(dafka_topic))

    def records() -> list[int]:
        return [row["records"] for row in ask(looking, "/api/topics", internal=0).json["rows"]]

    wait_until(lambda: records() == [0], "deleted: its next offset is kept for a while")
    own.kill_store(1)
    wait_until(lambda: away(looking) == 2, "no store answers")
    assert records() == [0]


def test_a_console_that_has_never_known_a_store_says_so(own: EmbeddedCluster) -> None:
    own.kill_store(0)
    own.kill_store(1)
    with Console({"tower": own.tower}, listen="127.0.0.1:0", interval_ms=100) as console:
        wait_until(lambda: console.view.snapshot.number >= 2, "it has looked")
        for path in LISTS:
            found = ask(console, f"/api/{path}")
            assert (found.status, found.json["live"]) == (200, False), path
        own.start_store(0)
        wait_until(lambda: ask(console, "/api/topics").json["live"], "a store answers")
        assert ask(console, "/api/topics").json["total"] == 0

"""``dafka topics``, ``heads``, ``staged``, ``stores``, ``lag`` and ``groups``."""

import json
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dafka_core import Reader
from dafka_core.cli import inspect_commands
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.testing import StoreDouble, wait_until
from tests.forked import ForkedCluster
from tests.integration.cli.processes import (
    ANY_PORTS,
    PATIENCE_S,
    Dafka,
    json_lines,
    listed,
    refusal,
    run,
    sentence,
    succeed,
)
from tests.integration.kafka.groups import kept

FIRST, SECOND = "A" * 32, "B" * 32


@pytest.fixture(scope="module")
def filled(tower: str) -> str:
    """Topic ``one`` with two partitions, topic ``one-more`` with one."""
    for topic, address, values in [
        ("one", SECOND, b"1\n2\n3\n"),
        ("one", FIRST, b"1\n"),
        ("one-more", FIRST, b"1\n2\n"),
    ]:
        at = ("--tower", tower, "--address", address)
        succeed("produce", topic, *at, given=values)
    return tower


def test_topics_are_listed_with_their_totals(filled: str) -> None:
    asked = succeed("topics", "--tower", filled)
    rows = listed(asked)
    assert asked.stdout.decode().split()[:3] == ["topic", "partitions", "records"]
    bare = run("topics", "--tower", filled, "--no-headings").stdout.splitlines()
    assert [line.decode().split() for line in bare] == rows
    assert [row[:3] for row in rows] == [["one", "2", "4"], ["one-more", "1", "2"]]
    assert asked.stderr == b""
    found = json_lines("topics", "--tower", filled, "--json")
    for row in found:
        first, last = (datetime.fromisoformat(row.pop(name)) for name in ("first", "last"))
        assert datetime.now(UTC) - timedelta(hours=1) < first <= last
        assert row.pop("bytes") > row["records"]
    assert found == [
        {"topic": "one", "partitions": 2, "records": 4},
        {"topic": "one-more", "partitions": 1, "records": 2},
    ]


def test_partitions_are_listed_with_how_many_stores_have_all_of_them(filled: str) -> None:
    rows = json_lines("partitions", "one", "--tower", filled, "--json")
    assert [(row["partition"], row["earliest"], row["next"], row["records"]) for row in rows] == [
        (FIRST, 0, 1, 1),
        (SECOND, 0, 3, 3),
    ]
    assert all(row["stores"] == 1 and row["bytes"] > 0 for row in rows)
    assert all(row["first"] <= row["last"] for row in rows)
    everything = listed(run("partitions", "--tower", filled))
    assert [row[:2] for row in everything] == [["one", FIRST], ["one", SECOND], ["one-more", FIRST]]


@pytest.mark.parametrize(
    "command",
    ["partitions", "heads", "consume --exit-at-end", "top --once --topic", "perf consume"],
)
def test_a_topic_that_no_store_has_is_an_error(filled: str, command: str) -> None:
    missing = run(*command.split(), "on", "--tower", filled)
    assert (missing.returncode, missing.stdout) == (1, b"")
    there = "(there are 'one', 'one-more')"
    assert sentence(missing) == f"no store has records of topic 'on' {there}"


def test_what_no_store_tells_is_left_open(lone_tower: str, tmp_path: Path) -> None:
    at = ("--tower", lone_tower)
    with Dafka("store", "--dir", str(tmp_path), *at, "--flight-port", "off") as store:
        store.ready()
        succeed("produce", "t", *at, "--address", FIRST, given=b"1\n")
        assert listed(run("topics", *at)) == [["t", "1", "1", "-", "-", "-"]]
        [row] = run("partitions", *at, "--json").stdout.splitlines()
        assert json.loads(row)["bytes"] is None
        assert json.loads(row)["stores"] is None


def test_heads_are_those_of_the_topic_alone(filled: str) -> None:
    for _ in range(5):  # each time another node asks, which the store has to meet first
        asked = succeed("heads", "one", "--tower", filled)
        assert listed(asked) == [[FIRST, "0", "1"], [SECOND, "0", "3"]]
    (row,) = json_lines("heads", "one-more", "--tower", filled, "--json")
    assert row == {"partition": FIRST, "earliest": 0, "next": 2}


def test_stores_as_json(filled: str) -> None:
    (store,) = json_lines("stores", "--tower", filled, "--json")
    assert len(store.pop("store")) == 32
    assert store.pop("file_bytes") > store.pop("free_bytes") >= 0
    assert store == {"leases": 0, "oldest_lease_s": 0.0}


def test_a_store_that_is_away_is_named_once_where_a_topic_is_unknown() -> None:
    with ForkedCluster(stores=2) as cluster:
        tower = ("--tower", cluster.tower)
        succeed("produce", "one", "--acks", "2", *tower, given=b"1\n")
        cluster.kill_store(1)
        for command in ("heads", "partitions"):
            said = run(command, "on", *tower).stderr.decode()
            assert said.count("is away: records that only it has are missing from this result") == 1
            assert said.endswith("dafka: no store has records of topic 'on' (there are 'one')\n")


@pytest.mark.parametrize("arguments", [("topics",), ("heads", "one")])
def test_without_a_store_they_say_so(arguments: tuple[str, ...], lone_tower: str) -> None:
    asked = refusal(1, *arguments, "--tower", lone_tower, "--timeout-s", "0.5")
    assert asked.startswith(f"no store was heard of through {lone_tower} within 0.5 s")


def test_what_a_dead_writer_has_staged_is_listed_and_discarded(tmp_path: Path) -> None:
    with Dafka("up", *ANY_PORTS, "--dir", str(tmp_path / "s")) as store:
        facts = store.ready()
        client = StoreClient(StoreLocation(facts["address"], tuple(facts["flight"])))
        tp, attempt = TopicPartition("t", FIRST), "A" * 32
        with client, client.put(tp, 0, attempt=attempt, timeout_s=PATIENCE_S) as writing:
            writing.write(pa.array([b"x" * 1000] * 1000, pa.binary()))
            assert writing.finish(PATIENCE_S) == 1000
        at = ("--tower", facts["tower"])
        assert run("topics", *at).stdout == b""
        (line,) = run("staged", *at, "--json").stdout.splitlines()
        row = json.loads(line)
        told = datetime.fromisoformat(row.pop("last_added"))
        assert abs((datetime.now(UTC) - told).total_seconds()) < 2 * PATIENCE_S
        assert 1_000_000 < row.pop("bytes") < 1_100_000
        expected = {"store": facts["address"], "topic": "t", "partition": FIRST}
        assert row == expected | {"attempt": attempt, "records": 1000}
        kept = run("staged", *at, "--discard", "--idle-hours", "1")
        assert kept.stdout == b""
        assert b"0 partitions, 0 bytes" in kept.stderr
        assert run("staged", *at).stdout != b""
        discarded = run("staged", *at, "--discard")
        assert (
            b"discarded at store %s: 1 partitions" % facts["address"].encode() in discarded.stderr
        )
        empty = run("staged", *at)
        assert (empty.stdout, empty.stderr) == (b"", b"nothing is staged\n")


@pytest.mark.parametrize("ahead_s", [-7_200, 7_200])
def test_how_long_records_are_staged_is_by_the_stores_clock(
    tmp_path: Path,
    ahead_s: float,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + ahead_s)  # of this machine
    with StoreDouble(tmp_path, "1" * 32) as store:
        client = store.client()
        with client.put(TopicPartition("t", FIRST), 0, attempt="C" * 32, timeout_s=60) as writing:
            writing.write(pa.array([b"x"], pa.binary()))
            writing.finish(60)
        for idle_hours, count in ((0.0, 1), (1.0, 0)):
            uris = store.location.locations[-1]
            inspect_commands.staged(discard=False, idle_hours=idle_hours, uris=uris, timeout_s=60.0)
            assert capsys.readouterr().out.count(FIRST) == count


def test_a_store_discards_what_is_staged_after_its_time(tmp_path: Path) -> None:
    quick = ("--staged-hours", "0.001")
    with Dafka("up", *ANY_PORTS, "--dir", str(tmp_path / "s"), *quick) as store:
        facts = store.ready()
        tp = TopicPartition("t", FIRST)
        with StoreClient(StoreLocation(facts["address"], tuple(facts["flight"]))) as client:
            with client.put(tp, 0, attempt="A" * 32, timeout_s=PATIENCE_S) as writing:
                writing.write(pa.array([b"x"], pa.binary()))
                assert writing.finish(PATIENCE_S) == 1
            assert [each.tp for each in client.staged(timeout_s=PATIENCE_S)] == [tp]
            wait_until(lambda: not client.staged(timeout_s=PATIENCE_S))
        line = store.err.next()
        while line is not None and b"discarded what was staged in 1 partitions" not in line:
            line = store.err.next()
        assert line is not None


def test_lag_of_queries_and_of_one(filled: str) -> None:
    assert run("lag", "--tower", filled).stdout == b""
    asked = run("lag", "hourly", "--tower", filled)
    assert (asked.returncode, sentence(asked)) == (
        1,
        "query 'hourly' has not reported its lag (there are no queries that have)",
    )
    report = QueryProgress("hourly", "r1", 60, ("one",)).at({TopicPartition("one", FIRST): 1})
    with Reader(tower=filled) as reader:
        wait_until(reader.endpoints)
        ((store, locations),) = reader.endpoints().items()
    with StoreClient(StoreLocation(store, locations)) as client:
        publish([client], QUERIES_TOPIC, report, timeout_s=PATIENCE_S)
        asked = run("lag", "--tower", filled, "--json")
        (row,) = map(json.loads, asked.stdout.splitlines())
        assert asked.stderr == b""
        assert 0 <= row.pop("reported_s") < PATIENCE_S
        assert 0 < row.pop("seconds_behind") < PATIENCE_S
        assert 0 < row.pop("bytes_behind") < 1_000
        assert row == {
            "query": "hourly",
            "run": "r1",
            "state": "running",
            "partitions": 2,
            "records_behind": 3,
        }
        of_one = listed(run("lag", "hourly", "--tower", filled))
        assert [row[:6] for row in of_one] == [
            ["r1", "one", FIRST, "1", "1", "0"],
            ["r1", "one", SECOND, "0", "3", "3"],
        ]
        asked = run("lag", "hourl", "--tower", filled)
        assert "did you mean 'hourly'?" in sentence(asked)
        for run_id in ("r2", "r1"):
            other = QueryProgress("hourly", run_id, 60, ("one",))
            publish([client], QUERIES_TOPIC, other, timeout_s=PATIENCE_S)
        both = run("lag", "--tower", filled)
        assert "2 queries report as 'hourly': give each query a unique name" in sentence(both)
        ended = QueryProgress("hourly", "r3", 1e-6, ("one",), finished=True)
        publish([client], QUERIES_TOPIC, ended, timeout_s=PATIENCE_S)
        assert listed(run("lag", "--tower", filled))[0][:3] == ["hourly", "r3", "finished"]


def test_groups_and_the_partitions_of_one(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "one", "1" * 32) as store:
        at = ("--stores", store.location.locations[-1])
        none = run("groups", *at)
        assert (none.returncode, none.stdout) == (0, b"")
        assert b"no consumer group has committed, or has members" in none.stderr
        kept.keep(store)
        asked = succeed("groups", *at, "--json")
        group, idle = map(json.loads, asked.stdout.splitlines())
        assert group.pop("seconds_behind") >= 0
        assert 600 <= group.pop("bytes_behind") < 800
        expected = {"group": "g", "state": "stable", "members": 1, "partitions": 4}
        assert group == {**expected, "records_behind": 6}
        assert (idle["group"], idle["state"], idle["records_behind"]) == ("idle", "empty", 0)
        asked = run("groups", "g", *at)
        first, *_, last = listed(asked)
        assert first[:6] == ["t", "0", kept.FIRST.partition, "4", "10", "6"]
        assert first[-3:] == ["app-1", "app", "10.0.0.7"]
        assert last == ["t", "7", *["-"] * 9]
        assert "unknown group 'gg' (there are 'g', 'idle')" in refusal(1, "groups", "gg", *at)


def test_stores_of_which_none_answers_are_an_error_and_no_empty_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        StoreDouble(tmp_path / "one", "1" * 32) as one,
        StoreDouble(tmp_path / "two", "2" * 32) as two,
    ):
        both = nullcontext([one.client(), two.client()])
        monkeypatch.setattr(StoreFinder, "clients", lambda _: both)
        two.stop()
        inspect_commands.stores(timeout_s=5.0, uris="")
        assert capsys.readouterr().out.splitlines()[1].startswith("1" * 32)
        one.stop()
        with pytest.raises(StoreUnreachableError, match="2" * 32):
            inspect_commands.stores(timeout_s=5.0, uris="")

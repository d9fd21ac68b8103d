"""``dafka retain``, ``trim`` and ``delete``, on two stores."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import EmbeddedCluster
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.testing import StoreDouble, wait_until
from tests.forked import ForkedCluster
from tests.integration.cli.processes import json_lines, refusal, run, sentence, succeed


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with ForkedCluster(stores=2) as running:
        yield running


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreDouble]:
    with StoreDouble(tmp_path_factory.mktemp("store"), "1" * 32) as store:
        store.log.append([RecordBatch.of(TopicPartition("flights", "AB12"), 0, [b"x"] * 5)])
        yield store


def asked(cluster: EmbeddedCluster, *arguments: str) -> list[dict[str, Any]]:
    return json_lines(*arguments, "--json", "--tower", cluster.tower)


def published(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    given = b"".join(b"%d\n" % number for number in range(count))
    succeed("produce", topic, "--acks", "2", "--tower", cluster.tower, given=given)


def held(cluster: EmbeddedCluster, topic: str) -> list[tuple[int, int]]:
    """At each store."""
    found = []
    for index in range(2):
        uri = next(each for each in cluster.locations(index) if each.startswith("grpc://"))
        listed = run("heads", topic, "--json", "--stores", uri)
        rows = [json.loads(line) for line in listed.stdout.splitlines()]
        found += [(row["earliest"], row["next"]) for row in rows]
    return found


def test_rules_are_shown_and_set_at_all_stores_and_kept(cluster: EmbeddedCluster) -> None:
    before = asked(cluster, "retain")
    assert [(row["rules"], row["by"]) for row in before] == [("none", "option")] * 2
    now = asked(cluster, "retain", "flights*=7d,10GiB", "*=forever")
    assert [row["rules"] for row in now] == ["flights*=1w,10GiB *=forever"] * 2
    cluster.kill_store(1)
    cluster.start_store(1)
    wait_until(lambda: len(asked(cluster, "retain")) == 2)
    assert {(row["rules"], row["by"]) for row in asked(cluster, "retain")} == {
        ("flights*=1w,10GiB *=forever", "set")
    }
    again = asked(cluster, "retain", "--reset")
    assert [(row["rules"], row["by"]) for row in again] == [("none", "option")] * 2
    refused = run("retain", "flights", "--tower", cluster.tower)
    assert refused.returncode == 2
    assert "must be PATTERN=AGE|SIZE" in refused.stderr.decode()


def test_a_topic_is_trimmed_and_deleted_at_all_stores(cluster: EmbeddedCluster) -> None:
    published(cluster, "t", 100)
    published(cluster, "other", 10)
    refused = refusal(1, "trim", "t", "--before", "40", "--tower", cluster.tower)
    assert "delete 80 records of topic 't' at 2 stores? Standard input is not" in refused
    assert held(cluster, "t") == [(0, 100)] * 2
    rows = asked(cluster, "trim", "t", "--before", "40", "--yes")
    assert [row["records_given_up"] for row in rows] == [40, 40]
    assert held(cluster, "t") == [(40, 100)] * 2
    nothing = run("trim", "t", "--before", "1h", "--yes", "--tower", cluster.tower)
    assert "no store has such records" in nothing.stderr.decode()
    for before in ("soon", "1h,1GiB"):
        wrong = run("trim", "t", "--before", before, "--tower", cluster.tower)
        assert wrong.returncode == 2
    first, _ = asked(cluster, "delete", "t", "--yes")  # the other may have heard of it already
    assert (first["partitions"], first["records_given_up"]) == (1, 60)
    wait_until(lambda: held(cluster, "t") == [(100, 100)] * 2)
    nothing = run("delete", "t", "--yes", "--tower", cluster.tower)
    assert "no store has records" in nothing.stderr.decode()
    assert held(cluster, "other") == [(0, 10)] * 2
    whole = run("trim", "other", "--before", "end", "--yes", "--tower", cluster.tower)
    assert "new records use the freed space; files do not shrink" in whole.stderr.decode()
    internal = run("delete", "__dafka.queries", "--yes", "--tower", cluster.tower)
    assert "is internal" in sentence(internal)


@pytest.mark.parametrize(
    ("topic", "arguments", "code", "says"),
    [
        ("flights", ("20260131",), 1, "no partition has offset 20260131, the largest end"),
        ("flights", ("9999-01-01T00:00Z",), 2, "is in the future; end deletes all"),
        (
            "flights",
            ("2026-01-31T12:00",),
            2,
            "must be an age such as 7d, a time with a zone such as",
        ),
        ("flights", ("2", "--partition", "AB13"), 1, "no partition 'AB13' (did you mean 'AB12'?)"),
        ("fligths", ("2",), 1, "no store has records of topic 'fligths' (did you mean 'flights'?)"),
    ],
)
def test_what_cannot_be_trimmed_is_refused(
    filled: StoreDouble, topic: str, arguments: tuple[str, ...], code: int, says: str
) -> None:
    uri = filled.location.locations[0]
    done = run("trim", topic, "--yes", "--stores", uri, "--before", *arguments)
    assert (done.returncode, says in sentence(done)) == (code, True), done.stderr
    assert [(info.earliest, info.end) for info in filled.log.partitions()] == [(0, 5)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_offset_counts_that_one_store_has_come_to_though_another_catches_up(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    with ExitStack() as stack:
        stores = [StoreDouble(tmp_path / name, name * 32) for name in "12"]
        for store, count in zip(stores, (10, 5), strict=True):
            stack.enter_context(store)
            store.log.append([RecordBatch.of(TopicPartition("t", "AB12"), 0, [b"x"] * count)])
        uris = ",".join(stores[index].location.locations[0] for index in order)
        beyond = run("trim", "t", "--yes", "--stores", uris, "--before", "11")
        assert "no partition has offset 11, the largest end is 10" in sentence(beyond)
        succeed("trim", "t", "--yes", "--stores", uris, "--before", "8")
        found = [info for store in stores for info in store.log.partitions()]
        assert [(info.earliest, info.end) for info in found] == [(8, 10), (5, 5)]


def test_a_store_that_is_away_deletes_later_and_trims_and_retains_when_it_is_told_again(
    cluster: EmbeddedCluster,
) -> None:
    published(cluster, "t", 10)
    tower = ("--tower", cluster.tower)
    wrong = run("delete", "tt", "--yes", *tower)
    assert (wrong.returncode, sentence(wrong)) == (
        1,
        "no store has records of topic 'tt' (there are 't')",
    )
    _, away_store = cluster.stores
    cluster.kill_store(1)
    cure = f"when it is back, or if it is gone for ever, 'dafka store forget {away_store}'"
    trimmed = run("trim", "t", "--before", "end", "--yes", "--json", *tower)
    assert [json.loads(row)["records_given_up"] for row in trimmed.stdout.splitlines()] == [10]
    assert f"is away, and keeps its records: repeat the command {cure}" in trimmed.stderr.decode()
    rules = run("retain", "*=1d", "--json", *tower)
    assert [json.loads(row)["rules"] for row in rules.stdout.splitlines()] == ["*=1d"]
    assert "is away, and keeps its previous rules" in rules.stderr.decode()
    assert cure in rules.stderr.decode()
    assert (trimmed.returncode, rules.returncode) == (1, 1)
    wrong = run("delete", "tt", "--yes", *tower)
    assert wrong.returncode == 1
    assert "it deletes the topic" not in wrong.stderr.decode()
    away = run("delete", "t", "--yes", "--json", *tower)
    assert "is away: it deletes the topic when it comes back" in away.stderr.decode()
    assert [json.loads(line)["records_given_up"] for line in away.stdout.splitlines()] == [0]
    cluster.start_store(1)
    wait_until(lambda: held(cluster, "t") == [(10, 10)] * 2)
    found = run("doctor", *tower).stdout.decode()
    assert "stores have different retention rules" in found

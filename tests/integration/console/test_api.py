"""The console's answers, from a real cluster, and the records that people write."""

import base64
import http.client
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dafka_console import api, browsing
from dafka_console.api import ConsumerGroups, Producers, audit_ends, audit_trail, audited_queries
from dafka_console.server import Console
from dafka_core import EmbeddedCluster, Producer
from dafka_core.audit import AuditedRange, AuditRecord, chained, partition_of
from dafka_core.errors import (
    ClosedError,
    InvalidRequestError,
    NotAcknowledgedError,
    RecordTooLargeError,
    StoreUnreachableError,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.testing import PATIENCE_S, StoreDouble, wait_until
from tests.integration.console.pages import ask, post, seen
from tests.integration.kafka.groups.kept import FIRST, keep

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = b"<script>alert(1)</script><img src=x onerror=alert(1)>"


def held(console: Console, topic: str) -> list[int]:
    """Return each store's number of records by partition."""
    found = ask(console, "/api/partitions", topic=topic)
    rows = found.json["rows"] if found.status == 200 else []
    return [number for row in rows for number in row["holders"].values()]


def client_of(console: Console, topic: str) -> str:
    client: str = ask(console, "/api/partitions", topic=topic).json["rows"][0]["client"]
    return client


@pytest.fixture
def partition(cluster: EmbeddedCluster, console: Console, dafka_topic: str) -> str:
    """A partition with one value of each kind."""
    values = [
        HOSTILE,
        b'{"a": 1.10}',
        PNG,
        b"\x00\xff",
        None,
        *[b"plain %d" % n for n in range(95)],
    ]
    with Producer(dafka_topic, tower=cluster.tower) as producer:
        for value in values:
            producer.publish(value, b"<b>key", [("h", b"<i>")])
        producer.flush(PATIENCE_S)
        address = producer.address
    wait_until(lambda: held(console, dafka_topic) == [100, 100], "both stores have the records")
    return address


def test_the_cluster_its_topics_and_partitions(
    console: Console, dafka_topic: str, partition: str
) -> None:
    overview = ask(console, "/api/overview").json
    assert (overview["stores"], overview["can_produce"]) == (2, True)
    assert len(overview["stores_listed"]) == 2
    for window in ("10m", "6h", "7d"):
        found = ask(console, "/api/overview", window=window).json
        (at, rate), *_ = found["rates"]
        assert abs(time.time() - at) < 604_800 / 200 + PATIENCE_S
        assert rate >= 0
        assert len(found["byte_rates"]) == len(found["rates"])
        assert ask(console, "/api/topic", topic=dafka_topic, window=window).json["rates"]
    found = ask(console, "/api/topics", find=dafka_topic, internal=0, sort="records", down=1).json
    assert [(row["name"], row["records"]) for row in found["rows"]] == [(dafka_topic, 100)]
    found = ask(console, "/api/partitions", topic=dafka_topic).json
    assert [row["name"] for row in found["rows"]] == [partition]
    assert len(found["rows"][0]["holders"]) == 2
    client = f"{socket.gethostname()}:{os.getpid()}"
    wait_until(lambda: client_of(console, dafka_topic) == client, "the producer's name is known")
    assert ask(console, "/api/partitions", find=client).json["total"] >= 1
    shown = ask(console, "/api/record", topic=dafka_topic, partition=partition, offset=0).json
    assert shown["client"] == client
    assert ask(console, "/api/partitions", most=1).json["total"] >= 1


def test_a_query_without_reports_is_late_and_one_that_ended_by_itself_is_finished(
    console: Console, cluster: EmbeddedCluster, dafka_topic: str, partition: str
) -> None:
    name = f"of {dafka_topic}"
    late = QueryProgress(name, "r", 1e-6, (dafka_topic,))
    location = StoreLocation(cluster.stores[0], cluster.locations())

    def metrics() -> list[str]:
        lines = ask(console, "/metrics").body.decode().splitlines()
        return [line for line in lines if f'query="{name}"' in line]

    with StoreClient(location) as client:
        publish([client], QUERIES_TOPIC, late, timeout_s=PATIENCE_S)
        wait_until(lambda: len(metrics()) >= 2, "the console has the report")
        assert [each.endswith(" 1.0") for each in metrics() if "dafka_query_late" in each] == [True]
        ended = replace(late, finished=True)
        publish([client], QUERIES_TOPIC, ended, timeout_s=PATIENCE_S)

    def states() -> list[str]:
        found = ask(console, "/api/queries").json["queries"]
        return [each["state"] for each in found if each["query"] == name]

    wait_until(lambda: states() == ["finished"], "the console has the report")
    assert metrics() == []


def test_a_query_that_reads_nothing_is_told_from_what_is_written(
    console: Console, cluster: EmbeddedCluster, dafka_topic: str
) -> None:
    name = f"of {dafka_topic}"
    location = StoreLocation(cluster.stores[0], cluster.locations())
    with Producer(dafka_topic, tower=cluster.tower) as producer, StoreClient(location) as client:
        start = {TopicPartition(dafka_topic, producer.address): 0}
        progress = QueryProgress(name, "r", 3600.0, ()).at(start)
        publish([client], QUERIES_TOPIC, progress, timeout_s=PATIENCE_S)

        def is_behind() -> bool:
            producer.publish_many([b"x"] * 100)
            found = ask(console, "/api/queries").json["queries"]
            rows = [each for each in found if each["query"] == name]
            return any(0 <= each["read"] < 0.5 * each["written"] for each in rows)

        # It takes two measurements of the lag; one that takes a second is repeated after 20 s.
        wait_until(is_behind, "the query reads less than is written", 4 * PATIENCE_S)


def test_the_map_has_all_nodes_and_who_is_connected(console: Console) -> None:
    def complete() -> bool:
        found = ask(console, "/api/map").json
        links = [link["connected"] for link in found["links"]]
        kinds = [node["kind"] for node in found["nodes"]]
        return (
            kinds.count("store") == 2
            and kinds.count("console") == 1
            and len(found["towers"]) == 1
            and len(links) >= 3
            and all(links)
        )

    wait_until(complete, "two stores and the console are connected")


def test_records_are_browsed_and_searched_newest_first(
    console: Console, dafka_topic: str, partition: str
) -> None:
    where: dict[str, Any] = {"topic": dafka_topic, "partition": partition}

    def offsets(**parameters: Any) -> list[int]:
        found = ask(console, "/api/records", **where, **parameters).json
        assert found["offsets"] == [0, 100]
        return [row["offset"] for row in found["rows"]]

    rows = ask(console, "/api/records", **where, before=5).json["rows"]
    assert [row["format"] for row in rows] == ["null", "hex", "image", "json", "text"]
    assert rows[-1]["value"] == HOSTILE.decode()
    assert (rows[-1]["key"], rows[-1]["headers"]) == ("<b>key", 1)
    assert offsets(since_us=rows[-1]["time_us"], before=2) == [1, 0]
    assert offsets(since_us=rows[-1]["time_us"] + 10**12) == []
    assert offsets(most=10) == [*range(99, 89, -1)]
    assert offsets(find="PLAIN 9") == [*range(99, 94, -1), 14]
    assert offsets(find="plain", most=2) == [99, 98]
    assert offsets(find="<b>", most=200) == [*range(99, -1, -1)]
    assert offsets(where="value = 'plain 7'") == [12]
    refused = ask(console, "/api/records", **where, where="value ~ 1")
    assert (refused.status, "where" in refused.json["error"]) == (400, True)
    of_topic = ask(console, "/api/records", topic=dafka_topic, most=3, pages=1).json
    assert [row["offset"] for row in of_topic["rows"]] == [99, 98, 97]
    assert (of_topic["offsets"], of_topic["total"], bool(of_topic["more"])) == (None, 100, True)


def test_one_record_is_decoded_and_its_value_is_never_a_page(
    console: Console, dafka_topic: str, partition: str
) -> None:
    where: dict[str, Any] = {"topic": dafka_topic, "partition": partition}
    found = ask(console, "/api/record", **where, offset=0).json
    assert found["value"] == {"format": "text", "text": HOSTILE.decode(), "note": "", "media": ""}
    assert found["headers"][0]["value"]["text"] == "<i>"
    assert (
        ask(console, "/api/record", **where, offset=1).json["value"]["text"] == '{\n  "a": 1.10\n}'
    )
    shown = ask(console, "/api/record", **where, offset=0, format="hex").json["value"]["text"]
    assert shown.startswith("000000  3c 73 63")
    raw = ask(console, "/api/value", **where, offset=0)
    assert raw.body == HOSTILE
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["content-disposition"].startswith("attachment")
    assert raw.headers["content-security-policy"] == "sandbox"
    picture = ask(console, "/api/value", **where, offset=2)
    assert (picture.headers["content-type"], picture.body) == ("image/png", PNG)
    assert (
        ask(console, "/api/value", **where, offset=2, download=1)
        .headers["content-disposition"]
        .startswith("attachment")
    )
    assert ask(console, "/api/value", **where, offset=4).body == b""


@pytest.mark.parametrize(
    ("path", "parameters", "expected"),
    [
        ("topic", {}, "'topic' = None: is required"),
        ("topic", {"topic": "no such\n"}, "no store that answers has records of it"),
        ("topics", {"sort": "recrods"}, "did you mean 'records'"),
        ("overview", {"window": "1h"}, "must be one of 10m, 6h, 7d"),
        ("topics", {"start": "x"}, "must be a whole number"),
        ("topics", {"start": "9" * 50}, "must be a whole number"),
        ("topics", {"start": "--5"}, "must be a whole number"),
        ("records", {"topic": "none"}, "no store that answers has records of it"),
        ("records", {"topic": "t", "more": "gone"}, "search again"),
        ("records", {"topic": "t", "partition": "none"}, "no store that answers has records of it"),
        ("record", {"topic": "t", "partition": "none", "offset": 1}, "no store that answers has"),
        ("query", {"query": "q", "run": "r"}, "it has not reported"),
        ("audit", {"partition": "none"}, "no store that answers has records of it"),
    ],
)
def test_what_is_not_there_is_said(
    console: Console, path: str, parameters: dict[str, Any], expected: str
) -> None:
    found = ask(console, f"/api/{path}", **parameters)
    assert found.status == 400
    assert expected in found.json["error"]


def test_a_record_is_written_by_hand(console: Console, dafka_topic: str) -> None:
    first = post(console, topic=dafka_topic, value="héllo", key="k", headers={"h": "v"})
    assert (first.status, first.json["offset"]) == (200, 0)
    second = post(console, topic=dafka_topic, value="AP8=", encoding="base64")
    assert (second.json["partition"], second.json["offset"]) == (first.json["partition"], 1)
    assert post(console, topic=dafka_topic, value="00 ff", encoding="hex").json["offset"] == 2
    assert post(console, topic=dafka_topic).json["offset"] == 3
    wait_until(lambda: held(console, dafka_topic) == [4, 4], "both stores have all")
    where: dict[str, Any] = {"topic": dafka_topic, "partition": first.json["partition"]}
    rows = ask(console, "/api/records", **where).json["rows"][::-1]
    assert [row["value"] for row in rows] == ["héllo", "00 ff", "00 ff", ""]
    assert [row["key"] for row in rows] == ["k", "", "", ""]
    members = {"topic": dafka_topic, "value": "x", "headers": [("h", "1"), ("h", "2")]}
    twice = ask(console, "/api/produce", "POST", json.dumps(members).encode())
    wait_until(lambda: held(console, dafka_topic) == [5, 5], "both stores have it")
    headers = ask(console, "/api/record", **where, offset=twice.json["offset"]).json["headers"]
    assert [(each["name"], each["value"]["text"]) for each in headers] == [("h", "1"), ("h", "2")]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "t", "value": 5}, "Expected `str"),
        ({"topic": "t", "vale": "x"}, "vale"),
        ({"topic": "t", "value": "@", "encoding": "base64"}, "is no base64"),
        ({"topic": "t", "value": "xyz", "encoding": "hex"}, "is no hex"),
        ({"topic": "__dafka.queries", "value": "x"}, "internal to Dafka"),
        ({"topic": "a\nb", "value": "x"}, "control characters"),
    ],
)
def test_what_cannot_be_written_is_refused(
    console: Console, members: dict[str, Any], expected: str
) -> None:
    found = post(console, **members)
    assert found.status == 400
    assert expected in found.json["error"]


MANY_HEADERS = json.dumps(
    {"topic": "t", "headers": dict.fromkeys(map(str, range(10_000)), "")}
).encode()


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 10_000, MANY_HEADERS])
def test_a_body_that_is_no_record_is_refused(console: Console, body: bytes) -> None:
    assert ask(console, "/api/produce", "POST", body).status == 400


def test_health_is_a_diagnosis_and_the_stores(console: Console) -> None:
    found = ask(console, "/api/health").json
    assert {each["severity"] for each in found["findings"]} <= {"ok", "warning"}
    assert [each["here"] for each in found["stores"]] == [True, True]
    assert found["staged"] == []


def test_health_is_shown_while_a_store_is_going(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(client: StoreClient, *, timeout_s: float) -> None:
        raise StoreUnreachableError(client.location.store, "no connection")

    monkeypatch.setattr(StoreClient, "staged", fail)
    found = ask(console, "/api/health")
    assert (found.status, len(found.json["stores"]), found.json["staged"]) == (200, 2, [])


def test_news_come_with_each_snapshot(console: Console) -> None:
    asking = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
    asking.request("GET", "/events")
    found = asking.getresponse()
    assert found.headers["content-type"].startswith("text/event-stream")
    numbers: list[int] = []
    while len(numbers) < 3:
        line = found.readline()
        if line.startswith(b"data: "):
            numbers.append(json.loads(line[6:])["number"])
    assert numbers == sorted(set(numbers))
    asking.close()


def test_as_many_pages_as_may_be_are_told_news(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MOST_VIEWERS", 0)
    found = ask(console, "/events")
    assert (found.status, "pages are open already" in found.json["error"]) == (503, True)


QUERY = "7090e364-0000-0000-0000-000000000000"


def record(batch: int, previous: bytes) -> bytes:
    ranges = (AuditedRange("out", "A" * 32, batch * 10, batch * 10 + 10, "10:AB"),)
    return AuditRecord(QUERY, batch, 10, ranges, "5e88", chained(previous)).packed()


def test_batches_are_listed_with_their_ranges_and_a_chain_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, tp = [b""], partition_of(QUERY)
    for batch in range(3):
        contents.append(record(batch, contents[-1]))
    with StoreDouble(tmp_path) as store:
        store.append(tp, contents[1:])
        clients, snapshot = [store.client()], seen(store)
        assert audit_ends(snapshot) == {tp: 3}
        (query,) = audited_queries(clients, snapshot)
        assert (query["query"], query["batch"], query["batches"]) == (QUERY, 2, 3)
        rows = audit_trail(clients, snapshot, tp.partition)
        assert [(row["batch"], row["chain"]) for row in rows] == [
            (2, "holds"),
            (1, "holds"),
            (0, "begins"),
        ]
        assert rows[0]["ranges"][0]["start"] == 20
        monkeypatch.setattr(api, "MOST_BATCHES", 2)
        rows = audit_trail(clients, snapshot, tp.partition)
        assert [(row["batch"], row["chain"]) for row in rows] == [(2, "holds"), (1, "holds")]


def test_a_trail_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, tp = partition_of("another"), partition_of(QUERY)
    last = browsing.last

    def read(clients: Any, snapshot: Any, of: TopicPartition, most: int) -> Any:
        if of == damaged:
            raise StoreUnreachableError("S", "a damaged block")
        return last(clients, snapshot, of, most)

    monkeypatch.setattr(browsing, "last", read)
    with StoreDouble(tmp_path) as store:
        store.append(tp, [record(0, b"")])
        store.append(damaged, [record(0, b"")])
        found = audited_queries([store.client()], seen(store))
    shown = {(each["query"], each["batch"]) for each in found}
    assert shown == {(QUERY, 0), (damaged.partition, None)}


def test_a_chain_that_somebody_broke_and_what_is_no_record(tmp_path: Path) -> None:
    tp = partition_of(QUERY)
    first = record(0, b"")
    with StoreDouble(tmp_path) as store:
        store.append(tp, [first, record(1, b"another"), b"<script>", record(2, b"<script>")])
        rows = audit_trail([store.client()], seen(store), tp.partition)
        assert [row["chain"] for row in rows] == ["holds", "no record", "broken", "begins"]
        store.append(tp, [b"noise"])
        assert audited_queries([store.client()], seen(store)) == []


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


def test_a_topic_has_one_partition_however_many_are_written(
    cluster: EmbeddedCluster, dafka_topic: str
) -> None:
    with Producers({"tower": cluster.tower, "max_record_bytes": 4_096}) as producers:
        written = [producers.produce(dafka_topic, b"v", b"k", [("h", b"x")]) for _ in range(2)]
        with pytest.raises(RecordTooLargeError):
            producers.produce(dafka_topic, b"v" * 5_000, None, [])
        written.append(producers.produce(dafka_topic, b"v", None, []))
        assert [offset for _, offset in written] == [0, 1, 2]
        assert len({partition for partition, _ in written}) == 1
    with pytest.raises(ClosedError):
        producers.produce(dafka_topic, b"v", None, [])


def test_few_producers_are_kept(
    cluster: EmbeddedCluster, dafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MOST_PRODUCERS", 1)
    with Producers({"tower": cluster.tower}) as producers:
        first, _ = producers.produce(dafka_topic, b"v", None, [])
        producers.produce(f"{dafka_topic}-2", b"v", None, [])
        assert len(producers._producers) == 1
        again, offset = producers.produce(dafka_topic, b"v", None, [])
        assert (again != first, offset) == (True, 0)


def test_what_no_store_has_is_said(
    cluster: EmbeddedCluster, dafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "ACK_S", 0.2)
    with Producers({"tower": cluster.tower, "max_record_bytes": 4_096}) as producers:
        with pytest.raises(RecordTooLargeError):
            producers.produce(dafka_topic, b"v" * 10_000_000, None, [])
        producers._options["acks"] = 9
        with pytest.raises(NotAcknowledgedError):
            producers.produce(f"{dafka_topic}-2", b"v", None, [])

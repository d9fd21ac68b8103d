"""Facts that ``dafka doctor`` gathers about running clusters, and its findings."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.errors import ConfigError
from dafka_core.flight import server_actions
from dafka_core.model.records import TopicPartition
from dafka_core.ops.checks import check_all
from dafka_core.ops.findings import Finding, Severity, problems
from dafka_core.ops.gathering import gathered
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.cluster.stores import Serve
from tests.spark.c_store import CStore

TIMEOUT_S = 30.0


def diagnosed(tower: str, *topics: str, uris: tuple[str, ...] = ()) -> list[Finding]:
    return check_all(gathered({"tower": tower}, topics, uris, timeout_s=TIMEOUT_S))


def about(findings: list[Finding], subject: str) -> list[tuple[Severity, str]]:
    return [(each.severity, str(each)) for each in findings if each.about == subject]


def warning(findings: list[Finding], subject: str) -> str:
    """Return the only finding about a subject, a warning."""
    ((severity, sentence),) = about(findings, subject)
    assert severity is Severity.WARNING
    return sentence


def publish(tower: str, topic: str) -> None:
    with Producer(topic, tower=tower) as producer:
        producer.publish_many([b"1", b"2"])
        producer.flush(TIMEOUT_S)


def meet(tower: str, *stores: str) -> None:
    """Wait until a node discovers these stores."""
    with Reader(tower=tower) as reader:
        wait_until(lambda: set(stores) <= set(reader.stores()))


def test_a_healthy_cluster_has_no_problem(own: EmbeddedCluster, topic: str) -> None:
    publish(own.tower, topic)
    meet(own.tower, *own.stores)
    found = diagnosed(own.tower, topic)
    assert {each.severity for each in found} == {Severity.OK}, found
    assert [sentence.split()[1] for _, sentence in about(found, "stores")] == sorted(own.stores)
    sentence = f"topic '{topic}' has 1 partition with 2 records"
    assert about(found, "topic") == [(Severity.OK, sentence)]
    assert len(about(found, "files")) == 2
    assert about(found, "clocks") == [(Severity.OK, "the clocks agree within 60 s")]


def test_a_misspelt_topic_has_the_nearest_name(shared: EmbeddedCluster, topic: str) -> None:
    publish(shared.tower, topic)
    for tower, uris in (shared.tower, ()), ("", shared.locations()[-1:]):
        (wrong,) = problems(diagnosed(tower, f"{topic}x", uris=uris))
        assert wrong.sentence == f"no store has topic '{topic}x' (did you mean '{topic}'?)"


def test_the_towers_ports_the_other_way_round(shared: EmbeddedCluster) -> None:
    host, sub, pub = shared.tower.split(":")
    began = time.monotonic()
    (wrong,) = diagnosed(f"{host}:{pub}:{sub}")
    assert wrong.remedy == f"name it as {shared.tower}"
    assert time.monotonic() - began < TIMEOUT_S / 2


def test_one_of_two_towers_is_away(shared: EmbeddedCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = diagnosed(f"{shared.tower},127.0.0.1:{port}:{port}")
    assert [severity for severity, _ in about(found, "tower")] == [Severity.OK, Severity.WARNING]
    assert not problems(found)


def test_a_tower_without_stores_and_one_with_c_stores_alone(topic: str) -> None:
    with ForkedCluster(stores=0) as cluster:
        facts = gathered({"tower": cluster.tower}, [topic], timeout_s=TIMEOUT_S)
        (wrong,) = problems(check_all(facts))
        assert wrong.sentence == "the tower reports no other node, but no store"
        with CStore(cluster.tower, topic, [b"1", b"2", b"3"], ()) as store:
            meet(cluster.tower, store.partition)
            found = diagnosed(cluster.tower, topic)
    assert not problems(found)
    assert warning(found, "stores").startswith(f"store {store.partition} is a C node")
    assert about(found, "topic")[0][1] == f"topic '{topic}' has 1 partition with 3 records"


def test_stores_without_flight_and_stores_that_are_away(own: EmbeddedCluster) -> None:
    """One of three stores is killed, one has no Flight server."""
    own.start_store(2, flight_port="off")
    first, second, without = own.stores[0], own.stores[1], own.stores[-1]
    meet(own.tower, first, second, without)
    own.kill_store(1)
    found = diagnosed(own.tower)
    severities = {sentence.split()[1]: severity for severity, sentence in about(found, "stores")}
    assert severities.pop(first) is Severity.OK
    assert severities == dict.fromkeys((second, without), Severity.WARNING)
    assert not problems(found)


def test_a_store_whose_clock_is_hours_ahead(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_ns = 3 * 3_600 * 10**9
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + ahead_ns, monotonic=time.monotonic)
    monkeypatch.setattr(server_actions, "time", clock)
    store = serve("one")
    found = diagnosed("", uris=store.location.locations[-1:])
    sentence = f"the clock of store {store.address} is 3.0 h ahead of this machine"
    assert warning(found, "clocks").startswith(sentence)


def test_a_store_of_an_older_version(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [each for each in server_actions.descriptions() if each[0] != "dafka.sizes.v1"]
    monkeypatch.setattr(server_actions, "descriptions", lambda: known)
    store = serve("one")
    store.add(TopicPartition("flights", "AB12"), 5)
    found = diagnosed("", "flights", uris=store.location.locations[-1:])
    lacks = "it lacks dafka.sizes.v1; upgrade it"
    assert lacks in warning(found, "versions")
    sentence = "topic 'flights' has 1 partition with 5 records"
    assert about(found, "topic") == [(Severity.OK, sentence)]


def test_addresses_that_are_not_those_of_stores(shared: EmbeddedCluster) -> None:
    """A tower's port, and a port without a server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"grpc://127.0.0.1:{server.getsockname()[1]}"
    tower = f"grpc://127.0.0.1:{shared.tower.rsplit(':', 1)[1]}"
    first, second = problems(diagnosed("", "t", uris=(tower, free)))
    assert first.sentence.endswith("another program responds with 'ZeroMQ XPUB'")
    assert first.lasts
    assert second.sentence.startswith(f"{free} does not respond by Arrow Flight: ")
    assert not second.lasts


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(ConfigError):
        gathered({"tower": "host:x"})

"""What is gathered from a cluster and found wrong with it, and the start of a query."""

import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.config.node_options import NO_KEYS, keys_in
from dafka_core.errors import ConfigError, NoStoreError, TowerNotFoundError
from dafka_core.flight import server_requests
from dafka_core.flight.store_location import SESSION_FILE
from dafka_core.ops import port_probe
from dafka_core.ops.checks import FileAccess, StoreFacts, check_all
from dafka_core.ops.findings import Finding, Severity, problems
from dafka_core.ops.gathering import asked, gathered
from dafka_core.testing import StoreDouble, wait_until
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_coordinator import pick_store
from tests.forked import ForkedCluster
from tests.integration.cluster.stores import A, Batch, Logged, Patch, Served
from tests.integration.nodes.locked import Keys

TIMEOUT_S = 30.0
OK, WARNING = Severity.OK, Severity.WARNING


def diagnosed(tower: str, *topics: str, uris: tuple[str, ...] = ()) -> list[Finding]:
    return check_all(gathered({"tower": tower}, topics, uris, timeout_s=TIMEOUT_S))


def about(findings: list[Finding], subject: str) -> list[tuple[Severity, str]]:
    return [(each.severity, str(each)) for each in findings if each.about == subject]


def publish(tower: str, topic: str) -> None:
    with Producer(topic, tower=tower) as producer:
        producer.publish_many([b"1", b"2"])
        producer.flush(TIMEOUT_S)


def meet(tower: str, *stores: str) -> None:
    """Wait until a node discovers these stores."""
    with Reader(tower=tower) as reader:
        wait_until(lambda: set(stores) <= set(reader.stores()))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_a_healthy_cluster_has_no_problem(own: EmbeddedCluster, topic: str) -> None:
    publish(own.tower, topic)
    meet(own.tower, *own.stores)
    found = diagnosed(own.tower, topic)
    assert {each.severity for each in found} == {OK}, found
    assert [sentence.split()[1] for _, sentence in about(found, "stores")] == sorted(own.stores)
    assert about(found, "topic") == [(OK, f"topic '{topic}' has 1 partition with 2 records")]
    assert len(about(found, "files")) == 2
    assert about(found, "clocks") == [(OK, "the clocks agree within 60 s")]
    # One of three stores is killed, one has no Flight server.
    own.start_store(2, flight_port="off")
    first, second, without = own.stores
    meet(own.tower, first, second, without)
    own.kill_store(1)
    found = diagnosed(own.tower)
    severities = {sentence.split()[1]: severity for severity, sentence in about(found, "stores")}
    assert severities == {first: OK, second: WARNING, without: WARNING}
    assert not problems(found)


def test_wrong_names(shared: EmbeddedCluster, topic: str) -> None:
    """A misspelt topic, swapped ports of a tower, and addresses that are not those of stores."""
    publish(shared.tower, topic)
    host, sub, pub = shared.tower.split(":")
    for tower, uris in (shared.tower, ()), ("", shared.locations()[-1:]):
        (wrong,) = problems(diagnosed(tower, f"{topic}x", uris=uris))
        assert wrong.sentence == f"no store has topic '{topic}x' (did you mean '{topic}'?)"
    (wrong,) = diagnosed(f"{host}:{pub}:{sub}")
    assert wrong.remedy == f"name it as {shared.tower}"
    free = f"grpc://127.0.0.1:{free_port()}"
    first, second = problems(diagnosed("", "t", uris=(f"grpc://{host}:{pub}", free)))
    assert first.sentence.endswith("another program responds with 'ZeroMQ XPUB'")
    assert first.lasts
    assert second.sentence.startswith(f"{free} does not respond by Arrow Flight: ")
    assert not second.lasts
    with pytest.raises(ConfigError):
        gathered({"tower": "host:x"})


def test_a_tower_without_stores(empty: EmbeddedCluster, topic: str) -> None:
    (wrong,) = problems(diagnosed(empty.tower, topic))
    assert wrong.sentence == "the tower reports no other node and no store"


def test_a_store_with_a_wrong_clock_or_of_an_older_version(one: Served, patch: Patch) -> None:
    ahead_ns = 3 * 3_600 * 10**9
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + ahead_ns, monotonic=time.monotonic)
    patch.setattr(server_requests, "time", clock)
    known = [each for each in server_requests.descriptions() if each[0] != "dafka.sizes.v1"]
    patch.setattr(server_requests, "descriptions", lambda: known)
    found = diagnosed("", "t", uris=one.location.locations[-1:])
    ((severity, sentence),) = about(found, "clocks")
    assert severity is WARNING
    assert f"the clock of store {one.address} is 3.0 h ahead of this machine" in sentence
    ((severity, sentence),) = about(found, "versions")
    assert severity is WARNING
    assert "it lacks dafka.sizes.v1; upgrade it" in sentence
    assert about(found, "topic") == [(OK, "topic 't' has 1 partition with 5 records")]


# -- one store by Arrow Flight ---------------------------------------------------------------------


def probed(known: StoreFacts) -> StoreFacts:
    ((facts, _),) = asked([known], [], TIMEOUT_S, NO_KEYS)
    return facts


def test_a_store_reports_all_facts(one: Served) -> None:
    known = StoreFacts(one.address, locations=one.location.locations)
    ((facts, heads),) = asked([known], None, TIMEOUT_S, NO_KEYS)
    assert (facts.failure, facts.lacks, facts.more) == ("", (), ())
    assert facts.ahead_s is not None
    assert abs(facts.ahead_s) <= facts.unsure_s + 0.1  # it is this machine's clock
    assert facts.file is FileAccess.READABLE
    assert [(info.tp, info.end) for info in heads] == [(A, 5)]
    uri = one.location.locations[-1]
    named = probed(StoreFacts(uri, locations=(uri,)))
    assert (named.store, named.locations) == (one.address, (uri,))
    # As in a container, where the directory has the same name.
    (one.directory / SESSION_FILE).write_text("another", "ascii")
    assert probed(known).file is FileAccess.UNREADABLE


def test_a_key_without_permission_for_some_facts_gets_the_others(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    with StoreDouble(tmp_path / "store", keys=keys_in(keys.of("store"))) as store:
        known = StoreFacts(store.address, locations=store.location.locations)
        ((facts, _),) = asked([known], None, TIMEOUT_S, keys_in(keys.of("tower")))
    assert (facts.failure, facts.rules) == ("", None)
    assert facts.ahead_s is not None


def test_stores_without_an_answer(one: Served) -> None:
    replaced = probed(StoreFacts("ANOTHER", locations=one.location.locations))
    assert "store ANOTHER was meant" in replaced.failure
    gone = StoreFacts(one.address, locations=one.location.locations[-1:])
    one.stop()
    without = StoreFacts("B")
    (first, _), (second, _) = asked([gone, without], [], TIMEOUT_S, NO_KEYS)
    assert "refused" in first.failure.lower()
    assert first.stranger == ""
    assert second == without
    assert asked([], [], TIMEOUT_S, NO_KEYS) == []


LONG_MS = "60000"  # enough on a busy machine for everything that a test waits for


def planned(**given: str) -> object:
    options = {"subscribePattern": "none.*", "fetchTimeoutMs": LONG_MS, **given}
    return Batch(**options).partitions()


def written(**given: str) -> object:
    options = {"topic": "t", "deliveryTimeoutMs": LONG_MS, **given}
    return pick_store(SinkOptions.of(options))


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """A thread that has ended when the test has."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def empty() -> Iterator[EmbeddedCluster]:
    with ForkedCluster(stores=0) as cluster:
        yield cluster


@pytest.fixture
def dead_tower() -> str:
    """Return a tower's address where no program listens."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return f"127.0.0.1:{one.getsockname()[1]}:{two.getsockname()[1]}"


# -- towers ----------------------------------------------------------------------------------------


def test_a_healthy_start_probes_no_port(shared: EmbeddedCluster, patch: Patch) -> None:
    def probed(*_: object) -> None:
        raise AssertionError("a port was probed")

    patch.setattr(port_probe, "probed", probed)
    assert planned(tower=shared.tower, **{"dafka.peer_expiry_ms": "4001"}) == []


def test_a_wrong_tower_fails_at_once(shared: EmbeddedCluster) -> None:
    host, sub, pub = shared.tower.split(":")
    flight = shared.locations()[-1].rsplit(":", 1)[1]
    stranger = f"another program than a tower listens at {host}:{flight} (it sends 'HTTP/2')"
    for wrong, reason in (
        (f"{pub}:{sub}", f"are swapped; name it as {shared.tower}"),
        (f"{flight}:{flight}", stranger),
    ):
        with pytest.raises(TowerNotFoundError, match=re.escape(reason)) as caught:
            planned(tower=f"{host}:{wrong}", **{"dafka.tower_timeout_s": "60"})
        assert caught.value.waited_s < 30


@pytest.mark.parametrize("how", [{"dafka.tower_timeout_s": "60"}, {"dafka.wait_for_tower": "true"}])
def test_a_query_waits_for_a_tower(
    empty: EmbeddedCluster, logged: Logged, thread: ThreadPoolExecutor, how: dict[str, str]
) -> None:
    tower = empty.tower
    empty.kill_tower()
    query = thread.submit(planned, tower=tower, **how)
    wait_until(lambda: logged.messages)
    empty.start_tower()
    empty.start_store()
    assert query.result() == []
    why = f"nothing listens at {tower}; start one there with 'dafka tower'"
    assert logged.text.startswith(why)
    assert logged.text.count("The query retries until") == 1


def test_a_query_without_a_tower_fails(dead_tower: str, logged: Logged) -> None:
    with pytest.raises(TowerNotFoundError) as caught:
        planned(tower=dead_tower, **{"dafka.tower_timeout_s": "1.5"})
    assert str(caught.value).startswith(f"no tower answered at {dead_tower} within ")
    assert f" s: nothing listens at {dead_tower}; start one there" in str(caught.value)
    assert len(logged.messages) == 1


def test_a_wrong_port_of_a_tower_is_reported(
    shared: EmbeddedCluster, empty: EmbeddedCluster, dead_tower: str, logged: Logged
) -> None:
    """Stores that are discovered but do not connect are read by Arrow Flight."""
    wrong = dead_tower.split(":")[1]
    host, _, pub = shared.tower.split(":")
    assert planned(tower=f"{host}:{wrong}:{pub}") == []
    assert f"nothing listens at {host}:{wrong}; name the" in logged.text
    # The port of another program, and no store that could connect.
    pub = empty.tower.split(":")[2]
    with pytest.raises(NoStoreError) as caught:
        planned(tower=f"{host}:{pub}:{pub}")
    other = f"another ZeroMQ program listens at {host}:{pub}, with a socket XPUB"
    assert other in str(caught.value)
    assert caught.value.waited_s < 30


# -- stores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [planned, written])
def test_a_start_waits_for_a_store(
    empty: EmbeddedCluster, logged: Logged, thread: ThreadPoolExecutor, use: Callable[..., object]
) -> None:
    query = thread.submit(use, tower=empty.tower)
    wait_until(lambda: logged.messages)
    empty.start_store()
    query.result()
    (once,) = [each for each in logged.messages if each.startswith("the tower reports")]
    assert "reports no other node and no store; start one with 'dafka store --dir DIR'" in once
    assert once.endswith(". The query waits for up to 60 s")


@pytest.mark.parametrize("fetch", ["auto", "mesh"])
def test_a_query_without_a_store_fails(empty: EmbeddedCluster, fetch: str) -> None:
    with pytest.raises(NoStoreError) as caught:
        planned(tower=empty.tower, fetch=fetch, fetchTimeoutMs="2500")
    assert "s: the tower reports no other node and no store; start" in str(caught.value)
    assert caught.value.waited_s >= 2.5


def test_option_stores_with_another_program_fails_at_once(shared: EmbeddedCluster) -> None:
    port = shared.tower.rsplit(":", 1)[1]
    for use in (planned, written):
        with pytest.raises(NoStoreError) as caught:
            use(stores=f"grpc://127.0.0.1:{port}")
        assert "responds with 'ZeroMQ XPUB'; use the store's" in str(caught.value)
        assert caught.value.waited_s < 30


def test_a_write_with_too_few_stores_fails(shared: EmbeddedCluster, logged: Logged) -> None:
    with pytest.raises(ConfigError, match="option 'acks' = 2: there are only 1 stores"):
        written(tower=shared.tower, acks="2", deliveryTimeoutMs="4000")
    (once,) = [each for each in logged.messages if "The query waits for up to 4 s" in each]
    assert "start more of them, or lower acks" in once

"""Queries that name topics, partitions or stores that are missing."""

import json

import pytest

from dafka_core import EmbeddedCluster, Producer
from dafka_core.errors import ConfigError
from dafka_core.model.records import KnownStore, TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.cluster.stores import A, Batch, Logged, Mesh, Serve, Served
from tests.memory_reader import MemoryReader
from tests.unit.dafka_spark.streams import ALL, everything, planned, reader

BAD = r"bad\xff"


@pytest.fixture
def one(serve: Serve) -> Served:
    store = serve("one")
    for topic, name in (("flights", "AB12"), ("bad\udcff", "AB1\n"), ("sensors", "CD34")):
        store.add(TopicPartition(topic, name), 5)
    return store


def sizes(mesh: Mesh, **given: str) -> dict[str, int]:
    """Return the number of records in the plan of a batch, by topic."""
    ranges = Batch(mesh, **{"fetchTimeoutMs": "20000", **given}).ranges()
    return {each.topic: each.size for each in ranges}


def test_an_unknown_name_fails_a_batch(mesh: Mesh) -> None:
    """The error suggests the nearest name, as users write it."""
    has_topic, has_partition = "no store has topic", "no store has partition"
    odd = json.dumps({BAD: [r"AB1\x0d"]})
    for option, value, error in (
        ("subscribe", "fligths", f"{has_topic} 'fligths' (did you mean 'flights'?)"),
        ("subscribe", "flights,x", f"{has_topic} 'x' (there are '{BAD}', 'flights', 'sensors')"),
        ("subscribe", r"bda\xff", rf"{has_topic} 'bda\xff' (did you mean '{BAD}'?)"),
        ("assign", '{"sensor": ["CD34"]}', f"{has_topic} 'sensor' (did you mean 'sensors'?)"),
        (
            "assign",
            '{"flights": ["AB13"]}',
            f"{has_partition} AB13 of topic 'flights' (did you mean 'AB12'?)",
        ),
        ("assign", odd, rf"{has_partition} AB1\x0d of topic '{BAD}' (did you mean 'AB1\x0a'?)"),
    ):
        with pytest.raises(ConfigError) as caught:
            sizes(mesh, **{option: value})
        text = str(caught.value)
        assert error in text
        assert f"option {option!r}" in text
        assert "failOnMissingTopic = false reads it as empty" in text


def test_an_unknown_name_is_wrong_before_its_bounds_or_read_as_empty(mesh: Mesh) -> None:
    with pytest.raises(ConfigError, match="did you mean 'flights'"):
        sizes(mesh, subscribe="fligths", startingOffsets='{"fligths": {"AB12": 3}}')
    assert sizes(mesh, subscribe="flights,none", failOnMissingTopic="false") == {"flights": 5}
    assert sizes(mesh, subscribePattern="none.*") == {}


def test_an_error_lists_ten_names(serve: Serve) -> None:
    store = serve("one")
    for number in range(13):
        store.add(TopicPartition(f"{number:02}", "A"), 1)
    with pytest.raises(ConfigError, match=r"there are '00', .*'09' and 3 more\); failOn"):
        sizes(Mesh([store]), subscribe="flights")


def test_a_stream_waits_and_warns_once(one: Served, mesh: Mesh, logged: Logged) -> None:
    stream = reader(mesh, subscribe="fligths")
    begin = stream.initialOffset()
    for _ in range(3):
        assert stream.latestOffset(begin, ALL) == begin
    assert logged.messages == [
        "no store has topic 'fligths' (did you mean 'flights'?); it is empty until a store has it"
    ]
    one.add(TopicPartition("fligths", "A"), 2)
    assert planned(stream, begin, stream.latestOffset(begin, ALL)) == {("A", 0, 2)}


@pytest.mark.parametrize(
    ("given", "ends"),
    [({"subscribe": "fligths"}, True), ({"assign": '{"flights": ["AB13"]}'}, False)],
)
def test_a_stream_that_ends_or_names_partitions_fails(
    mesh: Mesh, given: dict[str, str], *, ends: bool
) -> None:
    strict, lenient = (reader(mesh, **given, failOnMissingTopic=each) for each in ("true", "false"))
    if ends:
        for stream in (strict, lenient):
            stream.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match=r"did you mean .*failOnMissingTopic = false"):
        everything(strict)
    assert everything(lenient)["topics"] == {}


def test_an_unknown_partition_of_a_bound(mesh: Mesh, logged: Logged) -> None:
    """A job that was written for Kafka may name numbers: all records would be read instead."""
    named = {"subscribe": "flights", "startingOffsets": '{"flights": {"AB13": -1}}'}
    error = r"'startingOffsets' = 'AB13': no store has partition AB13 .* mean 'AB12'\?\); failOn"
    strict, waiting = (reader(mesh, **named) for _ in range(2))
    strict.prepareForTriggerAvailableNow()
    for use in (lambda: sizes(mesh, **named), lambda: everything(strict)):
        with pytest.raises(ConfigError, match=error):
            use()
    assert sizes(mesh, **named, failOnMissingTopic="false") == {"flights": 5}
    first = everything(waiting)
    warning = "option startingOffsets: no store has partition AB13 of topic 'flights' (did you mean"
    assert logged.messages == [f"{warning} 'AB12'?); it is empty until a store has it"] * 2
    assert strict.latestOffset(first, ALL) == first  # only the start of a query is checked


def test_a_checkpointed_topic_may_only_be_away(mesh: Mesh) -> None:
    stream = reader(mesh, subscribe="gone")
    stream.prepareForTriggerAvailableNow()
    begin = SourceOffset({TopicPartition("gone", "A"): 0}).as_json()
    assert stream.latestOffset(begin, ALL) == begin


def test_a_batch_names_the_unreachable_store(own: EmbeddedCluster, logged: Logged) -> None:
    """Only it has the last 100 of 400 records."""

    def publish(count: int, acks: int) -> None:
        with Producer("t", tower=own.tower, acks=acks) as producer:
            producer.publish_many([b"x"] * count)
            producer.flush(PATIENCE_S)

    def size(**given: str) -> int:
        return sum(each.size for each in Batch(tower=own.tower, **given).ranges())

    publish(300, acks=2)
    own.kill_store(0)
    publish(100, acks=1)
    (gone,) = own.stores
    own.kill_store(1)
    own.start_store(0)
    assert size() == 300
    assert f"store {gone} (tcp://127.0.0.1:" in logged.text
    assert "is away: records that only it has are missing from this result" in logged.text
    for least in ("all", "2"):
        with pytest.raises(ConfigError, match=f"'minStores' = .*: 1 store.*{gone}"):
            size(minstores=least)
    assert size(minstores="1") == 300
    own.start_store(1)
    wait_until(lambda: size() == 400, "all records are found")
    logged.clear()
    assert size(minstores="all") == 400
    assert gone not in logged.text


def test_a_stream_names_it_once(logged: Logged) -> None:
    mesh = MemoryReader({A: 5})
    mesh.away = [KnownStore("S" * 32, "tcp://h:1", 1)]
    stream = reader(mesh, fetch="mesh")
    start = stream.initialOffset()
    for _ in range(3):
        start = stream.latestOffset(start, ALL)
    assert logged.text.count(f"store {'S' * 32} (tcp://h:1") == 1
    with pytest.raises(ConfigError, match="away: store SSSS"):
        everything(reader(mesh, fetch="mesh", minStores="all"))

"""Records that clients put into a store, and the requests of peers that it answers."""

import logging

import pytest

from dafka_core.errors import OffsetConflictError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.nodes import store_loop
from dafka_core.protocol import messages as m
from dafka_core.protocol import store_requests
from dafka_core.protocol.role import Outgoing
from tests.simulation.scripts.script import Script, ScriptedStore, tp_of, values
from tests.unit.protocol.model import batches_in

TP = tp_of("p")
PEER = "C" * 32


@pytest.fixture
def store(world: Script) -> ScriptedStore:
    return world.store()


def heads_in(messages: list[Outgoing]) -> list[Outgoing]:
    return [each for each in messages if isinstance(each, m.DirectHead)]


def test_puts_that_never_reach_the_log_fail_and_can_be_repeated(
    world: Script, store: ScriptedStore
) -> None:
    """The log refuses an earlier batch, so the role drops those that follow it."""
    first, second = (
        store.submit(RecordBatch.of(TP, at, values(count, at))) for at, count in ((0, 10), (10, 5))
    )
    other = store.submit(RecordBatch.of(TP._replace(topic="u"), 0, values(3)))
    refused = RecordBatch.of(TP, 0, values(10))
    store.call(lambda now: store.role.on_stored([refused], [OffsetConflictError(*TP, 0, 0)]))
    for put, offset in ((first, 0), (second, 10)):
        with pytest.raises(OffsetConflictError) as caught:
            world.result(put)
        assert (caught.value.offset, caught.value.end) == (offset, 0)
    assert world.result(other) == 3
    assert store.append(TP, 0, 10) == 10
    assert store.values(TP) == values(10)


def test_a_put_fails_if_another_history_replaces_its_records(
    world: Script, store: ScriptedStore
) -> None:
    """While they are on their way to the disk."""
    put = store.submit(RecordBatch.of(TP, 0, values(10)))
    world.until(lambda: store.role.next_offset(TP) == 10, step_s=1e-4)
    assert store.busy
    history = (Epoch.first(EpochId(2**31, 1, 1)),)
    store.ask(m.HistoryReply(store.address, 0, PEER, *TP, 9, NO_LIFE, history))
    with pytest.raises(OffsetConflictError) as caught:
        world.result(put)
    assert (caught.value.offset, caught.value.end) == (0, 0)


@pytest.mark.parametrize("most", [2, 8_192])
def test_a_store_answers_get_heads_hello_and_fetch(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """With any limit of entries in an answer, or records in a round."""
    monkeypatch.setattr(store_requests, "MAX_REPLY_ENTRIES", most)
    monkeypatch.setattr(store_loop, "SERVE_COUNT", most)
    tps = [TopicPartition(topic, f"P{i}") for topic in ("t", "u") for i in range(6)]
    for tp in tps:
        store.append(tp, 0, 10)
    asked: list[tuple[m.Message, list[TopicPartition]]] = [
        (m.GetHeads("t", PEER), tps[:6]),
        (m.GetHeads("", PEER), tps),  # as C stores ask: for all topics
        (m.ConsumerHello(store.address, PEER, ("u", "none", "t")), tps[6:] + tps[:6]),
    ]
    for message, expected in asked:
        assert heads_in(store.ask(message)) == [m.DirectHead(PEER, *tp, 9) for tp in expected]
    for sequence, count, numbers in ((3, 4, range(3, 7)), (8, 100_000, (8, 9)), (0, 1, (0,))):
        sent = store.ask(m.Fetch(PEER, "t", "P1", sequence, count), m.GetHeads("t", PEER))
        found = [(each.batch, each.requestor) for each in batches_in(sent)]
        assert [(*each.tp, n) for each, _ in found for n in range(each.offset, each.end)] == [
            (*tps[1], n) for n in numbers
        ]
        assert [value for each, _ in found for value in each.values] == [b"%d" % n for n in numbers]
        assert {requestor for _, requestor in found} == {PEER}


@pytest.mark.parametrize(("count", "next_heads"), [(11, 0), (10, 1)])
def test_a_requestor_of_a_part_receives_the_next_head(
    store: ScriptedStore, count: int, next_heads: int
) -> None:
    """C nodes fetch the next block when they receive a head again."""
    store.append(TP, 0, 11)
    sent = store.ask(m.Fetch(PEER, *TP, 0, count))
    assert [each.batch.count for each in batches_in(sent)] == [count]
    assert heads_in(sent) == [m.DirectHead(PEER, *TP, 10)] * next_heads


def test_records_after_missing_ones_do_not_answer_a_fetch(store: ScriptedStore) -> None:
    store.append(TP, 0, 10)
    store.log.trim(TP, 5)
    assert batches_in(store.ask(m.Fetch(PEER, *TP, 0, 10))) == []
    [answer] = batches_in(store.ask(m.Fetch(PEER, *TP, 5, 5)))
    assert (answer.batch.offset, answer.batch.end) == (5, 10)


def batches_of(messages: list[Outgoing]) -> list[RecordBatch]:
    """The batches in the messages with records of many partitions."""
    found = (each for each in messages if isinstance(each, m.DirectRecordBatches))
    return [batch for message in found for batch in message.batches()]


def test_a_fetch_batch_is_answered_in_few_messages(world: Script) -> None:
    held = {
        "A": [b"a0", b"a1"],
        "B": [bytes(300_000)] * 3,
        **{f"P{i}": [b"%d" % i] for i in range(2 * store_loop.SERVE_REQUESTS)},
    }
    with world.log("a") as log:
        log.append([RecordBatch.of(TopicPartition("t", p), 0, held[p]) for p in held])
        log.trim(TopicPartition("t", "P0"), 1)
    store = world.store()
    wanted = [PartitionInfo("t", p, 0, len(held[p])) for p in held]
    wanted.append(PartitionInfo("t", "unknown", 0, 1))
    sent = store.ask(m.FetchBatch(store.address, PEER, tuple(wanted)))
    [large] = batches_in(sent)  # it does not go with others
    assert (large.batch.tp.partition, large.batch.values.to_list()) == ("B", held["B"])
    found = {batch.tp.partition: batch.values.to_list() for batch in batches_of(sent)}
    assert found == {p: held[p] for p in held if p not in ("B", "P0")}
    assert len(batches_of(sent)) == len(found)
    assert len([each for each in sent if isinstance(each, m.DirectRecordBatches)]) == 3


def test_damaged_records_are_never_sent(world: Script, caplog: pytest.LogCaptureFixture) -> None:
    with world.log("a") as log:
        for partition, value in (("bad", b"<needle>"), ("good", b"good")):
            log.append([RecordBatch.of(TopicPartition("t", partition), 0, [value])])
    data = world.directory / "a" / "data.mdb"
    data.write_bytes(data.read_bytes().replace(b"<needle>", b"<NEEDLE>"))
    with caplog.at_level(logging.ERROR, "dafka.store"):
        store = world.store()
        wanted = tuple(PartitionInfo("t", partition, 0, 1) for partition in ("bad", "good"))
        sent = store.ask(m.FetchBatch(store.address, PEER, wanted))
        assert [batch.values.to_list() for batch in batches_of(sent)] == [[b"good"]]
        sent = store.ask(*(m.Fetch(PEER, "t", partition, 0, 1) for partition in ("bad", "good")))
        assert [each.batch.tp.partition for each in batches_in(sent)] == ["good"]
    assert caplog.text.count("topic 't', partition bad") == 2

"""Gateways that announce themselves by real stores, and the choice of one for a key."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dafka_core import Store
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.testing import wait_until
from dafka_kafka import gateways
from dafka_kafka.gateways import (
    GATEWAYS_TOPIC,
    Announcement,
    Gateways,
    node_id,
    ranked,
    retract_former,
)
from dafka_kafka.registry_table import NumberedPartition
from tests.integration.kafka.conftest import OFTEN

Start = Callable[[str], Gateways]


@pytest.fixture
def start(tower: str, tmp_path: Path) -> Iterator[Start]:
    """Start a store and announce its gateway."""
    with ExitStack() as running:

        def make(name: str) -> Gateways:
            store = running.enter_context(Store(tmp_path / name, tower=tower, **OFTEN))
            made = Gateways(store, "127.0.0.1", 9_000 + len(name))
            made.announce()
            return made

        yield make


def addresses(of: Gateways) -> set[str]:
    return {each.address for each in of.live()}


@contextmanager
def returned(one: Gateways, two: Gateways, directory: Path) -> Iterator[Store]:
    """Yield the store of ``two``, which was gone for ``one`` as if killed: nothing is retracted."""
    wait_until(lambda: len(addresses(one)) == 2)
    store = two._store
    options = {name: getattr(store.options, name) for name in ("tower", "sync_interval_ms")}
    store.close()
    wait_until(lambda: len(addresses(one)) == 1)
    with Store(directory, **options) as again:
        yield again


def put(of: Gateways, *contents: bytes) -> None:
    """Append to the partition of a gateway's announcements."""
    store = of._store
    tp = TopicPartition(GATEWAYS_TOPIC, store.address)
    batch = RecordBatch.of(tp, store.log.end(tp), contents)
    store.append_queue.put(batch).result(30)


def test_gateways_find_each_other_and_choose_the_same(start: Start) -> None:
    one, two, three = all_ = start("a"), start("bb"), start("ccc")
    every = {each.own.address for each in all_}
    wait_until(lambda: all(addresses(each) == every for each in all_))
    assert one.live() == two.live() == three.live()
    assert [each.port for each in sorted(one.live(), key=lambda info: info.port)] == [
        9_001,
        9_002,
        9_003,
    ]
    keys = [f"group-{number}" for number in range(100)]
    chosen = [one.chosen(key).address for key in keys]
    assert chosen == [two.chosen(key).address for key in keys]
    assert set(chosen) == every  # all are chosen sometimes


def test_one_that_is_gone_is_not_live_and_its_partitions_have_another_leader(start: Start) -> None:
    one, two, three = start("a"), start("bb"), start("ccc")
    wait_until(lambda: len(addresses(one)) == len(addresses(three)) == 3)
    partitions = [NumberedPartition("t", n, f"P{n}", two.own.address) for n in range(20)]
    assert {one.leader(each) for each in partitions} == {two.own}
    before = {key: one.chosen(key) for key in map(str, range(50))}
    two._store.close()
    wait_until(lambda: addresses(one) == addresses(three) == {one.own.address, three.own.address})
    assert {one.leader(each) for each in partitions} == {one.own, three.own}
    assert all(one.leader(each) == three.leader(each) for each in partitions)
    # Choices of the other gateways stay.
    assert all(one.chosen(key) == was for key, was in before.items() if was != two.own)
    back = start("bb")
    retract_former(back._store)  # as ``dafka store --kafka`` does at its start
    back.announce()
    wait_until(lambda: len(addresses(one)) == 3)
    assert {one.leader(each) for each in partitions} == {back.own}


def test_one_that_has_ended_while_its_store_goes_on_is_not_live(start: Start) -> None:
    one, two = start("a"), start("bb")
    wait_until(lambda: len(addresses(one)) == 2)
    two.retract()
    wait_until(lambda: addresses(one) == {one.own.address})
    two.announce()
    wait_until(lambda: len(addresses(one)) == 2)


def test_one_that_returns_is_live_when_it_announces_itself_anew(
    start: Start, tmp_path: Path
) -> None:
    one, two = start("a"), start("bb")
    with returned(one, two, tmp_path / "bb") as again:
        wait_until(lambda: again.address in one._store.known.here)
        assert addresses(one) == {one.own.address}  # its port is not open yet
        for _ in range(2):  # it says once that the killed one is no more
            retract_former(again)
            assert again.log.end(TopicPartition(GATEWAYS_TOPIC, again.address)) == 2
        Gateways(again, "127.0.0.1", 9_002).announce()
        wait_until(lambda: addresses(one) == {one.own.address, again.address})


def test_one_that_returns_while_it_is_looked_at_is_not_live_by_its_former_announcement(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, two = start("a"), start("bb")
    with returned(one, two, tmp_path / "bb") as again:
        wait_until(lambda: again.address in one._store.known.here)
        tp, end_of = TopicPartition(GATEWAYS_TOPIC, again.address), one._store.log.end

        def retracted(asked: TopicPartition) -> int:
            retract_former(again)
            wait_until(lambda: end_of(tp) == 2)
            return end_of(asked)

        assert addresses(one) == {one.own.address}  # it is away
        monkeypatch.setattr(one._log, "end", retracted)
        assert addresses(one) == {one.own.address}


def test_one_that_was_cut_off_is_live_again_after_a_while(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gateways, "RETURN_S", 0.5)
    one, two = start("a"), start("bb")
    with returned(one, two, tmp_path / "bb") as again:  # it announces nothing
        wait_until(lambda: addresses(one) == {one.own.address, again.address})


def test_a_store_that_never_had_a_gateway_says_nothing_of_it(start: Start, tmp_path: Path) -> None:
    with Store(tmp_path / "new", tower=start("a")._store.options.tower) as store:
        retract_former(store)
        assert store.log.end(TopicPartition(GATEWAYS_TOPIC, store.address)) == 0


def test_a_gateway_that_starts_again_where_it_was_says_nothing_anew(start: Start) -> None:
    one = start("a")
    tp = TopicPartition(GATEWAYS_TOPIC, one.own.address)
    one.announce()
    assert one._store.log.end(tp) == 1
    Gateways(one._store, "127.0.0.1", 9_999).announce()
    assert one._store.log.end(tp) == 2


def test_what_is_no_announcement_is_passed_over(start: Start) -> None:
    one, two = start("a"), start("bb")
    wait_until(lambda: len(addresses(one)) == 2)
    said = Announcement("127.0.0.1", 9_002).packed()
    wrong = [
        b"",
        b"\xff",
        b"[]",
        b'{"v": 2, "host": "elsewhere", "port": 1}',
        b'{"v": 1, "host": "elsewhere", "port": 65536}',
        b'{"v": 1, "host": "else where", "port": 1}',
        b'{"v": 1, "host": "elsewhere"}',
        b'{"v": 1, "host": "*", "port": 1}',
        b'{"v": 1, "host": "' + b"x" * 5_000 + b'", "port": 1}',
    ]
    put(two, said, *wrong)
    end = two._store.log.end(tp := TopicPartition(GATEWAYS_TOPIC, two.own.address))
    wait_until(lambda: one._store.log.end(tp) == end)
    assert two.own in one.live()
    put(two, b'{"v": 1, "host": "::1", "port": 7}')
    wait_until(lambda: two.own._replace(host="::1", port=7) in one.live())


def test_partitions_of_stores_that_nobody_has_met_are_no_gateways(start: Start) -> None:
    one = start("a")
    tp = TopicPartition(GATEWAYS_TOPIC, "0" * 32)
    batch = RecordBatch.of(tp, 0, [Announcement("127.0.0.1", 1).packed()])
    one._store.append_queue.put(batch).result(30)
    assert one.live() == [one.own]


def test_a_node_id_is_a_positive_number_of_32_bits_and_lasts() -> None:
    assert node_id("EB0A" * 8) == 519501275
    assert all(0 <= node_id(str(number)) < 2**31 for number in range(100))
    assert node_id("EB0A") == node_id("EB0A") != node_id("EB0B")


def test_the_order_is_the_same_wherever_it_is_asked_for() -> None:
    names = [f"{number:032X}" for number in range(5)]
    assert ranked("group", names) == ranked("group", names[::-1])
    assert sorted(ranked("group", names)) == names
    first = [ranked(f"group-{number}", names)[0] for number in range(1_000)]
    assert all(100 < first.count(name) < 300 for name in names)

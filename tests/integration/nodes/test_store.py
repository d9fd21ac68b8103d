"""The store: what it keeps, what it says, and whom it learns from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dafka_core import Producer, Store, StoreError
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol.messages import (
    Ack,
    DirectRecord,
    Fetch,
    Head,
    RecordMessage,
)
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.nodes.content import holds, stored, values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer, new_address

Raw = Callable[..., RawPeer]


def test_records_are_acknowledged_in_order_and_kept(store: Store, peer: RawPeer) -> None:
    for sequence, value in enumerate(values(100)):
        peer.send(RecordMessage("t", peer.address, sequence, value))
    wait_until(lambda: Ack(peer.address, "t", 99) in peer.messages(Ack))
    assert stored(store, "t", peer.address) == values(100)
    sequences = [ack.sequence for ack in peer.messages(Ack)]
    assert sequences == sorted(sequences)


@pytest.mark.parametrize("reminder", ["duplicate", "head"])
def test_it_acknowledges_again_when_reminded(store: Store, peer: RawPeer, reminder: str) -> None:
    for sequence, value in enumerate(values(3)):
        peer.send(RecordMessage("t", peer.address, sequence, value))
    wait_until(lambda: Ack(peer.address, "t", 2) in peer.messages(Ack))
    peer.forget_heard()
    if reminder == "duplicate":
        peer.send(RecordMessage("t", peer.address, 1, b"1"))
    else:
        peer.send(Head("t", peer.address, 2))
    assert peer.wait_for(Ack)[0] == Ack(peer.address, "t", 2)
    assert stored(store, "t", peer.address) == values(3)


def test_gaps_are_asked_for_and_nothing_behind_them_is_acknowledged(
    store: Store, peer: RawPeer
) -> None:
    peer.send(RecordMessage("t", peer.address, 0, b"0"))
    peer.send(RecordMessage("t", peer.address, 3, b"3"))
    [fetch] = peer.wait_for(Fetch)[:1]
    assert (fetch.partition, fetch.requestor, fetch.topic) == (peer.address, store.address, "t")
    assert (fetch.sequence, fetch.end) == (1, 3)
    assert peer.messages(Ack) in ([], [Ack(peer.address, "t", 0)])
    for sequence in (1, 2):
        peer.send(DirectRecord(store.address, "t", peer.address, sequence, b"%d" % sequence))
    wait_until(lambda: Ack(peer.address, "t", 3) in peer.messages(Ack))
    assert stored(store, "t", peer.address) == values(4)


def test_records_sent_to_others_are_not_taken(store: Store, peer: RawPeer) -> None:
    peer.send(DirectRecord(store.address + "0", "t", peer.address, 0, b"for another"))
    peer.send(RecordMessage("t", peer.address, 0, b"0"))
    peer.wait_for(Ack)
    assert stored(store, "t", peer.address) == [b"0"]


def test_what_is_stored_is_there_after_a_restart(tower: str, tmp_path: Path) -> None:
    with Store(tmp_path, tower=tower) as first, Producer("t", tower=tower) as producer:
        producer.publish_many(values(1_000))
        producer.flush(PATIENCE_S)
        address = first.address
    with Store(tmp_path, tower=tower) as again:
        assert stored(again, "t", producer.address) == values(1_000)
        # A producer that waits for two stores must not take one that came back for another.
        assert again.address == address


def test_a_directory_is_one_stores(store: Store, tower: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has it open for writing"):
        Store(store.log.directory, tower=tower)
    with Store(tmp_path / "another", tower=tower) as other:
        assert other.address != store.address


def test_a_broken_address_file_is_named(tower: str, tmp_path: Path) -> None:
    (tmp_path / "address").write_text("no uuid")
    with pytest.raises(StoreError, match="file address"):
        Store(tmp_path, tower=tower)
    (tmp_path / "address").unlink()
    with Store(tmp_path, tower=tower):
        pass


def test_a_second_store_learns_everything_from_the_first(
    tower: str, store: Store, tmp_path: Path
) -> None:
    addresses = []
    for topic in ("a", "b"):
        with Producer(topic, tower=tower) as producer:
            producer.publish_many(values(5_000))
        addresses.append(producer.address)
    # The producers are gone: it is from the first store that the second one has it all.
    with Store(tmp_path / "second", tower=tower) as second:
        wait_until(partial(holds, second, [5_000, 5_000]))
        for topic, address in zip(("a", "b"), addresses, strict=True):
            assert stored(second, topic, address) == values(5_000)


def test_two_stores_teach_each_other(tower: str, tmp_path: Path) -> None:
    addresses = []
    for name in ("one", "two"):
        with Store(tmp_path / name, tower=tower), Producer("t", tower=tower) as producer:
            producer.publish_many([name.encode()] * 10)
        addresses.append(producer.address)
    with ExitStack() as stack:
        stores = [stack.enter_context(Store(tmp_path / n, tower=tower)) for n in ("one", "two")]
        for each in stores:
            wait_until(partial(holds, each, [10, 10]))
            assert stored(each, "t", addresses[0]) == [b"one"] * 10
            assert stored(each, "t", addresses[1]) == [b"two"] * 10


def test_stores_that_meet_hear_whose_records_each_has(tower: str, tmp_path: Path) -> None:
    """The one with an older life's records gives them up, also if it has more of them."""
    tp = TopicPartition("t", new_address())
    first = Epoch.first(EpochId(1, 0xA, 1))
    epochs = [Epoch(number, number, 1, 4, first.digest) for number in (2, 3)]
    for epoch, end in zip(epochs, (9, 6), strict=True):
        with Log(tmp_path / f"{epoch.number}") as log:
            for start, stop, life in ((0, 4, first), (4, end, epoch)):
                batch = RecordBatch.of(tp, start, values(stop - start, 100 * life.number))
                log.append([replace(batch, epoch=life)])
    with (
        Store(tmp_path / "2", tower=tower) as loser,
        Store(tmp_path / "3", tower=tower) as winner,
    ):
        wait_until(lambda: loser.log.lives(tp) == winner.log.lives(tp))
        assert stored(loser, *tp) == stored(winner, *tp) == [*values(4, 100), *values(2, 300)]
        [aside] = loser.log.aside()
        assert (aside.start, aside.end, winner.log.aside()) == (4, 9, [])


def test_it_stops_and_says_so(tower: str, tmp_path: Path) -> None:
    running = Store(tmp_path, tower=tower)
    assert not running.wait(0)
    running.close()
    running.close()
    assert running.wait(0)


def test_it_acknowledges_nothing_once_its_directory_is_gone(
    store: Store, peer: RawPeer, tower: str
) -> None:
    directory = store.log.directory
    peer.send(RecordMessage("t", peer.address, 0, b"0"))
    peer.wait_for(Ack)
    peer.forget_heard()
    shutil.rmtree(directory)
    peer.send(RecordMessage("t", peer.address, 1, b"1"))
    with pytest.raises(StoreError, match="removed, renamed or replaced"):
        store.wait(PATIENCE_S)
    assert peer.messages(Ack) == []
    store.close()
    # Another one may begin at the path, and is right.
    with Store(directory, tower=tower) as second, Producer("t", tower=tower) as producer:
        producer.publish_many(values(10))
        producer.flush(PATIENCE_S)
        assert stored(second, "t", producer.address) == values(10)


def test_many_partitions_are_followed_at_once(store: Store, peer: RawPeer) -> None:
    partitions = [new_address() for _ in range(300)]
    for partition in partitions:
        peer.send(RecordMessage("t", partition, 0, partition.encode()))
    wait_until(lambda: len(store.log.partitions("t")) == 300)
    assert all(stored(store, "t", p) == [p.encode()] for p in partitions)

"""A store, its directory and its restart."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core import Producer, Store, StoreError
from dafka_core.protocol.messages import (
    Ack,
    RecordMessage,
)
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer

Raw = Callable[..., RawPeer]


def test_stored_records_survive_a_restart(tower: str, tmp_path: Path) -> None:
    with Store(tmp_path, tower=tower) as first, Producer("t", tower=tower) as producer:
        producer.publish_many(values(1_000))
        producer.flush(PATIENCE_S)
        address = first.address
    with Store(tmp_path, tower=tower) as again:
        assert stored(again, "t", producer.address) == values(1_000)
        # A producer that waits for two stores must not take one that came back for another.
        assert again.address == address


def test_a_directory_has_one_store(store: Store, tower: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has it open for writing"):
        Store(store.log.directory, tower=tower)
    with Store(tmp_path / "another", tower=tower) as other:
        assert other.address != store.address


def test_wait_returns_when_it_has_stopped(tower: str, tmp_path: Path) -> None:
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

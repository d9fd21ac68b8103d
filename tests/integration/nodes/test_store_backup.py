"""Stores that are backed up while they run, and restored as stores of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core import Producer, Reader, Store
from dafka_core.errors import ConfigError, StoreError, StoreUnreachableError
from dafka_core.flight import limits
from dafka_core.nodes import store_backup
from dafka_core.nodes.store_backup import back_up, restore, verify
from dafka_core.storage.backup import BACKUP_FILE, Backup
from dafka_core.storage.check_results import Checked
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S

Produce = Callable[..., Producer]


def verified(store: Path | str) -> Checked:
    done = Checked()
    for each in verify(str(store)):
        done = done.plus(each)
    return done


def test_a_store_is_backed_up_under_load_and_restored_beside_itself(
    store: Store, tower: str, produce: Produce, tmp_path: Path
) -> None:
    producer, stopped = produce("t"), threading.Event()

    def load() -> None:
        while not stopped.is_set():
            producer.publish_many([b"%0500d" % number for number in range(200)])
            producer.flush(PATIENCE_S)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        wait_until(store.log.partitions, "records are stored")
        directory, previous, ends = str(store.log.directory), None, []
        for number in range(4):
            to = tmp_path / f"b{number}"
            at_least = store.log.partitions()[0].end
            found = back_up(directory, to, previous)
            assert found.store == store.address
            previous = Backup(to)
            ends.append(at_least)
            assert verified(directory).found == ()
    finally:
        stopped.set()
        loading.join()
    address = restore(tmp_path / "b3", tmp_path / "restored")
    assert address != store.address
    with pytest.raises(StoreError, match="not empty: name another one"):
        restore(tmp_path / "b3", tmp_path / "restored")
    with Store(tmp_path / "restored", tower=tower) as again, Reader(tower=tower) as reader:
        assert again.address == address
        (info,) = again.log.partitions()
        assert info.end >= ends[-1]
        # It is another store, and takes what it lacks.
        wait_until(lambda: again.log.partitions() == store.log.partitions(), "both have all")
        wait_until(lambda: len(reader.stores()) == 2, "both are there")


def test_a_store_that_does_not_run_is_backed_up_and_verified(
    store: Store, produce: Produce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = produce("t")
    producer.publish_many([b"x" * 1000] * 100)
    producer.flush(PATIENCE_S)
    uri = store.locations[-1]
    assert verified(uri).records == 100
    back_up(uri, tmp_path / "online")
    directory = store.log.directory
    store.close()
    monkeypatch.setattr(store_backup, "ANSWER_S", 0.5)
    with pytest.raises(StoreUnreachableError):
        back_up(uri, tmp_path / "never")
    assert not (tmp_path / "never").exists()
    back_up(str(directory), tmp_path / "offline", Backup(tmp_path / "online"))
    for each in (directory, tmp_path / "online"):
        assert verified(each)[:2] == (1, 100)
    assert verified(tmp_path / "offline").found == ()
    restore(tmp_path / "offline", tmp_path / "restored")
    assert verified(tmp_path / "restored")[:2] == (1, 100)


def test_what_cannot_be_backed_up_or_restored_is_said(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(store.log.directory)
    with pytest.raises(ConfigError, match="must be a directory, or like grpc://"):
        back_up("http://x", tmp_path / "b")
    with pytest.raises(StoreError, match="there is no store here"):
        back_up(str(tmp_path / "nothing"), tmp_path / "b")
    back_up(directory, tmp_path / "b")
    with (
        Store(tmp_path / "other", tower=store.options.tower) as other,
        pytest.raises(StoreError, match=f"of store {store.address}, and this is store"),
    ):
        back_up(str(other.log.directory), tmp_path / "c", Backup(tmp_path / "b"))
    monkeypatch.setattr(limits, "MAX_KNOWN", -1)
    with pytest.raises(StoreError, match="goes on from one of at most -1: take a complete one"):
        back_up(directory, tmp_path / "c", Backup(tmp_path / "b"))
    with (tmp_path / "b" / BACKUP_FILE).open("ab") as file:
        file.write(b"!")
    assert [each.kind for each in verified(tmp_path / "b").found] == ["manifest"]
    with pytest.raises(StoreError, match="is not what was written"):
        restore(tmp_path / "b", tmp_path / "restored")
    with pytest.raises(StoreError, match="is not what was written"):
        back_up(directory, tmp_path / "c", Backup(tmp_path / "b"))


def test_damage_in_the_store_is_found_when_its_backup_is_restored(
    store: Store, produce: Produce, tmp_path: Path
) -> None:
    producer = produce("t")
    producer.publish_many([b"%01000d" % number for number in range(100)])
    producer.flush(PATIENCE_S)
    directory = store.log.directory
    store.close()
    content = (directory / "data.mdb").read_bytes()
    damaged = content.replace(b"%01000d" % 50, b"!" * 1000)
    assert damaged != content
    (directory / "data.mdb").write_bytes(damaged)
    assert {each.kind for each in verified(directory).found} == {"block"}
    back_up(str(directory), tmp_path / "b")
    assert {each.kind for each in verified(tmp_path / "b").found} == {"block"}
    with pytest.raises(StoreError, match=r"1 parts of it are damaged, such as: .*checksum"):
        restore(tmp_path / "b", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()

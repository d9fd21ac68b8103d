"""Stores that are backed up while they run, and restored as stores of their own."""

import json
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from dafka_core import Reader, Store
from dafka_core.errors import ConfigError, StoreError, StoreUnreachableError
from dafka_core.flight import limits
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.nodes import store_backup, store_identity
from dafka_core.nodes.store_backup import SavedLinks, back_up, compare, opened, restore, verify
from dafka_core.nodes.store_identity import new_identity
from dafka_core.storage import Log, block_rewriter, linker
from dafka_core.storage.backup import BACKUP_FILE, Backup
from dafka_core.storage.log_check import CHANGED, Checked
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Consume, Produce
from tests.integration.nodes.content import flushed
from tests.integration.nodes.peers import PATIENCE_S
from tests.integration.storage.damage import tamper, three_blocks
from tests.integration.storage.linked import link


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
            flushed(producer, [b"%0500d" % number for number in range(200)])

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
    with pytest.raises(StoreError, match="not empty: name another directory"):
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
    flushed(produce("t"), [b"x" * 1000] * 100)
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
        assert astuple(verified(each))[:2] == (1, 100)
    assert verified(tmp_path / "offline").found == ()
    restore(tmp_path / "offline", tmp_path / "restored")
    assert astuple(verified(tmp_path / "restored"))[:2] == (1, 100)


def test_impossible_backups_and_restores_are_errors(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(store.log.directory)
    with pytest.raises(ConfigError, match="must be a directory, or like grpc://"):
        back_up("http://x", tmp_path / "b")
    with pytest.raises(StoreError, match="there is no store here"):
        back_up(str(tmp_path / "nothing"), tmp_path / "b")
    back_up(directory, tmp_path / "b")
    with pytest.raises(StoreError, match=r"it is a backup.*restore DIR --from BACKUP'"):
        store_identity.restore(tmp_path / "b")
    with (
        Store(tmp_path / "other", tower=store.options.tower) as other,
        pytest.raises(StoreError, match=f"of store {store.address}, and this is store"),
    ):
        back_up(str(other.log.directory), tmp_path / "c", Backup(tmp_path / "b"))
    monkeypatch.setattr(limits, "MAX_KNOWN", -1)
    with pytest.raises(StoreError, match="continues one with at most -1: take a complete one"):
        back_up(directory, tmp_path / "c", Backup(tmp_path / "b"))
    with (tmp_path / "b" / BACKUP_FILE).open("ab") as file:
        file.write(b"!")
    assert [each.kind for each in verified(tmp_path / "b").found] == ["manifest"]
    with pytest.raises(StoreError, match="has changed since it was written"):
        restore(tmp_path / "b", tmp_path / "restored")
    with pytest.raises(StoreError, match="has changed since it was written"):
        back_up(directory, tmp_path / "c", Backup(tmp_path / "b"))


def test_damage_in_the_store_is_found_when_its_backup_is_restored(
    store: Store, produce: Produce, tmp_path: Path
) -> None:
    flushed(produce("t"), [b"%01000d" % number for number in range(100)])
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


def linked(directory: Path) -> list[bytes]:
    """A store's directory, with links of all records."""
    every = three_blocks(directory)
    with Log(directory) as log:
        link(log)
    new_identity(directory)
    return every


def forge(directory: Path, old: bytes, new: bytes) -> None:
    """Changes a record, its checksum, and all links."""
    tamper(directory, old, new)
    with Log(directory) as log:
        log._env.write(lambda tables: tables.links.cut(0, 0))
        link(log)


def kinds(store: Path | str) -> list[str]:
    return [damage.kind for each in verify(str(store)) for damage in each.found]


LINK = ["t", "p", 0, 5, "0" * 16, "a" * 64, "b" * 64]


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"{}", b'{"v": 2, "store": "", "time": "", "links": []}', b"[1]"),
        *(
            json.dumps({"v": 1, "store": "", "time": "", "links": [LINK[:at] + wrong]}).encode()
            for at, wrong in ((2, [-5, *LINK[3:]]), (3, [0, *LINK[4:]]), (4, ["zz", *LINK[5:]]))
        ),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "links.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="must be a file that 'dafka store verify --save'"):
        SavedLinks.read(path)
    with pytest.raises(StoreError):
        SavedLinks("", "", ()).write(tmp_path / "missing" / "links.json")


def test_a_backup_has_the_links_and_none_is_restored_of_changed_records(tmp_path: Path) -> None:
    every = linked(tmp_path / "s")
    back_up(str(tmp_path / "s"), tmp_path / "good")
    restore(tmp_path / "good", tmp_path / "again")
    assert sum(each.linked for each in verify(str(tmp_path / "again"))) == 300
    tamper(tmp_path / "s", every[7], every[8])
    back_up(str(tmp_path / "s"), tmp_path / "bad")
    assert kinds(tmp_path / "bad") == [CHANGED]
    with pytest.raises(StoreError, match="a record of 0 to 299 was changed in the file"):
        restore(tmp_path / "bad", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_stores_that_run_make_links_and_tell_them(
    tower: str, produce: Produce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linker, "SCAN_INTERVAL_S", 0.05)
    monkeypatch.setattr(linker, "TAIL_S", 0.1)
    directories = [str(tmp_path / name) for name in "ab"]
    with ExitStack() as stack:
        for each in directories:
            stack.enter_context(Store(each, tower=tower, tamper_evidence=True))
        with opened(directories[0]) as source:
            assert source.links([], newest=True) == []
        for _ in range(3):
            flushed(produce("t", acks=2), [b"%d" % number for number in range(100)])

        def are_linked() -> bool:
            found = [SavedLinks.of(each).links for each in directories]
            return all([link.end for link in links] == [100] * 3 for links in found)

        wait_until(are_linked, "all records have links")
        assert list(compare(*directories)) == [(300, [])]
        saved = SavedLinks.of(directories[0])
        assert [each.linked for each in saved.check(directories[0])] == [300]
        assert sum(each.linked for each in verify(directories[0])) == 300
        with opened(directories[0]) as source:
            wrong = saved.links[0]._replace(records="0" * 64)
            (checked,) = source.check_saved([wrong])
        assert [each.kind for each in checked.found] == [CHANGED]


def test_links_that_are_saved_are_on_the_disk_before_the_old_ones_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "links.json", []
    saved = SavedLinks("A" * 32, "2026-01-01T00:00:00+00:00", ())
    saved.write(path)
    real, before = os.fsync, path.stat().st_ino

    def fsync(descriptor: int) -> None:
        synced.append(path.stat().st_ino == before)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    saved.write(path)
    assert synced == [True, False]  # the file, and then its name
    assert SavedLinks.read(path) == saved


SIZES: dict[str, Any] = {"max_records": 10_000, "max_bytes": 1 << 20}


def test_all_ways_of_reading_see_the_same_records(
    tower: str, produce: Produce, consume: Consume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_rewriter, "COLD_SCAN_INTERVAL_S", 0.1)
    values = [b"%d " % number * 100 for number in range(4_000)]
    options: dict[str, Any] = {"tower": tower, "compress": "other=none *=zstd"}
    with Store(tmp_path / "a", **options, compress_after_s=0) as store:
        producer = produce("t")
        for start in range(0, len(values), 1_000):
            flushed(producer, values[start : start + 1_000])
        wait_until(lambda: store.compressor.blocks, "some are compressed")
        (info,) = store.log.partitions()
        wait_until(lambda: store.log.statistics(info.tp).size_bytes < 500_000, "most are")  # type: ignore[union-attr]
        location = StoreLocation(store.address, store.locations)
        with StoreClient(location) as client:
            read = client.read(info.tp, 0, info.end, times=True, timeout_s=PATIENCE_S, **SIZES)
            assert [value for batch in read for value in batch.values] == values
            logs = LocalLogs()
            local = logs.open(client.describe(timeout_s=PATIENCE_S))
            assert local is not None
            read = local.records(client, GetRequest((RecordRange(*info.tp, 0, info.end),)))
            assert [value for batch in read for value in batch.values] == values
            (facts,) = client.facts("t", timeout_s=PATIENCE_S)
            assert facts.size_bytes < 500_000
            logs.close()
        records = iter(consume("t", start="earliest"))
        assert [next(records).value for _ in values] == values
        with Store(tmp_path / "b", tower=tower) as other:
            wait_until(lambda: other.log.partitions() == [info], "the other store has all")
            batches = other.log.read(info.tp, 0, info.end)
            assert [value for batch in batches for value in batch.values] == values

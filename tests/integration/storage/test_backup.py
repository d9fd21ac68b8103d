"""Backups: whole or not there, of one moment, with what is new since an earlier one."""

import contextlib
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest
from xxhash import xxh3_128

from dafka_core.errors import StoreError
from dafka_core.model.epochs import Epoch
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.append_area import MAGIC
from dafka_core.storage.backup import (
    BACKUP_FILE,
    BLOCKS,
    Backup,
    Entry,
    Manifest,
    entries,
    fact,
    known_of,
    made_whole,
    restored,
    write_backup,
)
from dafka_core.storage.backup import FACTS as BACKUP_FACTS
from dafka_core.storage.open_environment import FORMAT
from dafka_core.storage.rows import BLOCK_KEY, partition_key
from dafka_core.storage.storage_errors import BACKUP_MANIFEST
from tests.integration.storage.changing_log import ChangingLog, told
from tests.integration.storage.containers import can_contain, contained
from tests.integration.storage.damage import spoil
from tests.integration.storage.limits import limited
from tests.integration.storage.linked import checked, link
from tests.integration.storage.processes import ROOT, TP, put
from tests.integration.storage.staged import clean, held, large, values
from tests.integration.storage.staged import put as staged_put
from tests.integration.storage.test_block_compressor import compress

FACTS: dict[str, Any] = {"dafka": "1"}


def back_up(log: Log, directory: Path, previous: Backup | None = None) -> Manifest:
    known = {each.id: each for each in (previous.known() if previous else ())}
    with log.snapshot() as tables:
        found = entries(tables, known, FACTS)
        return write_backup(directory, found, store="S", previous=previous)


def restore(directory: Path, to: Path) -> Log:
    with restored(Backup(directory).chain(), to):
        pass
    return Log(to)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_restored_is_what_there_was_at_that_moment(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka_core.storage.links.LINK_RECORDS", 64)
    previous = None
    moments = []
    with Log(tmp_path / "store") as log:
        changing = ChangingLog(log, seed)
        for number in range(6):
            changing.change(25)
            link(log)
            changing.change(3)
            to = tmp_path / f"backup{number}"
            back_up(log, to, previous)
            moments.append((to, told(log)))
            # One of three is complete.
            previous = Backup(to) if number % 3 != 2 else None
            assert checked(log).found == ()
    for number, (directory, before) in enumerate(moments):
        with restore(directory, tmp_path / f"restored{number}") as restored:
            assert told(restored) == before
            assert checked(restored).found == ()
            assert checked(restored).linked > 0
            link(restored)
            ChangingLog(restored, seed + 100).change(20)
            assert checked(restored).found == ()


def test_blocks_of_an_earlier_backup_are_compressed_when_they_are_restored(tmp_path: Path) -> None:
    with Log(tmp_path / "store") as log:
        for _ in range(3):
            staged_put(log, large(100))
        back_up(log, tmp_path / "first")
        assert compress(log).blocks == 3
        back_up(log, tmp_path / "second", Backup(tmp_path / "first"))
    with restore(tmp_path / "second", tmp_path / "restored") as log:
        assert compress(log).blocks == 3


def test_the_next_backup_has_what_is_new_only(tmp_path: Path) -> None:
    with Log(tmp_path / "store") as log:
        for _ in range(20):
            put(log, 3000)
        first = back_up(log, tmp_path / "first")
        put(log, 3000)
        second = back_up(log, tmp_path / "second", Backup(tmp_path / "first"))
        assert second.file_bytes < first.file_bytes / 5
        assert second.previous == first.id
        end = log.end(TP)
    # They may be moved together, or the earlier one put beside the later one.
    (tmp_path / "elsewhere").mkdir()
    for name in ("first", "second"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    with restore(tmp_path / "elsewhere" / "second", tmp_path / "restored") as log:
        assert log.end(TP) == end
    (tmp_path / "elsewhere" / "first").rename(tmp_path / "elsewhere" / "other name")
    restore(tmp_path / "elsewhere" / "second", tmp_path / "again").close()
    shutil.rmtree(tmp_path / "elsewhere" / "other name")
    with pytest.raises(StoreError, match=f"continues backup {first.id}, which is neither at"):
        Backup(tmp_path / "elsewhere" / "second").chain()


def test_a_backup_is_not_there_until_all_of_it_is(tmp_path: Path) -> None:
    with Log(tmp_path / "store") as log:
        put(log, 3000)
        with log.snapshot() as tables:
            whole = [
                each._replace(value=memoryview(bytes(each.value)))
                for each in entries(tables, {}, FACTS)
            ]

    def write(found: Iterable[Entry]) -> None:
        write_backup(tmp_path / "b", found, store="S", previous=None)

    def broken() -> Iterable[Entry]:
        yield from whole[:-2]
        raise OSError("the network is gone")

    for found in (whole[:-1], whole[1:], [*whole[:3], *whole[4:]], [], broken()):
        with pytest.raises(StoreError, match=r"invalid backup|is gone"):
            write(found)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]
    for incomplete in ({"format": FORMAT, "dafka": "1"}, {"format": FORMAT, "whole": []}):
        first = memoryview(json.dumps(incomplete).encode())
        with pytest.raises(StoreError, match="invalid backup"):
            write([whole[0]._replace(value=first), *whole[1:]])
    newer = json.dumps({"format": FORMAT + 1, "whole": []}).encode()
    with pytest.raises(StoreError, match=f"has format {FORMAT + 1}: use the store's version"):
        write([whole[0]._replace(value=memoryview(newer)), *whole[1:]])
    write(whole)
    assert Backup(tmp_path / "b").manifest.dafka == FACTS["dafka"]  # the store's version
    with pytest.raises(StoreError, match="not empty: name another directory"):
        write(whole)


def test_a_directory_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for taken in ("file", ".", "/"):
        with pytest.raises(StoreError, match="not empty"), made_whole(tmp_path / taken):
            pass
    with contextlib.suppress(ZeroDivisionError), made_whole(tmp_path / "a" / "b") as made:
        (made / "x").touch()
        raise ZeroDivisionError
    assert list((tmp_path / "a").iterdir()) == []
    (tmp_path / "a" / "b").mkdir()
    with made_whole(tmp_path / "a" / "b") as made:
        (made / "x").touch()
    assert [each.name for each in (tmp_path / "a" / "b").iterdir()] == ["x"]
    with (
        pytest.raises(StoreError, match="it exists and is not empty: name another directory"),
        made_whole(tmp_path / "a" / "c"),
        made_whole(tmp_path / "a" / "c") as quicker,
    ):
        (quicker / "x").touch()
    assert sorted(each.name for each in (tmp_path / "a").iterdir()) == ["b", "c"]


def test_a_link_to_an_empty_directory_receives_a_backup_and_its_successor(tmp_path: Path) -> None:
    previous, links = None, [tmp_path / "links" / name for name in ("second", "third")]
    (tmp_path / "links").mkdir()
    for each in links:
        (tmp_path / "disk/a/b" / each.name).mkdir(parents=True)
        each.symlink_to(tmp_path / "disk/a/b" / each.name)
    with Log(tmp_path / "store") as log:
        for each in (tmp_path / "first", *links):
            put(log, 3000)
            back_up(log, each, previous)
            previous = Backup(each)
    with restore(links[-1], tmp_path / "restored") as log:
        assert log.end(TP) == 9000


@pytest.mark.skipif(not can_contain(), reason="this user cannot mount (unshare)")
def test_a_mount_point_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    code = (
        f"from dafka_core.storage import backup as b; b.made_whole(b.Path('{mounted}')).__enter__()"
    )
    for mount in (f"-t tmpfs tmpfs {mounted}", f"--bind {mounted} {mounted}"):
        command = contained([sys.executable, "-c", code], f"mount {mount}")
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert "a disk is mounted there: name another directory" in done.stderr
    assert list(tmp_path.iterdir()) == [mounted]


def test_a_block_that_an_earlier_backup_has_damaged_comes_again(tmp_path: Path) -> None:
    """The store has replaced it meanwhile."""
    written = [large(100, name) for name in "abcd"]
    for name in ("damaged", "whole"):
        with Log(tmp_path / name) as log:
            for each in written[:3]:
                staged_put(log, each)
    spoil(tmp_path / "damaged" / "data.mdb", b"b7.")
    with Log(tmp_path / "damaged") as log, Log(tmp_path / "whole") as whole:
        back_up(log, tmp_path / "first")
        back_up(log, tmp_path / "second", Backup(tmp_path / "first"))
        for damage in filter(None, log.healer.damaged_ranges(TopicPartition("t", "p"))):
            (batch,) = whole.read(*damage[:3])
            assert log.healer.replace(damage, batch)
        staged_put(log, written[3])
        back_up(log, tmp_path / "third", Backup(tmp_path / "second"))
    with restore(tmp_path / "third", tmp_path / "restored") as log:
        assert held(log) == [value for each in written for value in each]


def test_damage_of_a_backup_is_found_before_anything_is_restored(tmp_path: Path) -> None:
    with Log(tmp_path / "store") as log:
        put(log, 3000)
        back_up(log, tmp_path / "b")
    path = tmp_path / "b" / BACKUP_FILE
    content = path.read_bytes()
    for wrong in (content[:-1], content[:5000] + b"!" + content[5001:]):
        path.write_bytes(wrong)
        with pytest.raises(StoreError, match="has changed since it was written: create a new"):
            restore(tmp_path / "b", tmp_path / "restored")
        assert not (tmp_path / "restored").exists()
    path.write_bytes(content)
    manifest = json.loads((tmp_path / "b" / BACKUP_MANIFEST).read_text())
    for member, value, why in [
        ("v", 2, "has format 2 and its log format 6.*reads formats 1 and 6: restore"),
        ("format", 9, "its log format 9, by Dafka 1"),
        ("checksum", 7, "file backup.json"),
    ]:
        (tmp_path / "b" / BACKUP_MANIFEST).write_text(json.dumps({**manifest, member: value}))
        with pytest.raises(StoreError, match=why):
            Backup(tmp_path / "b")
    with pytest.raises(StoreError, match="is not a backup"):
        Backup(tmp_path / "store")


def test_a_backup_that_was_changed_with_its_checksum_is_named(tmp_path: Path) -> None:
    with Log(tmp_path / "store") as log:
        for number in range(3):
            log.append([RecordBatch.of(TopicPartition("t", f"{number}"), 0, [b"v"])])
        back_up(log, tmp_path / "a")
        back_up(log, tmp_path / "b", Backup(tmp_path / "a"))
    path, manifest = (tmp_path / "a" / name for name in (BACKUP_FILE, BACKUP_MANIFEST))
    content = path.read_bytes()
    path.write_bytes(content.replace(MAGIC, b"none"))
    assert path.read_bytes() != content
    checksum = xxh3_128(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"checksum": checksum}))
    for work in (Backup(tmp_path / "a").known, lambda: restore(tmp_path / "b", tmp_path / "r")):
        with pytest.raises(StoreError, match=r"of small batches.* and its checksum were changed"):
            work()


@pytest.mark.parametrize("changed", ["a", "b", "c"])
def test_of_several_backups_the_one_that_was_changed_is_named(tmp_path: Path, changed: str) -> None:
    previous = None
    with Log(tmp_path / "store") as log:
        for name in "abc":
            put(log, 3000)
            back_up(log, tmp_path / name, previous)
            previous = Backup(tmp_path / name)
    path, manifest = (tmp_path / changed / name for name in (BACKUP_FILE, BACKUP_MANIFEST))
    key = partition_key(TP)
    with lmdb.Environment(str(path), subdir=False, lock=False, max_dbs=3, map_size=1 << 30) as env:
        partitions = env.open_db(b"partitions", create=False)
        with env.begin(write=True, db=partitions) as txn:
            row = txn.get(key)
            assert row is not None
            txn.put(key, row[:-1] + bytes([row[-1] ^ 1]))
    facts = {"checksum": xxh3_128(path.read_bytes()).hexdigest(), "file_bytes": path.stat().st_size}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | facts))
    with pytest.raises(StoreError, match="does not match its checksum") as found:
        restore(tmp_path / "c", tmp_path / "restored")
    assert Path(found.value.directory).resolve() == tmp_path / changed


def test_a_full_disk_leaves_no_backup_and_nothing_restored(tmp_path: Path) -> None:
    with Log(tmp_path / "store") as log:
        put(log, 30_000)
        back_up(log, tmp_path / "good")
        size_bytes = (tmp_path / "good" / BACKUP_FILE).stat().st_size
        for room_bytes in (0, 10_000, size_bytes // 2):
            with limited(resource.RLIMIT_FSIZE, room_bytes):
                with pytest.raises(StoreError, match=r"disk is full|File too large"):
                    back_up(log, tmp_path / "b")
                with pytest.raises(StoreError, match=r"disk is full|File too large"):
                    restore(tmp_path / "good", tmp_path / "restored")
        assert sorted(each.name for each in tmp_path.iterdir()) == ["good", "store"]
        back_up(log, tmp_path / "b")


def test_no_store_opens_a_backup(tmp_path: Path) -> None:
    with Log(tmp_path / "store") as log:
        log.append([RecordBatch.of(TP, 0, [b"a"])])
        back_up(log, tmp_path / "b")
    with pytest.raises(StoreError, match=r"it is a backup.*dafka store restore DIR --from BACKUP"):
        Log(tmp_path / "b")
    assert sorted(each.name for each in (tmp_path / "b").iterdir()) == [
        BACKUP_MANIFEST,
        BACKUP_FILE,
    ]


def test_all_entries_come_between_two_that_say_what_they_are(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        staged_put(log, large(100))
        with log.snapshot() as tables:
            first, *rest, last = entries(tables, {}, {"dafka": "1"})
            assert fact(first) == {"dafka": "1", "format": FORMAT, "whole": []}
            assert fact(last) == {"entries": len(rest)}
            assert BACKUP_FACTS not in {each.table for each in rest}
    with pytest.raises(ValueError, match="does not begin, or end"):
        fact(Entry(BLOCKS, b"", memoryview(b"{}")))


def firsts_of_new(log: Log, known: dict[int, object]) -> tuple[list[int], list[int]]:
    with log.snapshot() as tables:
        first, *rest = entries(tables, known, {})  # type: ignore[arg-type]
        found = [BLOCK_KEY.unpack(each.key)[1] for each in rest if each.table == BLOCKS]
        return fact(first)["whole"], found


def test_blocks_that_are_known_do_not_come_again(tmp_path: Path) -> None:
    tp, life = TopicPartition("t", "p"), Epoch(1, 1, 1, 0, 0)
    with Log(tmp_path) as log:
        for start in range(0, 400, 100):
            log.append([replace(RecordBatch.of(tp, start, large(100)), epoch=life)])
        with log.snapshot() as tables:
            known = {each.id: each for each in known_of(tables)}
        for _ in range(6):
            staged_put(log, large(100))
        assert firsts_of_new(log, dict(known)) == ([], [400, 500, 600, 700, 800, 900])
        # A merged block has records that are new, and those that are not.
        clean(log)
        whole, firsts = firsts_of_new(log, dict(known))
        assert (whole, firsts[0]) == ([], 0)
        # Other records have come in the place of known ones.
        log.write([SetAside(tp, 350)])
        won = RecordBatch.of(tp, 350, large(100))
        log.write([replace(won, epoch=Epoch(2, 2, 1, 350, 0))])
        whole, firsts = firsts_of_new(log, dict(known))
        assert whole == [0]
        assert firsts[0] == 0


def test_a_store_that_has_taken_the_address_of_another_continues_no_wrong_partition(
    tmp_path: Path,
) -> None:
    """Its log has other ids; no epochs are known of records of C producers."""
    written = {name: large(100, name) for name in "pq"}
    for names in ("pq", "qp"):
        with Log(tmp_path / names) as log:
            for name in names:
                staged_put(log, written[name], name)
            previous = None if names == "pq" else Backup(tmp_path / "backup pq")
            back_up(log, tmp_path / f"backup {names}", previous)
    with restore(tmp_path / "backup qp", tmp_path / "restored") as log:
        assert {name: held(log, name) for name in "pq"} == written


def test_merged_records_that_were_set_aside_take_the_place_of_their_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka_core.storage.block.MAX_BLOCK_RECORDS", 300)
    with Log(tmp_path / "store") as log:
        for _ in range(2):
            staged_put(log, large(100))
        log.write([SetAside(TopicPartition("t", "p"), 0)])
        back_up(log, tmp_path / "first")
        clean(log)
        back_up(log, tmp_path / "second", Backup(tmp_path / "first"))
        firsts = aside_firsts(log)
    assert firsts == [0]
    with restore(tmp_path / "second", tmp_path / "restored") as log:
        assert aside_firsts(log) == firsts
        assert [value for batch in log.read_aside(0) for value in batch.values] == large(100) * 2


def aside_firsts(log: Log) -> list[int]:
    [aside] = log.aside()
    with log.snapshot() as tables:
        return list(tables.firsts(aside.id, 0))


def test_small_records_lie_among_the_notes_and_come_with_them(tmp_path: Path) -> None:
    """When they become blocks they are new, whatever the offsets are."""
    with Log(tmp_path) as log:
        staged_put(log, values(5))
        staged_put(log, large(100))
        staged_put(log, values(5))
        with log.snapshot() as tables:
            (known,) = known_of(tables)
        assert known.end == 0
        assert firsts_of_new(log, {known.id: known}) == ([], [5])

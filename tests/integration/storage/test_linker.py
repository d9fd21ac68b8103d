"""Links are of records, wherever blocks begin and end, and each holds the one before it."""

import logging
from pathlib import Path

import pytest
from msgspec.structs import astuple

from dafka_core.errors import DiskFullError, StoreError
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log, linker
from dafka_core.storage import links as links_module
from dafka_core.storage.links import GENESIS, LINK_RECORDS, Link
from dafka_core.storage.log_check import REPLACED, PartitionLink, check_saved
from tests.integration.storage.changing_log import PARTITIONS, ChangingLog
from tests.integration.storage.damage import change, spoil, tamper, three_blocks
from tests.integration.storage.linked import checked, link, links
from tests.integration.storage.processes import TP as OF_BLOCKS
from tests.integration.storage.staged import TP, Clock, clean, large, put, values
from tests.integration.storage.test_set_aside import LOST, OLD, WON, written

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 8))]
NO_LINK = Link(3, 3, 0, 0, b"", b"", b"")


def test_links_do_not_depend_on_how_records_came_or_when_they_were_linked(
    tmp_path: Path, clock: Clock
) -> None:
    every = values(40_000, "v", 30)
    for name, sizes in (("one", [40_000]), ("many", [1, 99, 900, 15_384, 20_000, 3_616])):
        with Log(tmp_path / name, clock_us=clock) as log:
            start = 0
            for size in sizes:
                put(log, every[start : start + size])
                start += size
                if name == "many":
                    link(log)
            link(log)
            clean(log)
    with Log(tmp_path / "one") as one, Log(tmp_path / "many") as many:
        found = links(one)
        assert [(each.start, each.end) for each in found] == [
            (0, LINK_RECORDS),
            (LINK_RECORDS, 2 * LINK_RECORDS),
            (2 * LINK_RECORDS, 40_000),
        ]
        assert links(many) == found
        assert links(many, newest=True) == found[-1:]


def test_a_link_of_large_records_ends_where_it_has_enough(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "LINK_BYTES", 2_500)
    put(store, values(7, "v", 998))
    put(store, [b"x" * 9_000, b"y"])
    link(store)
    assert [(each.start, each.end) for each in links(store)] == [(0, 3), (3, 6), (6, 8), (8, 9)]


def test_times_and_records_have_digests_of_their_own(tmp_path: Path, clock: Clock) -> None:
    found = []
    for name in ("a", "b"):
        clock.now_us += 1_000
        with Log(tmp_path / name, clock_us=clock) as log:
            put(log, values(9))
            link(log)
            found += links(log)
    first, second = found
    assert first.records == second.records
    assert first.chain != second.chain


def test_what_cannot_be_a_link_follows_none(store: Log) -> None:
    put(store, values(9))
    link(store)

    env = store._env
    with store.snapshot() as tables:
        (made,) = tables.links.starting(0, 0)
        assert made.follows(GENESIS)
    opened = env._opened
    assert opened is not None
    with opened.env.begin(write=True) as txn:
        txn.put(b"link " + (0).to_bytes(8) + (3).to_bytes(8), b"no link", db=opened.meta)
    with store.snapshot() as tables:
        assert tables.links.last(0) == NO_LINK
        assert tables.links.last(1) is None
    assert not NO_LINK.follows(made.chain)
    env.write(lambda tables: tables.links.cut(0, 3))
    with store.snapshot() as tables:
        assert list(tables.links.starting(0, 0)) == []


def ends(log: Log) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in links(log)]


def test_an_open_link_waits_for_half_as_many_records_or_for_a_while(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_again() -> None:
        store.linker._scan_due_s = float("-inf")
        while store.linker.step():
            pass

    put(store, values(100))
    look_again()
    assert ends(store) == [(0, 100)]
    put(store, values(30))
    look_again()
    assert ends(store) == [(0, 100)]
    put(store, values(20))
    assert not store.linker.step()  # it has just scanned
    look_again()
    assert ends(store) == [(0, 150)]
    put(store, values(1))
    look_again()
    assert ends(store) == [(0, 150)]
    monkeypatch.setattr(linker, "TAIL_S", 0)
    look_again()
    assert ends(store) == [(0, 151)]
    put(store, values(LINK_RECORDS))
    look_again()
    assert ends(store) == [(0, LINK_RECORDS), (LINK_RECORDS, LINK_RECORDS + 151)]


def test_a_step_takes_no_more_than_its_share(store: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linker, "STEP_BYTES", 100_000)
    put(store, values(5 * LINK_RECORDS, "v", 30))
    assert store.linker.step()
    assert store.linker.step()
    assert len(ends(store)) == 1
    link(store)
    assert len(ends(store)) == 5


def test_what_was_changed_in_the_file_gets_no_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = three_blocks(tmp_path)
    with Log(tmp_path) as log:
        link(log)
        (before,) = links(log, OF_BLOCKS)
    tamper(tmp_path, every[150], b"!" + every[150][1:])
    with Log(tmp_path) as log, caplog.at_level(logging.ERROR):
        log.append([RecordBatch.of(OF_BLOCKS, 300, every)])
        link(log)
        assert links(log, OF_BLOCKS) == [before]
        log.trim(OF_BLOCKS, 300)
        link(log)
        assert links(log, OF_BLOCKS, newest=True)[0][2:4] == (300, 600)
        assert (checked(log).found, log.linker.wrong) == ((), set())
    (said,) = caplog.messages
    assert said.startswith(
        f"{OF_BLOCKS}: records 0 to 299, or their link, were changed in the file"
    )


def test_a_partition_that_was_cut_in_the_file_gets_no_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Log(tmp_path) as log:
        put(log, large(100))
        with log.snapshot() as tables:
            key, row = next((key, bytes(value)) for key, value in tables.entries(1))
        put(log, large(100))
        link(log)
    change(tmp_path, b"partitions", key, row)
    with Log(tmp_path) as log:
        assert log.end(TP) == 100
        link(log)
        assert ends(log) == [(0, 200)]
        (damage,) = checked(log).found
        assert (damage.kind, damage.offset) == ("changed", 100)
        assert "it ends here, but has a link of records up to 199" in damage.why
    assert "were changed in the file" in caplog.text


def test_a_damaged_block_stops_its_own_partition_alone(tmp_path: Path) -> None:
    every = three_blocks(tmp_path)
    spoil(tmp_path / "data.mdb", every[150])
    other = TopicPartition("a", "p")
    with Log(tmp_path) as log:
        log.append([RecordBatch.of(other, 0, [b"v"])])
        with pytest.raises(StoreError, match="the block at offset 100 cannot be read"):
            link(log)
        link(log)
        assert links(log, OF_BLOCKS) == []
        assert links(log, other) != []


@pytest.mark.parametrize("is_later", [False, True])
def test_records_set_aside_before_their_links_are_written_get_none(
    store: Log, monkeypatch: pytest.MonkeyPatch, is_later: bool
) -> None:
    """The linker reads before the change is on disk, and writes before ``write`` has returned."""
    written(store, OLD, 0, 4, "old")
    written(store, LOST, 4, 3, "lost")
    assert store.linker.step()
    changes, writes = store._merger.write, store._env.write

    def while_linking(change):  # type: ignore[no-untyped-def]
        def after_change(links):  # type: ignore[no-untyped-def]
            monkeypatch.undo()
            done.append(changes(change))
            if not is_later:
                written(store, WON, 4, 5, "won")
            return writes(links)

        done: list[object] = []
        monkeypatch.setattr(store._env, "write", after_change)
        assert store.linker.step()
        assert ends(store) == []
        return done[0]

    monkeypatch.setattr(store._merger, "write", while_linking)
    assert store.write([SetAside(TP, 4)]) == [None]
    if is_later:
        written(store, WON, 4, 5, "won")
    link(store)
    assert (ends(store), store.linker.wrong) == ([(0, 9)], set())
    assert astuple(checked(store))[4:] == ((), 9)


def test_links_that_a_full_disk_refuses_are_written_later(
    store: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise DiskFullError("here", "the disk is full")

    put(store, values(9))
    assert store.linker.step()
    with monkeypatch.context() as full:
        full.setattr(store._env, "write", fail)
        with pytest.raises(DiskFullError):
            store.linker.step()
    link(store)
    assert (ends(store), store.linker.made) == ([(0, 9)], 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_a_log_does_by_itself_looks_like_a_change(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dafka_core.storage.links.LINK_RECORDS", 64)
    monkeypatch.setattr("dafka_core.storage.links.LINK_BYTES", 20_000)
    monkeypatch.setattr(linker, "STEP_BYTES", 30_000)
    linked, saved, kinds = 0, list[PartitionLink](), set[str]()
    for part in range(6):
        with Log(tmp_path) as log:
            changing = ChangingLog(log, 100 * seed + part)
            for _ in range(8):
                changing.change(6)
                link(log)
                done = checked(log)
                assert done.found == ()
                linked += done.linked
                for each in saved:
                    late = check_saved(log.snapshot, each)
                    linked += late.linked
                    kinds |= {damage.kind for damage in late.found}
                saved += [each for tp in PARTITIONS for each in links(log, tp, newest=True)]
    assert linked > 1_000
    assert kinds <= {REPLACED}
    assert caplog.messages == []

"""A record changed in the file is named, whichever checksums were recomputed."""

from pathlib import Path

import pytest
from msgspec.structs import astuple

from dafka_core.flight.backup_requests import FoundLinks
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch
from dafka_core.storage import Log
from dafka_core.storage.log_check import (
    BLOCK,
    CHANGED,
    DIFFERENT,
    LINKS,
    PARTED,
    REPLACED,
    Checked,
    PartitionLink,
    check_saved,
    differences,
)
from tests.integration.storage.damage import change, spoil, tamper, three_blocks
from tests.integration.storage.linked import checked, link, links, reopened
from tests.integration.storage.processes import TP
from tests.integration.storage.staged import TP as ONE
from tests.integration.storage.staged import Clock, put, values
from tests.integration.storage.test_block_compressor import compress
from tests.integration.storage.test_set_aside import LOST, OLD, WON, written


@pytest.fixture(autouse=True)
def small_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka_core.storage.links.LINK_RECORDS", 64)


def linked(directory: Path) -> list[bytes]:
    """A log of three blocks and five links."""
    every = three_blocks(directory)
    with Log(directory) as log:
        link(log)
    return every


def forget_links(directory: Path) -> None:
    """Make the store compute links of changed records anew, as an attacker would."""
    with Log(directory) as log:
        log._env.write(lambda tables: tables.links.cut(0, 0))
        link(log)


def against(directory: Path, saved: PartitionLink) -> Checked:
    with Log(directory) as log:
        return check_saved(log.snapshot, saved)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_one_octet_that_was_changed_with_its_checksum_is_found_by_name(
    tmp_path: Path, is_compressed: bool
) -> None:
    every = linked(tmp_path)
    if is_compressed:
        with Log(tmp_path) as log:
            assert compress(log).blocks == 3
    assert astuple(reopened(tmp_path))[:5:4] == (1, ())
    assert reopened(tmp_path).linked == 300
    tamper(tmp_path, every[150], every[150][:-1] + b"!")
    done = reopened(tmp_path)
    (damage,) = done.found
    assert damage[:4] == (CHANGED, *TP, 128)
    assert damage.why.startswith("a record of 128 to 191 was changed in the file, and its checksum")
    assert "'dafka store verify --beside'" in damage.why
    assert (done.blocks, done.linked) == (3, 300 - 64)
    tamper(tmp_path, every[150][:-1] + b"!", every[150])
    assert reopened(tmp_path).found == ()


def test_a_timestamp_that_was_changed_is_found(tmp_path: Path, clock: Clock) -> None:
    for name in ("a", "b"):
        clock.now_us += 1
        with Log(tmp_path / name, clock_us=clock) as log:
            put(log, values(80, "v", 1000))
            link(log)
            with log.snapshot() as tables:
                key, block = next((key, bytes(value)) for key, value in tables.entries(2))
    change(tmp_path / "a", b"blocks", key, block)
    assert [each.why.split(" was")[0] for each in reopened(tmp_path / "a").found] == [
        "the timestamp of a record of 0 to 63",
        "the timestamp of a record of 64 to 79",
    ]


def test_links_that_were_changed_or_removed_are_found(tmp_path: Path) -> None:
    linked(tmp_path)
    key = b"link " + (0).to_bytes(8) + (128).to_bytes(8)
    with Log(tmp_path) as log, log.snapshot() as tables:
        kept = bytes(next(value for name, value in tables.entries(0) if name == key))
    change(tmp_path, b"meta", key, kept[:-1] + b"!")
    found = reopened(tmp_path).found
    assert [(each.kind, each.offset) for each in found] == [(LINKS, 128), (LINKS, 192)]
    assert "the link of records 128 to 191, or the previous, was changed" in found[0].why
    change(tmp_path, b"meta", key, b"cut")
    with Log(tmp_path) as log:  # another store can parse the rest
        assert FoundLinks.parse(FoundLinks(tuple(links(log, TP))).packed()).links[-1].start == 256
    change(tmp_path, b"meta", key, None)
    (damage,) = reopened(tmp_path).found
    assert (damage.kind, damage.offset) == (LINKS, 128)
    assert "the link of records before 192 is missing" in damage.why


def test_a_damaged_block_is_found_once(tmp_path: Path) -> None:
    every = linked(tmp_path)
    spoil(tmp_path / "data.mdb", every[150])
    done = reopened(tmp_path)
    assert [each.kind for each in done.found] == [BLOCK]
    assert done.linked == 64 + (300 - 256)
    assert against(tmp_path, PartitionLink(*TP, 0, 200, "0" * 16, "", "")).found[0].kind == BLOCK


def test_after_a_trim_the_rest_is_compared_from_the_link_before(tmp_path: Path) -> None:
    every = linked(tmp_path)
    with Log(tmp_path) as log:
        log.trim(TP, 150)
        assert [(each.start, each.end) for each in links(log, TP)] == [
            (128, 192),
            (192, 256),
            (256, 300),
        ]
        done = checked(log)
        assert (done.found, done.linked) == ((), 300 - 192)
    tamper(tmp_path, every[250], every[250][::-1])
    assert [each.offset for each in reopened(tmp_path).found] == [192]


def test_links_made_anew_are_not_those_that_were_saved(tmp_path: Path) -> None:
    every = linked(tmp_path)
    with Log(tmp_path) as log:
        (saved,) = links(log, TP, newest=True)
        assert (saved.start, saved.end) == (256, 300)
        # Later records change nothing.
        log.append([RecordBatch.of(TP, 300, every[:50])])
        link(log)
    assert against(tmp_path, saved) == Checked(linked=44)
    tamper(tmp_path, every[10], every[11])
    assert reopened(tmp_path).found != ()
    forget_links(tmp_path)
    assert reopened(tmp_path).found == ()
    (damage,) = against(tmp_path, saved).found
    assert damage[:4] == (CHANGED, *TP, 256)
    assert damage.why.startswith("records before 300, or their times, do not match")
    tamper(tmp_path, every[290], every[291])
    (damage,) = against(tmp_path, saved).found
    assert damage.why.startswith("records 256 to 299, or their times, do not match")


def test_what_is_gone_since_is_said_and_what_was_given_up_is_not(tmp_path: Path) -> None:
    linked(tmp_path)
    with Log(tmp_path) as log:
        (saved,) = links(log, TP, newest=True)
        log.trim(TP, 257)
    assert against(tmp_path, saved) == Checked()
    longer = saved._replace(start=260, end=400)
    (damage,) = against(tmp_path, longer).found
    assert (damage.kind, damage.offset) == (CHANGED, 260)
    (damage,) = against(tmp_path, saved._replace(topic="other")).found
    assert damage.why.startswith("it ends here, but had records 256 to 299")


def test_another_history_is_no_change_of_records(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        written(log, OLD, 0, 4, "old")
        written(log, LOST, 4, 3, "lost")
        link(log)
        (saved,) = links(log, ONE)
        assert log.write([SetAside(ONE, 4)]) == [None]
        written(log, WON, 4, 5, "won")
        link(log)
        assert checked(log).found == ()
        (damage,) = check_saved(log.snapshot, saved).found
        assert damage[:4] == (REPLACED, *ONE, 0)
        assert "'dafka store aside'" in damage.why
        (newer,) = links(log, ONE)
        (aside,) = log.aside()
    change(tmp_path, b"meta", b"aside " + aside.id.to_bytes(8), b"damaged")
    assert against(tmp_path, newer) == Checked(linked=9)


def test_two_stores_are_compared_by_their_links(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        every = linked(tmp_path / name)
    tamper(tmp_path / "b", every[70], every[71])
    tamper(tmp_path / "b", every[250], every[251])
    forget_links(tmp_path / "b")
    with Log(tmp_path / "c") as log:
        log.trim(TP, 100)
    found = []
    for name in ("a", "b", "c"):
        with Log(tmp_path / name) as log:
            found.append(links(log, TP))
    a, b, c = found
    assert differences(a, c) == (300 - 64, [])
    same, (damage,) = differences(a, b)
    assert damage[:4] == (DIFFERENT, *TP, 64)
    assert damage.why.startswith("records 64 to 127 differ")
    assert same == 64
    parted = differences(
        [each._replace(life="1" * 16) for each in a], [each._replace(life="2" * 16) for each in b]
    )
    assert [each.kind for each in parted[1]] == [PARTED]
    assert differences(a, [each._replace(topic="u") for each in b]) == (0, [])

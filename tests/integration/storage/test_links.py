"""Links are of records, wherever blocks begin and end, and each holds the one before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.storage import Log
from dafka_core.storage import links as links_module
from dafka_core.storage.links import GENESIS, LINK_RECORDS, Link
from tests.integration.storage.clocks import Clock
from tests.integration.storage.linked import link, links
from tests.integration.storage.staged import put, values

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
            while log.merge_step():
                pass
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

"""Records of stores that are behind, gone, or have large ones."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dafka_console import browsing
from dafka_console.browsing import Search, browsed, details_of, one, row_of
from dafka_console.snapshot import PartitionTable, Snapshot
from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.model.envelope import closed
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S, StoreDouble
from tests.integration.console.pages import seen

TP = TopicPartition("t", "A" * 32)
OTHER = TopicPartition("t", "B" * 32)


def test_pages_are_read_from_who_has_the_records(store: StoreDouble, behind: StoreDouble) -> None:
    store.append(TP, [b"%d" % n for n in range(300)])
    behind.append(TP, [b"%d" % n for n in range(100)])
    clients = [behind.client(), store.client()]
    found = browsed(clients, seen(store, behind), TP, None, 5)
    assert [each.value for each in found.records] == [b"295", b"296", b"297", b"298", b"299"]
    assert (found.earliest, found.end, found.looked) == (0, 300, 300)
    found = browsed(clients, seen(store, behind), TP, 0, 10_000)
    assert len(found.records) == browsing.MOST_RECORDS
    assert browsed(clients, seen(store, behind), TP, 10**15, 5).records == []
    snapshot = seen(store, behind)
    store.stop()
    assert browsed(clients, snapshot, TP, 0, 5).records[-1].value == b"4"
    with pytest.raises(DafkaError):
        browsed(clients, snapshot, TP, 200, 5)


def test_what_was_trimmed_is_not_asked_for(store: StoreDouble) -> None:
    store.append(TP, [b"%d" % n for n in range(10)])
    store.log.trim(TP, 4)
    found = browsed([store.client()], seen(store), TP, 0, 3)
    assert ([each.offset for each in found.records], found.earliest) == ([4, 5, 6], 4)
    with pytest.raises(InvalidRequestError, match="offsets 4 to 9"):
        one([store.client()], seen(store), TP, 3)


def test_a_page_of_large_records_ends_early(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "MOST_PAGE_BYTES", 10_000)
    monkeypatch.setattr(browsing, "SEARCH_BYTES", 4_096)
    store.append(TP, [b"x" * 4_000] * 20)
    found = browsed([store.client()], seen(store), TP, 0, 20)
    assert 3 <= len(found.records) <= 4
    assert found.looked == len(found.records)


def test_a_search_ends_in_time_and_says_where(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "SEARCH_S", -1.0)
    monkeypatch.setattr(browsing, "SEARCH_RECORDS", 100)
    store.append(TP, [b"%d" % n for n in range(1_000)])
    found = browsed([store.client()], seen(store), TP, 0, 5, Search("999"))
    assert (found.records, found.looked, found.scanned) == ([], 100, 100)
    began = time.monotonic()
    while not found.records:
        assert time.monotonic() - began < PATIENCE_S
        found = browsed([store.client()], seen(store), TP, found.looked, 5, Search("999"))
    assert [each.offset for each in found.records] == [999]


def test_keys_values_and_nulls_in_envelopes_are_searched(store: StoreDouble) -> None:
    contents = [closed(b"v", b"key-1", ()), closed(None, b"key-2", ()), b"bare key-3"]
    store.append(TP, contents)
    for text, offsets in (("KEY-", [0, 1, 2]), ("key-2", [1]), ("v", [0]), ("none", [])):
        found = browsed([store.client()], seen(store), TP, 0, 5, Search(text))
        assert [each.offset for each in found.records] == offsets, text
    both = browsed([store.client()], seen(store), TP, 0, 5, Search("key", "offset > 1"))
    assert [each.offset for each in both.records] == [2]
    row = row_of(browsed([store.client()], seen(store), TP, 1, 1).records[0])
    assert (row["format"], row["key"], row["bytes"]) == ("null", "key-2", 0)


def test_the_last_records_are_the_last_ones_also_where_they_are_large(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "MOST_PAGE_BYTES", 10_000)
    monkeypatch.setattr(browsing, "SEARCH_BYTES", 4_096)
    store.append(TP, [b"x" * 4_000] * 20)
    store.append(OTHER, [b"x" * 40_000] * 3)
    page = browsed([store.client()], seen(store), TP, None, 20)
    assert page.looked == 20
    assert page.scanned == len(page.records) > 0
    (last,) = browsed([store.client()], seen(store), OTHER, None, 20).records
    assert last.offset == 2


def test_what_only_a_silent_store_has_is_refused_and_the_rest_is_read(
    store: StoreDouble, behind: StoreDouble
) -> None:
    store.append(TP, [b"%d" % n for n in range(10)])
    store.append(OTHER, [b"x"])
    behind.append(TP, [b"%d" % n for n in range(4)])
    table = PartitionTable()
    for each in (store, behind):
        table.hear(each.address, each.log.partitions(), complete=True)
    table.drop(store.address)
    snapshot, clients = Snapshot(1, 0.0, 0.0, table.columns()), [behind.client()]
    assert [each.offset for each in browsed(clients, snapshot, TP, None, 3).records] == [1, 2, 3]
    for tp, start, gone in ((TP, 4, "4 to 9"), (OTHER, None, "0 to 0"), (OTHER, 0, "0 to 0")):
        with pytest.raises(DafkaError, match=f"no store that has offsets {gone} answers"):
            browsed(clients, snapshot, tp, start, 3)
    with pytest.raises(DafkaError, match="no store that has offsets 4 to 9 answers"):
        one(clients, snapshot, TP, 5)


def test_details_have_headers(store: StoreDouble) -> None:
    store.append(TP, [closed(b'{"a":1}', b"k", (("h\n", b"\xff"),))])
    record = one([store.client()], seen(store), TP, 0)
    found = details_of(record, "auto", "")
    assert found["value"]["text"] == '{\n  "a": 1\n}'
    assert found["headers"][0]["name"] == "h\\x0a"
    assert found["headers"][0]["value"]["format"] == "hex"
    assert found["topic"] == "t"


def test_a_condition_that_is_none_is_refused() -> None:
    matcher: Callable[[], object] = Search("", "value ==").matcher
    with pytest.raises(InvalidRequestError, match="where"):
        matcher()

"""Records of a topic merged over its partitions, newest first."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dafka_console import browsing
from dafka_console.browsing import View, Views, details_of, last, one, opened, page, row_of, search
from dafka_console.snapshot import PartitionTable, Snapshot
from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.envelope import closed
from dafka_core.model.records import UNKNOWN_US, Record, RecordBatch, TopicPartition
from dafka_core.testing import PATIENCE_S, StoreDouble
from tests.integration.console.pages import seen

TP = TopicPartition("t", "A" * 32)
OTHER = TopicPartition("t", "B" * 32)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no page end early on a busy machine."""
    monkeypatch.setattr(browsing, "SEARCH_S", PATIENCE_S)


def write(store: StoreDouble, tp: TopicPartition, *times_us: int) -> None:
    """Append records whose values are their times."""
    start = next((each.end for each in store.log.partitions() if each.tp == tp), 0)
    batch = RecordBatch.of(tp, start, [b"%d" % time_us for time_us in times_us])
    runs = np.array([(1, time_us) for time_us in times_us], np.int64)
    store.log.append([replace(batch, times=runs)])


def newest(
    clients: Sequence[StoreClient], snapshot: Snapshot, topic: str, most: int
) -> list[Record]:
    return page(clients, snapshot, opened(clients, snapshot, topic), most)[0]


def pages(
    clients: Sequence[StoreClient], snapshot: Snapshot, view: View, most: int
) -> list[list[Record]]:
    found = []
    while view.parts:
        records, view = page(clients, snapshot, view, most)
        found.append(records)
    assert view.scanned == view.total
    return found


def places(records: Sequence[Record]) -> list[tuple[str, int]]:
    return [(each.partition[0], each.offset) for each in records]


def test_one_partition_is_read_below_any_offset_from_the_stores_that_have_it(
    store: StoreDouble, behind: StoreDouble
) -> None:
    store.append(TP, [b"%d" % n for n in range(300)])
    store.append(OTHER, [b"x"])
    behind.append(TP, [b"%d" % n for n in range(100)])
    clients, snapshot = [behind.client(), store.client()], seen(store, behind)

    def below(before: int | None, most: int = 5) -> list[int]:
        view = opened(clients, snapshot, "t", partition=TP.partition, before=before)
        return [each.offset for each in page(clients, snapshot, view, most)[0]]

    newest = [299, 298, 297, 296, 295]
    assert [below(each) for each in (None, 10**18, 300, 50, 2, 0, -9)] == [
        *([newest] * 3),
        *([49, 48, 47, 46, 45], [1, 0], [], []),
    ]
    assert len(below(None, 10_000)) == browsing.MOST_RECORDS
    assert [each.offset for each in last(clients, snapshot, TP, 3)] == [297, 298, 299]
    with pytest.raises(InvalidRequestError, match="no store that answers has records of it"):
        opened(clients, snapshot, "t", partition="none")
    store.stop()
    assert below(50) == [49, 48, 47, 46, 45]
    with pytest.raises(DafkaError):
        below(200)


def test_one_record_is_read_with_its_key_and_headers(store: StoreDouble) -> None:
    store.append(TP, [closed(b'{"a":1}', b"k", (("h\n", b"\xff"),))] * 10)
    store.log.trim(TP, 4)
    clients = [store.client()]
    found = details_of(one(clients, seen(store), TP, 4), "auto", "")
    assert found["value"]["text"] == '{\n  "a": 1\n}'
    assert found["headers"][0]["name"] == "h\\x0a"
    assert found["headers"][0]["value"]["format"] == "hex"
    assert (found["topic"], found["key"]["text"]) == ("t", "k")
    for offset in (3, 10):
        with pytest.raises(InvalidRequestError, match="offsets 4 to 9"):
            one(clients, seen(store), TP, offset)


def test_keys_values_and_nulls_in_envelopes_are_searched(store: StoreDouble) -> None:
    contents = [closed(b"v", b"key-1", ()), closed(None, b"key-2", ()), b"bare key-3"]
    store.append(TP, contents)
    clients, snapshot = [store.client()], seen(store)
    for text, where, offsets in (
        ("KEY-", "", [2, 1, 0]),
        ("key-2", "", [1]),
        ("v", "", [0]),
        ("none", "", []),
        ("key", "offset > 1", [2]),
    ):
        view = opened(clients, snapshot, "t", search(text, where))
        found, _ = page(clients, snapshot, view, 5)
        assert [each.offset for each in found] == offsets, (text, where)
    row = row_of(one(clients, snapshot, TP, 1))
    assert (row["format"], row["key"], row["bytes"]) == ("null", "key-2", 0)


def test_the_last_records_are_in_the_order_of_their_offsets_at_every_number(
    store: StoreDouble,
) -> None:
    # Records that are appended together have one time, and batches end anywhere.
    for size in (1, 7, 200, 3, 300, 2):
        store.append(TP, [b"x"] * size)
        store.append(OTHER, [b"y"] * (size + 1))
    snapshot = seen(store)
    everything = [each[:4] for each in newest([store.client()], snapshot, "t", 200)]
    for most in range(1, 201):
        found = newest([store.client()], snapshot, "t", most)
        assert len(found) == most
        for tp, end in ((TP, 513), (OTHER, 519)):
            own = [each.offset for each in found if each.partition == tp.partition]
            assert own == [*range(end - 1, end - 1 - len(own), -1)]
        times = [each.timestamp_us or 0 for each in found]
        assert times == sorted(times, reverse=True)
        assert [each[:4] for each in found] == everything[:most]


def test_the_last_records_follow_their_offsets_also_where_their_times_do_not(
    store: StoreDouble,
) -> None:
    times = [3, 9, UNKNOWN_US, 4, 8]
    runs = np.array([(1, time_us) for time_us in times], np.int64)
    store.log.append([replace(RecordBatch.of(TP, 0, [b"x"] * 5), times=runs)])
    store.log.append([replace(RecordBatch.of(OTHER, 0, [b"y"]), times=np.array([(1, 5)]))])
    found = newest([store.client()], seen(store), "t", 10)
    assert [(each.value, each.offset) for each in found] == [
        *((b"x", 4), (b"x", 3), (b"x", 2), (b"x", 1)),
        *((b"y", 0), (b"x", 0)),
    ]


def test_pages_continue_each_other_to_the_first_record(store: StoreDouble) -> None:
    tps = [TopicPartition("t", f"{n:032X}") for n in range(30)]
    times = np.random.default_rng(1).permutation(np.arange(1, 1 + 30 * 70)).reshape(30, 70)
    for tp, own in zip(tps, np.sort(times), strict=True):
        write(store, tp, *own.tolist())
    clients, snapshot = [store.client()], seen(store)
    found = pages(clients, snapshot, opened(clients, snapshot, "t"), 64)
    assert [len(each) for each in found] == [64] * 32 + [52]
    assert [each.timestamp_us for rows in found for each in rows] == [*range(2_100, 0, -1)]


def test_only_partitions_with_records_of_the_page_are_read(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(40):
        write(store, TopicPartition("t", f"{n:032X}"), 10 * n + 1, 10 * n + 5)
    read = []
    batches = browsing.batches

    def noted(*given: object) -> object:
        read.append(given[2])
        return batches(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(browsing, "batches", noted)
    found = newest([store.client()], seen(store), "t", 5)
    assert [each.value for each in found] == [b"395", b"391", b"385", b"381", b"375"]
    assert len(read) == 3


def test_of_many_partitions_the_times_of_the_console_are_used(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "MOST_ASKED", 1)
    for n in range(4):
        write(store, TopicPartition("t", f"{n:032X}"), 10 * n + 1, 10 * n + 5)
    table = PartitionTable()
    table.hear(store.address, store.log.partitions(), complete=True)
    for is_known in (False, True):
        snapshot = Snapshot(1, 0.0, 0.0, table.columns())
        view = opened([store.client()], snapshot, "t")
        assert ({part.latest_us for part in view.parts} == {5, 15, 25, 35}) is is_known
        found = page([store.client()], snapshot, view, 50)[0]
        assert [each.timestamp_us for each in found] == [35, 31, 25, 21, 15, 11, 5, 1]
        table.learn(store.client().facts("t", timeout_s=PATIENCE_S))


def test_a_range_of_times_is_one_over_all_partitions(store: StoreDouble) -> None:
    write(store, TP, 10, 20, 30, 5, 40)
    write(store, OTHER, 15, 20, 25)
    clients, snapshot = [store.client()], seen(store)
    for since_us, until_us, expected in (
        (20, 40, [("A", 3), ("A", 2), ("B", 2), ("A", 1), ("B", 1)]),
        (None, 16, [("B", 0), ("A", 0)]),
        (26, None, [("A", 4), ("A", 3), ("A", 2)]),
        (41, None, []),
        (None, 10, []),
    ):
        view = opened(clients, snapshot, "t", search(), since_us, until_us)
        assert places(page(clients, snapshot, view, 50)[0]) == expected, (since_us, until_us)


def test_a_search_finds_all_that_matches_in_all_partitions(store: StoreDouble) -> None:
    for n in range(3_000):
        if n % 500 == 0:
            write(store, TopicPartition("t", f"{n // 500:032X}"), *range(n + 1, n + 501))
    clients, snapshot = [store.client()], seen(store)
    view = opened(clients, snapshot, "t", search("77", "offset > 300"), 600, 2_990)
    found = [each for rows in pages(clients, snapshot, view, 3) for each in rows]
    expected = [n for n in range(2_989, 599, -1) if "77" in str(n) and (n - 1) % 500 > 300]
    assert [each.timestamp_us for each in found] == expected
    with pytest.raises(InvalidRequestError, match="where"):
        opened(clients, snapshot, "t", search("", "value =="))


def test_a_search_ends_in_time_and_continues(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "SEARCH_S", -1.0)
    write(store, TP, *range(1, 2_001))
    write(store, OTHER, *range(1, 1_001))
    clients, snapshot = [store.client()], seen(store)
    found, view = page(clients, snapshot, opened(clients, snapshot, "t", search("2000")), 5)
    assert (places(found), view.scanned) == ([("A", 1_999)], 50)
    view = opened(clients, snapshot, "t", search("", "offset = 3"))
    found, view = page(clients, snapshot, view, 5)
    assert (found, view.scanned) == ([], 50)
    rest = pages(clients, snapshot, view, 5)
    assert places([each for rows in rest for each in rows]) == [("A", 3), ("B", 3)]
    assert len(rest) < 20  # chunks without a match grow


def test_large_records_are_the_newest_ones_and_pages_end_early(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "MOST_PAGE_BYTES", 10_000)
    monkeypatch.setattr(browsing, "SEARCH_BYTES", 4_096)
    store.append(TP, [b"x" * 4_000] * 20)
    store.append(OTHER, [b"x" * 40_000] * 3)
    clients, snapshot = [store.client()], seen(store)
    found = pages(clients, snapshot, opened(clients, snapshot, "t"), 20)
    assert max(map(len, found)) == 3
    assert places([each for rows in found for each in rows]) == [
        *(("B", n) for n in (2, 1, 0)),
        *(("A", n) for n in range(19, -1, -1)),
    ]


def test_keys_and_headers_count_for_the_size_of_a_page(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "MOST_PAGE_BYTES", 10_000)
    store.append(TP, [closed(b"", b"k" * 2_000, [("h", b"v" * 2_000)])] * 20)
    clients, snapshot = [store.client()], seen(store)
    found = pages(clients, snapshot, opened(clients, snapshot, "t"), 20)
    assert max(map(len, found)) == 3
    assert sum(map(len, found)) == 20


def test_what_only_a_silent_store_has_is_counted_and_the_rest_is_read(
    store: StoreDouble, behind: StoreDouble
) -> None:
    write(store, TP, *range(1, 11))
    write(store, OTHER, 3)
    write(behind, TP, *range(1, 5))
    both = [store.client(), behind.client()]
    assert places(newest(both, seen(store, behind), "t", 2)) == [("A", 9), ("A", 8)]
    begun = opened(both, seen(store, behind), "t")
    table = PartitionTable()
    for each in (store, behind):
        table.hear(each.address, each.log.partitions(), complete=True)
    table.drop(store.address)
    snapshot, clients = Snapshot(1, 0.0, 0.0, table.columns()), [behind.client()]
    view = opened(clients, snapshot, "t")
    assert (places(page(clients, snapshot, view, 3)[0]), view.away) == (
        [("A", n) for n in (3, 2, 1)],
        2,
    )
    for read in (lambda: page(clients, snapshot, begun, 3), lambda: one(clients, snapshot, TP, 5)):
        with pytest.raises(DafkaError, match="no store that has offsets 4 to 9 answers"):
            read()
    with pytest.raises(DafkaError, match="no store that has offsets 0 to 0 answers"):
        opened(clients, snapshot, "t", partition=OTHER.partition)
    table.drop(behind.address)
    with pytest.raises(DafkaError, match="no store that has records of topic 't' answers"):
        opened([], Snapshot(1, 0.0, 0.0, table.columns()), "t")


def test_another_store_is_read_in_place_of_one_that_just_died(
    store: StoreDouble, behind: StoreDouble
) -> None:
    for each in (store, behind):
        write(each, TP, 1, 2, 3)
        write(each, OTHER, 4)
    clients, snapshot = [store.client(), behind.client()], seen(store, behind)
    view = opened(clients, snapshot, "t")
    store.stop()
    assert places(page(clients, snapshot, view, 9)[0]) == [("B", 0), ("A", 2), ("A", 1), ("A", 0)]
    assert places(newest(clients, snapshot, "t", 2)) == [("B", 0), ("A", 2)]


def test_records_that_were_deleted_since_are_left_out(store: StoreDouble) -> None:
    write(store, TP, *range(1, 11))
    clients = [store.client()]
    view = opened(clients, seen(store), "t")
    found, view = page(clients, seen(store), view, 2)
    store.log.trim(TP, 6)
    rest = pages(clients, seen(store), view, 50)
    assert places(found + rest[0]) == [("A", n) for n in (9, 8, 7, 6)]


def test_the_last_views_are_kept() -> None:
    kept, part = Views(), browsing.Part(1, TP, 0, 1)
    views = [View(search(str(n)), (part,), 1, 0) for n in range(browsing.MOST_VIEWS + 1)]
    names = [kept.keep(view) for view in views]
    assert [kept.named(name) for name in names[1:]] == views[1:]
    with pytest.raises(InvalidRequestError, match="search again"):
        kept.named(names[0])
    assert kept.keep(View(search(), (), 1, 0)) == ""

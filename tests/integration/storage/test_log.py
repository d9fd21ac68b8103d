"""The log: appending, reading, times, trimming; on real LMDB."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.errors import ClosedError, OffsetConflictError
from dafka_core.model.log_entries import Commit, SetAside, Stage
from dafka_core.model.records import (
    NO_VERSION,
    PartitionInfo,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
)
from dafka_core.model.values import Values
from dafka_core.storage import Log
from tests.integration.storage.staged import Clock, clean

P = "A" * 32
TP = TopicPartition("t", P)


def put(store: Log, values: list[bytes], topic: str = "t", partition: str = P) -> None:
    tp = TopicPartition(topic, partition)
    store.append([RecordBatch.of(tp, store.end(tp), values)])


def large(count: int, first: int = 0) -> list[bytes]:
    """Return values of which any hundred make a block that is not extended."""
    return [b"%08d" % number * 125 for number in range(first, first + count)]


def values_of(batches: list[RecordBatch]) -> list[bytes]:
    for before, after in itertools.pairwise(batches):
        assert before.end == after.offset
    return [value for batch in batches for value in batch.values.to_list()]


def test_an_empty_log_knows_nothing(store: Log) -> None:
    assert store.partitions() == []
    assert store.info(TP) is None
    assert store.end(TP) == 0
    assert store.read(TP, 0, 10) == []
    assert store.times(TP, 0, 10) == []
    assert store.offset_for_time(TP, 0) is None
    assert store.trim(TP, 0) == 0
    store.append([])
    assert store.partitions() == []


def test_partitions_are_listed_by_topic(store: Log) -> None:
    for topic, partition in (("b", "1"), ("a", "2"), ("ab", "1"), ("a", "1"), ("ü", "\udcff")):
        put(store, [b"x"], topic, partition)
    names = [(info.topic, info.partition) for info in store.partitions()]
    assert names == [("a", "1"), ("a", "2"), ("ab", "1"), ("b", "1"), ("ü", "\udcff")]
    assert store.partitions("a") == [PartitionInfo("a", "1", 0, 1), PartitionInfo("a", "2", 0, 1)]
    assert store.partitions("zz") == store.partitions("0") == []


def test_partitions_are_listed_some_at_a_time(store: Log) -> None:
    names = [("s", "B"), *(("t", f"{i}") for i in range(5)), ("x" * 255, "y" * 255)]
    for name, partition in names:
        put(store, [b"value"], name, partition)
    cases: list[tuple[str | None, list[tuple[str, str]]]] = [
        (None, names),
        ("t", names[1:6]),
        ("unknown", []),
    ]
    for topic, expected in cases:
        found: list[PartitionInfo] = []
        while part := store.partitions_after(topic, found[-1].tp if found else None, 2):
            assert len(part) <= 2
            found += part
        assert found == store.partitions(topic)
        assert [info.tp for info in found] == expected
        # An earlier one may have gone by now.
        gone = TopicPartition("z", "gone") if topic is None else TopicPartition(topic, "z")
        assert store.partitions_after(topic, gone, 2) == []


@pytest.mark.parametrize(
    ("topic", "partition", "why"),
    [("t" * 256, "p" * 255, "511 bytes together, a store accepts 510"), ("a\0b", "c", "zero byte")],
)
def test_names_that_do_not_fit_are_refused(
    store: Log, topic: str, partition: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        store.append([RecordBatch.of(TopicPartition(topic, partition), 0, [b"x"])])
    put(store, [b"x"], "t" * 255, "p" * 255)
    assert store.end(TopicPartition("t" * 255, "p" * 255)) == 1


def test_an_append_is_whole_or_nothing(store: Log) -> None:
    good = [
        RecordBatch.of(TP, 0, [b"a"]),
        RecordBatch.of(TP, 1, [b"b"]),
        RecordBatch.of(TopicPartition("u", P), 0, [b"c"]),
    ]
    with pytest.raises(OffsetConflictError):
        store.append([*good, RecordBatch.of(TP, 3, [b"gap"])])
    with pytest.raises(ValueError, match=f"topic 'v', partition {P}, append at offset 0"):
        store.append([*good, RecordBatch.of(TopicPartition("v", P), 0, [])])
    with pytest.raises(TypeError):
        store.append([*good, RecordBatch.of(TopicPartition("v", P), 0, ["text"])])  # type: ignore[list-item]
    assert store.partitions() == []
    store.append(good)
    assert values_of(store.read(TP, 0, 2)) == [b"a", b"b"]
    assert values_of(store.read(TopicPartition("u", P), 0, 2)) == [b"c"]


def test_reads_obey_their_limits(store: Log) -> None:
    values = large(100) + large(100, 100) + large(100, 200)
    for start in (0, 100, 200):
        put(store, values[start : start + 100])
    read = store.read
    assert values_of(read(TP, -5, 999)) == values
    assert values_of(read(TP, 7, 8)) == values[7:8]
    assert read(TP, 300, 400) == read(TP, 8, 8) == read(TP, 9, 8) == []
    assert values_of(read(TP, 50, 300, max_records=100)) == values[50:150]
    assert values_of(read(TP, 50, 300, max_records=50)) == values[50:100]
    assert values_of(read(TP, 50, 300, max_bytes=60_000)) == values[50:110]
    assert values_of(read(TP, 50, 300, max_bytes=50_999)) == values[50:100]
    assert values_of(read(TP, 50, 300, max_bytes=1)) == values[50:51]
    assert values_of(read(TP, 50, 300, max_records=0)) == values[50:51]


def test_ranges_of_many_partitions_are_read_at_once(store: Log) -> None:
    put(store, [b"a", b"bb"], partition="A")
    put(store, [b"ccc", b"d"], partition="B")
    put(store, [b"e"], partition="C")
    store.trim(TopicPartition("t", "B"), 1)
    wanted = [
        PartitionInfo("t", "A", 1, 9),
        PartitionInfo("t", "B", 0, 2),
        PartitionInfo("t", "unknown", 0, 1),
        PartitionInfo("t", "C", 1, 2),
        PartitionInfo("t", "B", 1, 2),
    ]
    found = store.read_each(wanted, max_records=9, max_bytes=99)
    assert found[1:4] == [None] * 3
    batches = [batch for batch in found if isinstance(batch, RecordBatch)]
    assert [(batch.tp.partition, batch.offset, list(batch.values)) for batch in batches] == [
        ("A", 1, [b"bb"]),
        ("B", 1, [b"d"]),
    ]
    assert len(store.read_each(wanted, max_records=1, max_bytes=99)) == 1
    both = [PartitionInfo("t", "A", 0, 2), PartitionInfo("t", "C", 0, 1)]
    for limits in ({"max_records": 1, "max_bytes": 99}, {"max_records": 9, "max_bytes": 1}):
        (first,) = store.read_each(both, **limits)
        assert isinstance(first, RecordBatch)
        assert list(first.values) == [b"a"]


def test_times_are_run_length_encoded(store: Log, clock: Clock) -> None:
    for now_us, count in ((1_000, 100), (1_000, 100), (2_000, 100), (1_500, 100), (3_000, 1)):
        clock.now_us = now_us
        put(store, large(count))
    assert store.times(TP, 0, 999) == [(0, 1_000), (200, 2_000), (300, 1_500), (400, 3_000)]
    assert store.times(TP, 150, 250) == [(150, 1_000), (200, 2_000)]
    assert store.times(TP, 250, 251) == [(250, 2_000)]
    assert store.times(TP, 401, 999) == []


def stamped(offset: int, stamps: list[int], size_bytes: int = 1000) -> RecordBatch:
    times = np.array([[1, us] for us in stamps], np.int64)
    return RecordBatch(TP, offset, Values.of([b"x" * size_bytes] * len(stamps)), times=times)


def test_an_invalid_timestamp_leaves_the_clock_alone(store: Log, clock: Clock) -> None:
    store.append([stamped(0, [-(2**63)])])
    assert store.times(TP, 0, 1) == [(0, clock.now_us)]
    assert store.clock.doubt() == ""


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(-9, 9), min_size=1, max_size=4),  # times
        st.sampled_from([1, 1000, 40_000]),
        st.sampled_from(["append", "stage", "merge", "trim", "set aside"]),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_the_offset_for_a_time_is_that_of_a_scan(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[int], int, str]]
) -> None:
    with Log(tmp_path_factory.mktemp("store"), clock_us=lambda: 9) as store:
        times, earliest = list[int](), 0
        for stamps, size_bytes, then in steps:
            batch = stamped(len(times), stamps, size_bytes)
            if then == "stage":
                end = batch.end
                transaction = StagedTransaction(*TP, "A" * 32, batch.offset, end, NO_VERSION)
                assert store.write([Stage(batch, "A" * 32), Commit((transaction,))]) == [None] * 2
            else:
                store.append([batch])
            times += stamps
            if then == "merge":
                clean(store)
            elif then == "trim":
                earliest = store.trim(TP, max(earliest, len(times) - len(stamps) // 2))
            elif then == "set aside":
                start = max(earliest, len(times) - 2)
                assert store.write([SetAside(TP, start)]) == [None]
                del times[start:]
            for wanted in range(-10, 11):
                later = [n for n, us in enumerate(times) if us >= wanted and n >= earliest]
                assert store.offset_for_time(TP, wanted) == (later[0] if later else None)
                after = store.offset_for_time(TP, wanted, after_all=True)
                older = [n for n, us in enumerate(times) if us < wanted and n >= earliest]
                assert after is None or not older or after > older[-1]


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    store = Log(tmp_path)
    put(store, [b"a"])
    store.close()
    store.close()
    with pytest.raises(ClosedError):
        store.read(TP, 0, 1)
    with pytest.raises(ClosedError):
        put(store, [b"b"])
    with pytest.raises(ClosedError):
        store.append([RecordBatch.of(TP, 1, [b"b"])])


def test_a_store_that_only_ingests_does_not_load_arrow(tmp_path: Path) -> None:
    program = (
        "import sys; from dafka_core.storage import Log;"
        "from dafka_core.model.records import RecordBatch, TopicPartition;"
        "log = Log(sys.argv[1]); tp = TopicPartition('t', 'p');"
        "log.append([RecordBatch.of(tp, 0, [b'a'])]); (batch,) = log.read(tp, 0, 1);"
        "print(batch.values.to_list(), 'pyarrow' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.check_output(command, cwd=root, text=True) == "[b'a'] False\n"


A, B, C, NONE = (TopicPartition("t", name) for name in "ABCN")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path)
    for tp in (A, B, C):
        for start in (0, 4):
            log.append([RecordBatch.of(tp, start, [b"%d" % start * 100_000] * 4)])
    return log


def test_one_lease_covers_many_ranges(log: Log) -> None:
    with log:
        wanted = [(A, 0, 8), (NONE, 0, 1), (B, 5, 6), (C, 2, 2)]
        found, lease = log.lease(wanted, max_blocks=100, max_bytes=1 << 30)
        assert lease is not None
        assert [placed.held for placed in found] == [
            PartitionInfo(*A, 0, 8),
            None,
            PartitionInfo(*B, 0, 8),
            PartitionInfo(*C, 0, 8),
        ]
        assert [[first for first, *_ in placed.blocks] for placed in found] == [[0, 4], [], [4], []]
        log.end_lease(lease.id)


@pytest.mark.parametrize(
    ("max_blocks", "max_bytes", "blocks"),
    [
        (1, 1 << 30, [[0]]),
        (2, 1 << 30, [[0, 4]]),
        (3, 1 << 30, [[0, 4], [0]]),
        (100, 1, [[0]]),
        (100, 900_000, [[0, 4], [0]]),
    ],
)
def test_a_lease_has_its_limits(
    log: Log, max_blocks: int, max_bytes: int, blocks: list[list[int]]
) -> None:
    with log:
        wanted = [(tp, 0, 8) for tp in (A, B, C)]
        found, lease = log.lease(wanted, max_blocks=max_blocks, max_bytes=max_bytes)
        assert [[first for first, *_ in placed.blocks] for placed in found] == blocks
        assert lease is not None

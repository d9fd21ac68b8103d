"""Retention of a log on disk: by age, by size, in whole blocks, with a bounded file.

It examines blocks once, and again only if their partition has changed.
"""

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from dafka_core.config.topic_rules import parse_rules
from dafka_core.errors import DafkaError, StoreError
from dafka_core.model.log_entries import SetAside, Stage
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log, block, entry_writer, retention
from dafka_core.storage.retention import HeldBlocks, Retention, Unread
from dafka_core.storage.snapshot import HeldBlock
from tests.integration.storage.damage import change
from tests.integration.storage.staged import Clock, clean
from tests.integration.storage.test_block_compressor import compress

A, B = TopicPartition("flights", "A" * 32), TopicPartition("flights", "B" * 32)
OTHER = TopicPartition("other", "A" * 32)
S = 1_000_000
DAY_S = 86_400


@pytest.fixture(autouse=True)
def each_append_makes_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)


def put(log: Log, tp: TopicPartition, count: int = 10, size_bytes: int = 1_000) -> None:
    log.append([RecordBatch.of(tp, log.end(tp), [b"x" * size_bytes] * count)])


def once(retention: Retention) -> int:
    """Run one pass; return its number of steps."""
    retention.run(pause := Mock())
    return pause.call_count


def held(log: Log) -> dict[TopicPartition, tuple[int, int]]:
    return {info.tp: (info.earliest, info.end) for info in log.partitions()}


def test_what_is_older_than_the_age_goes_in_whole_blocks(store: Log, clock: Clock) -> None:
    for at_s in (10, 20, 30):
        clock.now_us = at_s * S
        for tp in (A, B, OTHER):
            put(store, tp)
    put(store, A)
    retention = Retention(store, parse_rules("flights=60s"))
    for now_s, earliest in ((70, 0), (70.1, 10), (75, 10), (80.1, 20), (90, 20)):
        clock.now_us = int(now_s * S)
        once(retention)
        assert held(store) == {A: (earliest, 40), B: (earliest, 30), OTHER: (0, 30)}
    clock.now_us = 91 * S
    once(retention)
    assert held(store) == {A: (40, 40), B: (30, 30), OTHER: (0, 30)}
    assert retention.counts.records == 70
    assert retention.counts.passes == 6
    put(store, A)
    once(retention)
    assert held(store)[A] == (40, 50)


def test_by_size_the_oldest_blocks_of_a_topic_go(store: Log, clock: Clock) -> None:
    for number, tp in enumerate((A, A, B, A, B, OTHER)):
        clock.now_us = number * S
        put(store, tp)
    retention = Retention(store, parse_rules("flights=25kB"))
    once(retention)
    assert held(store) == {A: (20, 30), B: (0, 20), OTHER: (0, 10)}
    once(retention)
    assert retention.counts.records == 20
    clock.now_us = 10 * S
    put(store, A)
    once(retention)
    assert held(store) == {A: (20, 40), B: (10, 20), OTHER: (0, 10)}
    retention.rules = parse_rules("*=1B")
    once(retention)
    assert held(store) == {A: (30, 40), B: (20, 20), OTHER: (0, 10)}


def test_by_size_compressed_blocks_count_as_they_are_on_the_disk(store: Log, clock: Clock) -> None:
    for _ in range(4):
        put(store, A, 100)
    retention = Retention(store, parse_rules("flights=450kB"))
    once(retention)
    clock.now_us = 100 * S
    assert compress(store, after_s=60).blocks == 4
    for _ in range(4):
        put(store, A, 100)
    once(retention)
    assert held(store) == {A: (0, 800)}
    put(store, A, 100)
    once(retention)
    assert held(store) == {A: (400, 900)}


def test_by_size_blocks_in_the_place_of_compressed_ones_count_as_they_are(store: Log) -> None:
    retention = Retention(store, parse_rules("flights=450kB"))
    for counts, compressed in (([100] * 4, 4), ([150] * 2, 2), ([110] * 3, 0)):
        for count in counts:
            put(store, A, count)
        once(retention)
        if compressed:
            assert compress(store).blocks == compressed
            once(retention)
        if compressed == 4:
            store.write([SetAside(A, 200)])
            store.discard_aside(store.aside()[0].id)
    assert held(store) == {A: (0, 830)}


def test_a_rule_is_of_each_topic_by_itself(store: Log, clock: Clock) -> None:
    for tp, _ in itertools.product((A, OTHER), range(4)):
        put(store, tp)
    once(Retention(store, parse_rules("other=forever *=21kB")))
    assert held(store) == {A: (10, 40), OTHER: (0, 40)}


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_clock_that_is_ahead_when_the_log_is_opened_is_doubted_for_an_hour(
    tmp_path: Path, clock: Clock, restarts: int
) -> None:
    def passes(log: Log) -> tuple[int, int]:
        once(retention := Retention(log, parse_rules("flights=1d")))
        assert retention.counts.passes == 1
        return held(log)[A]

    clock.now_us = 20_000 * DAY_S * S
    with Log(tmp_path, clock_us=clock) as log:
        put(log, A)
    clock.now_us += 2 * DAY_S * S
    for _ in range(restarts):  # records written during the doubt are no evidence
        with Log(tmp_path, clock_us=clock) as log:
            put(log, B)
            clock.now_us += 60 * S
            put(log, B)
            assert passes(log) == (0, 10)
    with Log(tmp_path, clock_us=clock) as log:
        assert passes(log) == (0, 10)
        clock.now_us += 3_599 * S
        assert passes(log) == (0, 10)
        clock.now_us += S
        assert passes(log) == (10, 10)


def test_small_batches_in_the_append_area_go_too(
    store: Log, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 64 << 10)
    for at_s in range(10):
        clock.now_us = at_s * S
        put(store, A, 1, 100)
    clock.now_us = 65 * S
    once(Retention(store, parse_rules("flights=60s")))
    assert held(store)[A][1] == 10
    assert 0 < held(store)[A][0] <= 5
    clock.now_us = 70 * S
    once(Retention(store, parse_rules("flights=60s")))
    assert held(store)[A] == (10, 10)


def test_blocks_merged_since_they_were_looked_at_go_as_a_whole(store: Log, clock: Clock) -> None:
    retention = Retention(store, parse_rules("flights=100kB"))
    for _ in range(64):
        put(store, A)
    once(retention)
    assert held(store)[A] == (540, 640)
    clean(store)
    for _ in range(5):
        put(store, A)
    once(retention)
    with store.snapshot() as snapshot:
        blocks = snapshot.blocks(A)
        assert blocks is not None
        assert blocks.bounds[0] == held(store)[A][0]
        assert len(blocks) < 15
        assert 100_000 <= sum(block.size_bytes for block in blocks) < 200_000


def test_a_pass_goes_on_in_small_steps(
    store: Log, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dafka_core.storage.retention.STEP_BYTES", 40_000)
    trim_each = Mock(wraps=store.trim_each)
    monkeypatch.setattr(store, "trim_each", trim_each)
    for _ in range(100):
        put(store, A)
    retention = Retention(store, parse_rules("flights=1kB"))
    assert once(retention) > 100 * 10 // 40
    assert held(store)[A] == (990, 1000)
    trims = [len(each.args[0]) for each in trim_each.call_args_list]
    assert trims == [1] * 7  # of at most 16 blocks each
    many = [TopicPartition("many", f"{number:032X}") for number in range(40)]
    store.append([RecordBatch.of(tp, 0, [b"x"]) for tp in many])
    clock.now_us = 10 * S
    retention.rules = parse_rules("many=1s")
    trim_each.reset_mock()
    once(retention)
    assert [len(each.args[0]) for each in trim_each.call_args_list] == [16, 16, 8]


def test_nothing_goes_that_is_not_archived(store: Log, clock: Clock) -> None:
    archived, upto = list[tuple[TopicPartition, int]](), [25]

    def archive(tp: TopicPartition, before: int) -> int:
        if upto[0] < 0:
            raise StoreError(Path("archive"), "the disk is full")
        archived.append((tp, before))
        return min(upto[0], before)

    for _ in range(5):
        put(store, A)
    clock.now_us = 100 * S
    retention = Retention(store, parse_rules("*=1s"), archive)
    once(retention)
    assert archived == [(A, 50)]
    assert held(store)[A] == (20, 50)
    upto[0] = -1
    with pytest.raises(StoreError, match="the disk is full"):
        once(retention)
    assert held(store)[A] == (20, 50)
    upto[0] = 50
    once(retention)
    assert held(store)[A] == (50, 50)


def test_records_of_a_producer_that_took_over_meanwhile_stay(store: Log, clock: Clock) -> None:
    for _ in range(4):
        put(store, A)
    clock.now_us = 100 * S
    with store.snapshot() as snapshot:
        blocks = snapshot.blocks(A)
        assert blocks is not None
        info = blocks.info
    store.write([SetAside(A, 20)])
    assert store.trim_each([(info, 40)]) == [0]
    assert store.trim_each([(info, 10), (info._replace(topic="unknown"), 10)]) == [10, 0]
    once(Retention(store, parse_rules("*=1s")))
    assert held(store)[A] == (20, 20)


def ingest(log: Log, clock: Clock, days: float, retention: Retention) -> Iterator[int]:
    """Append for some days, 144 times each; return the file's size after each append."""
    for _ in range(int(days * 144)):
        clock.now_us += DAY_S * S // 144
        for tp in (A, B):
            put(log, tp, 100, 1_000)
        log.merge_step()
        once(retention)
        yield log.space().file_bytes


@pytest.mark.parametrize("rules", ["flights=1d", "flights=30MB"])
def test_under_days_of_ingest_the_file_stays_as_large(
    store: Log, clock: Clock, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "MAX_BLOCK_RECORDS", 2_000)
    retention = Retention(store, parse_rules(rules))
    settled = max(ingest(store, clock, 1.5, retention))
    assert settled <= 50_000_000
    assert max(ingest(store, clock, 2.5, retention)) <= 1.1 * settled
    for tp, (earliest, end) in held(store).items():
        assert end == 4 * 144 * 100
        assert 144 * 100 <= end - earliest <= 144 * 100 + 2 * 2_000
        assert store.read(tp, earliest, end, max_records=1)[0].offset == earliest


def test_what_is_not_of_a_rule_is_forgotten_by_retention(
    store: Log, clock: Clock, tmp_path: Path
) -> None:
    retention = Retention(store, parse_rules("*=1d,1GB"))
    for tp in (A, B, OTHER):
        put(store, tp)
    once(retention)
    remembered: Callable[[], int] = lambda: len(retention._first) + len(retention._held)  # noqa: E731
    assert remembered() == 6
    retention.rules = parse_rules("other=1d")
    once(retention)
    assert remembered() == 2


class Query:
    """A query that has read up to these positions; other partitions are unread."""

    def __init__(self, **positions: int) -> None:
        self.positions = {
            TopicPartition("flights", name * 32): positions[name] for name in positions
        }
        self.looks = 0

    def look(self) -> list[StoreError]:
        self.looks += 1
        return []

    def unread(self, tp: TopicPartition) -> Unread | None:
        return Unread(self.positions[tp], "hourly") if tp in self.positions else None


def retention_of(store: Log, rules: str, limits: str, query: Query) -> Retention:
    return Retention(store, parse_rules(rules), until_read=parse_rules(limits), readers=query)


def filled(store: Log, clock: Clock) -> None:
    """A block a second in each partition, of 10 kB."""
    for at_s in range(6):
        clock.now_us = at_s * S
        for tp in (A, B, OTHER):
            put(store, tp)
    clock.now_us = 100 * S


def test_what_is_not_read_stays_until_it_is(
    store: Log, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    filled(store, clock)
    query = Query(A=25)
    retention = retention_of(store, "*=50s", "flights=forever", query)
    with caplog.at_level(logging.INFO, "dafka.store"):
        once(retention)
        # In whole blocks; B has no reader, and no rule is about the other topic.
        assert held(store) == {A: (20, 60), B: (60, 60), OTHER: (60, 60)}
        once(retention)
    assert caplog.messages == ["topic 'flights': retention waits for query 'hourly' to read more"]
    query.positions[A] = 40
    once(retention)
    assert held(store)[A] == (40, 60)
    query.positions[A] = 1_000
    once(retention)
    assert held(store)[A] == (60, 60)
    assert (query.looks, retention.counts.unread) == (4, 0)


@pytest.mark.parametrize(
    ("limits", "earliest"), [("*=97.5s", 30), ("*=60kB", 30), ("*=97.5s,1GB", 30), ("*=1s", 60)]
)
def test_beyond_its_limits_it_goes_and_that_is_said(
    store: Log, clock: Clock, caplog: pytest.LogCaptureFixture, limits: str, earliest: int
) -> None:
    filled(store, clock)
    retention = retention_of(store, "flights=50s", limits, Query(A=10, B=0))
    once(retention)
    assert held(store) == {A: (earliest, 60), B: (earliest, 60), OTHER: (0, 60)}
    assert retention.counts.unread == 2 * earliest - 10
    said = f"deleted {earliest - 10} records that query 'hourly' has not read"
    assert any(said in message for message in caplog.messages)


def test_what_goes_by_age_and_size_is_counted_once(
    store: Log, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    filled(store, clock)
    retention = retention_of(store, "flights=97.5s,15kB", "*=1s", Query(A=0, B=0))
    once(retention)
    assert held(store) == {A: (50, 60), B: (50, 60), OTHER: (0, 60)}
    assert retention.counts.records == retention.counts.unread == 100
    assert [each.args["records"] for each in caplog.records] == [30, 30, 20, 20]  # type: ignore[index, call-overload]


def test_what_waits_for_the_archive_is_not_said_to_be_gone(
    store: Log, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    filled(store, clock)
    archived = 0
    retention = Retention(
        store,
        parse_rules("flights=50s"),
        lambda tp, before: min(archived, before),
        parse_rules("*=60s"),
        Query(A=10),
    )
    once(retention)
    assert (held(store)[A], retention.counts.unread, caplog.messages) == ((0, 60), 0, [])
    archived = 40
    once(retention)
    assert (held(store)[A], retention.counts.unread) == ((40, 60), 30)
    assert "deleted 30 records that query 'hourly' has not read" in caplog.text


def test_by_size_too_nothing_goes_before_it_is_read(store: Log, clock: Clock) -> None:
    filled(store, clock)
    query = Query(A=20, B=60)
    retention = retention_of(store, "flights=25kB", "flights=1h", query)
    once(retention)
    assert held(store) == {A: (20, 60), B: (40, 60), OTHER: (0, 60)}
    query.positions[A] = 60
    once(retention)
    assert held(store)[A] == (50, 60)


def blocks(log: Log) -> list[HeldBlock]:
    with log.snapshot() as snapshot:
        found = snapshot.blocks(A)
        assert found is not None
        return [found[number] for number in range(len(found))]


def test_blocks_of_the_table_and_of_the_append_area_follow_each_other(
    store: Log, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 64 << 10)
    with store.snapshot() as snapshot:
        assert snapshot.blocks(A) is None
    put(store, A, 100)
    clock.now_us = 2_000
    put(store, A, 3, 10)
    store.write([Stage(RecordBatch.of(A, 103, [b"staged"]), "A" * 32)])
    first, second = blocks(store)
    assert first[:2] == (0, 100)
    assert first.size_bytes > 100_000
    assert first.newest_us == 1_000
    assert second[:2] == (100, 103)
    assert 30 < second.size_bytes < 300
    assert second.newest_us == 2_000
    for before, left in ((50, [first, second]), (100, [second]), (103, [])):
        store.trim(A, before)
        assert blocks(store) == left


def test_a_damaged_block_is_named(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        put(log, A)
    change(tmp_path, b"blocks", bytes(16), b"no block")
    with Log(tmp_path) as log, pytest.raises(StoreError, match="block at offset 0"):
        blocks(log)


@pytest.mark.parametrize("rules", ["*=60s", "*=1kB", "*=60s,1kB"])
def test_a_damaged_partition_is_kept_and_the_others_are_not(
    tmp_path: Path, clock: Clock, rules: str
) -> None:
    with Log(tmp_path, clock_us=clock) as log:
        for tp, _ in itertools.product((A, B, OTHER), range(3)):
            put(log, tp)
    change(tmp_path, b"blocks", bytes(16), b"no block")
    clock.now_us = 100 * S
    with Log(tmp_path, clock_us=clock) as log:
        retention = Retention(log, parse_rules(rules))
        for _ in range(2):
            with pytest.raises(StoreError, match="block at offset 0 cannot be read"):
                once(retention)
            # A size leaves the newest block of the topic.
            left = 30 if rules.startswith("*=60s") else 20
            assert held(log) == {A: (0, 30), B: (left, 30), OTHER: (left, 30)}
        assert retention.counts.records == 2 * left


@pytest.mark.parametrize("rules", ["*=60s", "*=1kB"])
def test_a_damaged_group_keeps_only_partitions_that_lack_its_records(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, rules: str
) -> None:
    with Log(tmp_path, clock_us=clock) as log:
        for tp in (A, OTHER):
            for _ in range(3):
                put(log, tp)
        monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 64 << 10)
        put(log, OTHER, 1, 10)
        monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
        clock.now_us = 90 * S
        put(log, OTHER)
    key = b"group " + bytes(17)
    change(tmp_path, b"meta", key, b"DafG" + bytes(100))
    clock.now_us = 100 * S
    with Log(tmp_path, clock_us=clock) as log:
        retention = Retention(log, parse_rules(rules))
        with pytest.raises(
            StoreError, match="offset 30 cannot be read: it is not among the blocks"
        ):
            once(retention)
        assert held(log) == {A: (30 if rules == "*=60s" else 20, 30), OTHER: (0, 41)}


def test_a_topic_that_cannot_be_archived_is_kept_and_the_others_are_not(
    store: Log, clock: Clock
) -> None:
    def archive(tp: TopicPartition, before: int) -> int:
        if tp.topic == A.topic:
            raise DafkaError("its name is too long for a directory")
        return before

    for tp in (A, B, OTHER):
        put(store, tp)
    clock.now_us = 100 * S
    with pytest.raises(DafkaError, match="too long"):
        once(Retention(store, parse_rules("*=60s"), archive))
    assert held(store) == {A: (0, 10), B: (0, 10), OTHER: (10, 10)}


def test_several_partitions_are_trimmed_in_one_step(store: Log) -> None:
    for tp in (A, B):
        put(store, tp)
    infos = {info.tp: info for info in store.partitions()}
    before = store.changes.number
    assert store.trim_each([(infos[A], 5), (infos[B], 10)]) == [5, 10]
    assert store.changes.number <= before + 2
    assert held(store) == {A: (5, 10), B: (10, 10)}


@pytest.fixture
def large(store: Log) -> Log:
    """A log with blocks of 120 kB."""
    for tp in (A, B):
        put(store, tp, 4, 30_000)
    return store


def sizes(blocks: HeldBlocks, log: Log) -> tuple[dict[TopicPartition, int], int]:
    """Return the size of each partition, and the number of steps that found it."""
    found = blocks.look_at(log.partitions(), {}, pause := Mock())
    return {tp: sum(b.size_bytes for b in held) for tp, held in found.items()}, pause.call_count


def test_unchanged_partitions_are_not_examined_again(large: Log) -> None:
    blocks = HeldBlocks(large)
    first, steps = sizes(blocks, large)
    assert steps == 2
    assert all(120_000 <= size < 130_000 for size in first.values())
    put(large, B, 4, 30_000)
    second, steps = sizes(blocks, large)
    assert steps == 1
    assert second[A] == first[A]
    assert 240_000 <= second[B] < 260_000
    blocks.keep_only({A})
    assert blocks.found([A, B]).keys() == {A}
    assert blocks[A][0].end == 4


def test_many_bytes_are_examined_in_steps(large: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        put(large, A, 4, 30_000)
    monkeypatch.setattr(retention, "STEP_BYTES", 1)
    found, steps = sizes(HeldBlocks(large), large)
    assert steps > 2
    assert found[A] > 2 * found[B]


def test_an_unknown_partition_has_no_blocks(large: Log) -> None:
    blocks = HeldBlocks(large)
    blocks.look(OTHER, pause := Mock())
    assert not pause.called
    assert blocks.found([OTHER]) == {}

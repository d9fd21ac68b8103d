"""Retention and merges beside a store: they give way, and survive what the disk does."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import xxhash

from dafka_core import Producer, Store
from dafka_core.config.topic_rules import parse_rules
from dafka_core.errors import ConfigError, DiskFullError, StoreError
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import Epoch
from dafka_core.model.log_entries import SetAside, Stage, packed_deletions
from dafka_core.model.names import DELETIONS_TOPIC, QUERIES_TOPIC
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction
from dafka_core.nodes import maintenance
from dafka_core.nodes.maintenance import (
    RULES_NOTE,
    Deletions,
    HealThread,
    MergeThread,
    ProtectedQueries,
    RetentionThread,
)
from dafka_core.queries.query_progress import QueryProgress, partition_of
from dafka_core.security.permissions import CONSUME, EVERYBODY, Permissions, address_prefix
from dafka_core.storage import Log, entry_writer
from dafka_core.storage.retention import Retention, Unread
from dafka_core.storage.rows import partition_key
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.storage.damage import change, spoil

TP, OTHER = (TopicPartition("t", name * 32) for name in "AB")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Each append makes a block."""
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    monkeypatch.setattr(maintenance, "RETENTION_INTERVAL_S", 0.02)
    monkeypatch.setattr(maintenance, "QUIET_S", 0.2)
    monkeypatch.setattr(maintenance, "IDLE_S", 0.02)
    with Log(tmp_path) as opened:
        yield opened


def put(log: Log) -> None:
    log.append([RecordBatch.of(TP, log.end(TP), [b"x" * 1000] * 10)])


def earliest(log: Log) -> int:
    info = log.info(TP)
    return info.earliest if info else 0


def retaining(
    log: Log, retention: Retention, deletions: Any = None, clocks_us: Any = dict
) -> RetentionThread:
    """Return the thread of a log without deletions, limits and other stores."""
    nothing: Any = SimpleNamespace(apply=lambda: None, run=lambda pause: None)
    return RetentionThread(log, retention, deletions or nothing, nothing, clocks_us)


def test_records_beyond_the_rules_are_trimmed(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10):
        put(log)
    retention = Retention(log)
    with caplog.at_level(logging.INFO, "dafka.store"), retaining(log, retention):
        wait_until(lambda: retention.counts.passes == 0)
        retention.rules = parse_rules("t=25kB")
        wait_until(lambda: earliest(log) == 70)
        wait_until(lambda: "gave up 70 records" in caplog.text)
        put(log)
        wait_until(lambda: earliest(log) == 80)


def test_with_other_rules_it_does_not_wait_for_its_time(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does its end."""
    monkeypatch.setattr(maintenance, "RETENTION_INTERVAL_S", 3600)
    for _ in range(10):
        put(log)
    retention = Retention(log, parse_rules("t=95kB"))
    with retaining(log, retention) as thread:
        wait_until(lambda: retention.counts.passes == 1)
        thread.replace(parse_rules("t=25kB"))
        wait_until(lambda: earliest(log) == 70)
        wait_until(lambda: thread.given_up == 70)


def test_rules_that_were_set_are_kept_until_they_are_reset(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    own, other = parse_rules("t=1d"), parse_rules(r"a\x20b=7d,1GiB *=forever")
    with retaining(log, Retention(log, own)) as thread:
        assert (thread.rules, thread.is_set) == (own, False)
        thread.replace(parse_rules("t=2d"), ("t=9d",))  # others are in force
        assert (thread.rules, thread.is_set) == (own, False)
        thread.replace(other, ("t=1d",))
    with retaining(log, Retention(log, own)) as thread:
        assert (thread.rules, thread.is_set) == (other, True)
        thread.replace(None)
        assert (thread.rules, thread.is_set) == (own, False)
    log.put_notes({RULES_NOTE: b"t=7parsecs"})
    with retaining(log, Retention(log, own)) as thread:
        assert (thread.rules, thread.is_set) == ((), True)
    assert "nothing goes until others are" in caplog.text


def test_clocks_of_others_are_compared_as_long_as_a_limit_is_an_age(log: Log) -> None:
    ahead = {"B" * 32: log.now_us() + 86_400_000_000}
    retention = Retention(log, parse_rules("t=1GB"), until_read=parse_rules("t=1d"))
    with retaining(log, retention, clocks_us=lambda: ahead):
        wait_until(log.clock.doubt)
    with retaining(log, Retention(log, parse_rules("t=1GB")), clocks_us=lambda: ahead) as thread:
        wait_until(lambda: not log.clock.doubt())
        thread.replace(parse_rules("t=1d"))
        wait_until(log.clock.doubt)


def deleted(log: Log, *topics: str) -> list[bytes]:
    """Return records of deletions of all that topics have."""
    infos = (log.partitions(topic) for topic in topics)
    return [record for each in infos for record in packed_deletions(each, log.now_us(), 65_536)]


def test_rules_are_gone_by_also_where_a_deletion_is_damaged(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        put(log)
    told = b"not what was written"
    log.append([RecordBatch.of(TopicPartition(DELETIONS_TOPIC, "D" * 32), 0, [told])])
    log.close()
    spoil(tmp_path / "data.mdb", told)
    with Log(tmp_path) as opened, caplog.at_level(logging.ERROR, "dafka.store"):
        retention = Retention(opened, parse_rules("t=25kB"))
        deletions = Deletions(opened, "S" * 32, cast("Any", None))
        with retaining(opened, retention, deletions):
            wait_until(lambda: earliest(opened) == 70)
    assert "checksum" in caplog.text


def test_damaged_deletions_of_a_store_do_not_stop_those_of_others(log: Log, tmp_path: Path) -> None:
    put(log)
    told = b"not what was written"
    for name, values in (("C", [told]), ("D", deleted(log, "t"))):
        log.append([RecordBatch.of(TopicPartition(DELETIONS_TOPIC, name * 32), 0, values)])
    log.close()
    spoil(tmp_path / "data.mdb", told)
    with Log(tmp_path) as opened:
        deletions = Deletions(opened, "S" * 32, cast("Any", None))
        for _ in range(2):
            with pytest.raises(StoreError, match="CC: the block at offset 0 cannot be read"):
                deletions.apply()
            assert earliest(opened) == 10


def test_an_unreadable_history_keeps_no_other_topic_from_its_deletion(tmp_path: Path) -> None:
    life, names = Epoch(1, 7, 0, 0, 0), [f"t{number}" for number in range(10)]
    with Log(tmp_path) as log:
        for name, epoch in product(names, (life, Epoch(2, 8, 0, 1, life.digest))):
            batch = RecordBatch.of(TopicPartition(name, "p"), epoch.start, [b"x"])
            log.append([replace(batch, epoch=epoch)])
        log.append(
            [RecordBatch.of(TopicPartition(DELETIONS_TOPIC, "D" * 32), 0, deleted(log, *names))]
        )
    damaged = TopicPartition("t5", "p")
    key = b"lives of " + xxhash.xxh3_128_digest(partition_key(damaged))
    change(tmp_path, b"meta", key, bytes(50))
    with Log(tmp_path) as log:
        deletions = Deletions(log, "S" * 32, cast("Any", None))
        for _ in range(2):
            with pytest.raises(StoreError, match="lives of a partition"):
                deletions.apply()
        left = [info.topic for info in log.partitions() if info.earliest < info.end]
        assert left == [DELETIONS_TOPIC, "t5"]


def test_a_topic_is_deleted_also_where_deletions_of_another_store_are_damaged(
    tmp_path: Path,
) -> None:
    told, others = b"not what was written", TopicPartition(DELETIONS_TOPIC, "C" * 32)
    with Log(tmp_path / "store") as log:
        log.append([RecordBatch.of(others, 0, [told]), RecordBatch.of(TP, 0, [b"x"] * 3)])
    spoil(tmp_path / "store" / "data.mdb", told)
    with ForkedCluster(0) as cluster, Store(tmp_path / "store", tower=cluster.tower) as store:
        assert store.deletions.delete("t") == (1, 3)


def test_deletions_that_replace_others_are_executed(log: Log) -> None:
    """Their store has lost its last ones, and has gone on."""
    deletions = Deletions(log, "S" * 32, cast("Any", None))
    tp, life = TopicPartition(DELETIONS_TOPIC, "D" * 32), Epoch(1, 7, 0, 0, 0)
    log.append([replace(RecordBatch.of(tp, 0, [b"none"] * 3), epoch=life)])
    put(log)
    deletions.apply()
    batch = RecordBatch.of(tp, 1, [*deleted(log, "t"), *[b"none"] * 3])
    log.write([SetAside(tp, 1), replace(batch, epoch=Epoch(2, 8, 0, 1, life.digest))])
    deletions.apply()
    assert earliest(log) == 10


A, B, C = (TopicPartition("flights", name * 32) for name in "ABC")


def report(query: str, run: str, *topics: str, **positions: int) -> bytes:
    at = {TopicPartition("flights", name * 32): offset for name, offset in positions.items()}
    return QueryProgress(query, run, 60, topics).at(at).packed()


def say(log: Log, query: str, *contents: bytes, owner: Permissions = EVERYBODY) -> None:
    tp = partition_of(query, owner=owner)
    log.append([RecordBatch.of(tp, log.end(tp), contents)])


def unread(queries: ProtectedQueries) -> list[tuple[int, str] | None]:
    queries.look()
    return [queries.unread(tp) for tp in (A, B, C)]


def test_the_query_that_is_furthest_behind_counts(log: Log) -> None:
    queries = ProtectedQueries(log, ["*"])
    assert unread(queries) == [None] * 3
    say(log, "hourly", report("hourly", "R1", A=5, B=7), report("hourly", "R1", A=6, B=9))
    say(log, "daily", report("daily", "R1", B=3))
    assert unread(queries) == [Unread(6, "hourly"), Unread(3, "daily"), None]
    # Of a query's topics, partitions that it has not reported are unread.
    say(log, "daily", report("daily", "R1", "flights", B=8))
    assert unread(queries) == [Unread(0, "daily"), Unread(8, "daily"), Unread(0, "daily")]


def test_a_run_that_was_followed_does_not_count(log: Log) -> None:
    queries = ProtectedQueries(log, ["*"])
    say(log, "q", report("q", "R1", A=5), report("q", "R2", A=9))
    assert unread(queries)[0] == Unread(9, "q")
    # Of two that run at once, the slower one counts.
    say(log, "q", report("q", "R3", A=2), report("q", "R2", A=11), report("q", "R3", A=4))
    assert unread(queries)[0] == Unread(4, "q")


def test_no_key_releases_records_that_another_ones_query_needs(log: Log) -> None:
    queries = ProtectedQueries(log, ["hourly"])
    for name, end in (("job", 5), ("evil", 9)):
        owner = Permissions(name, frozenset({CONSUME}), prefix=address_prefix(name.encode()))
        say(log, "hourly", report("hourly", name, A=end), owner=owner)
    assert unread(queries)[0] == Unread(5, "hourly")


def test_invalid_reports_are_skipped(log: Log) -> None:
    queries = ProtectedQueries(log, ["*"])
    say(log, "q", report("q", "R1", A=5), b"none", report("other", "R1", A=1))
    assert unread(queries)[0] == Unread(5, "q")


def test_where_a_report_is_damaged_everything_counts_as_unread(log: Log, tmp_path: Path) -> None:
    """Of topics that wait for no query, the rules hold nevertheless."""
    for query, value in (("q", b"damaged"), ("r", report("r", "R1", A=5))):
        say(log, query, value)
    for topic in ("flights", "other"):
        log.append([RecordBatch.of(A._replace(topic=topic), 0, [b"x"] * 9)])
    log.close()
    spoil(tmp_path / "data.mdb", b"damaged")
    with Log(tmp_path, clock_us=lambda: log.now_us() + 60_000_000) as opened:
        queries = ProtectedQueries(opened, ["*"])
        until_read = parse_rules("flights=forever")
        retention = Retention(opened, parse_rules("*=1s"), until_read=until_read, readers=queries)
        for _ in range(2):
            with pytest.raises(StoreError, match="block at offset 0 cannot be read"):
                retention.run(lambda: None)
            assert queries.unread(A) == Unread(0, partition_of("q").partition)
        left = {info.topic: info.end - info.earliest for info in opened.partitions()}
        assert (left["flights"], left["other"]) == (9, 0)


def test_only_those_that_are_named_are_waited_for(log: Log) -> None:
    queries = ProtectedQueries(log, ["hour*", "daily"])
    say(log, "weekly", report("weekly", "R1", A=1))
    # A query that is named completely and has never reported has read nothing.
    assert unread(queries) == [Unread(0, "daily")] * 3
    say(log, "daily", report("daily", "R1", A=7))
    assert unread(queries) == [Unread(7, "daily"), None, None]
    say(log, "hourly", report("hourly", "R1", A=4, B=4))
    assert unread(queries) == [Unread(4, "hourly"), Unread(4, "hourly"), None]


def test_a_store_starts_on_a_full_disk_with_stale_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(log: Log, older_than_s: float) -> int:
        raise DiskFullError(log.directory, "the disk is full")

    monkeypatch.setattr(Log, "discard_stale", full)
    with ForkedCluster(0) as cluster, Store(tmp_path, tower=cluster.tower) as store:
        assert store.is_open


def test_a_store_waits_for_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "RETENTION_INTERVAL_S", 0.05)
    with pytest.raises(ConfigError, match=r"'retain' = 't': must be PATTERN="):
        Store(tmp_path, retain="t")
    with ForkedCluster(stores=0) as cluster:
        options = {"tower": cluster.tower}
        rules = {"retain": "flights=0.001s", "retain_until_read": "flights=1h"}
        names = {"protected_queries": "hourly, daily"}
        with Store(tmp_path, **options, **rules, **names) as store:
            with Producer("flights", **options) as producer:
                producer.publish_many([b"0", b"1", b"2"])
            tp = TopicPartition("flights", producer.address)
            passes = store.retention.counts.passes
            wait_until(lambda: store.retention.counts.passes > passes + 2)
            assert store.log.partitions("flights")[0].earliest == 0
            for query in ("hourly", "daily"):
                content = QueryProgress(query, "R1", 60).at({tp: 3}).packed()
                batch = RecordBatch.of(partition_of(query, QUERIES_TOPIC), 0, [content])
                store.append_queue.put(batch).result(30)
            wait_until(lambda: store.log.partitions("flights")[0].earliest == 3)


FIRST, SECOND = (TopicPartition("t", name) for name in ("1", "2"))
VALUE = b"a value of both " * 100


def test_an_unreadable_history_keeps_no_other_partition_from_its_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = Epoch(1, 7, 0, 0, 0)
    with Log(tmp_path) as log:
        for tp in (FIRST, SECOND):
            for epoch in (life, Epoch(2, 8, 0, 1, life.digest)):
                log.append([replace(RecordBatch.of(tp, epoch.start, [VALUE]), epoch=epoch)])
    key = b"lives of " + xxhash.xxh3_128_digest(partition_key(FIRST))
    change(tmp_path, b"meta", key, bytes(50))
    spoil(tmp_path / "data.mdb", VALUE)
    with Log(tmp_path) as log, closing(HealThread(log, list)) as thread:
        log.healer.damaged.add(FIRST)
        with pytest.raises(StoreError, match="cannot be read"):
            log.read(SECOND, 0, 1)
        wait_until(lambda: f"{SECOND}: damaged records 0 to 0 are not replaced" in caplog.text)
        assert log.healer.damaged == {FIRST, SECOND}
        assert thread.failed_count == 1


def test_healing_ends_while_several_stores_are_silent(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([RecordBatch.of(FIRST, 0, [VALUE])])
    spoil(tmp_path / "data.mdb", VALUE)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        places = [f"grpc://127.0.0.1:{each.getsockname()[1]}" for each in silent]
        log = stack.enter_context(Log(tmp_path))
        log.healer.damaged.add(FIRST)
        others = [StoreLocation(name * 32, (at,)) for name, at in zip("AB", places, strict=True)]
        with closing(HealThread(log, lambda: others)):
            stack.enter_context(silent[0].accept()[0])
        silent[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[1].accept()


# -- merging ---------------------------------------------------------------------------------------


def test_a_merger_goes_on_after_an_error_that_no_one_expected(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "RETRY_S", 0.02)
    steps = iter([MemoryError("64 MiB")])

    def step() -> bool:
        for error in steps:
            raise error
        return False

    with closing(MergeThread(log, 24, step)) as thread:
        wait_until(lambda: thread.failed_count)
        for _ in range(9):
            put(log)
        wait_until(lambda: thread.merged_count)
    assert "merging, compressing or linking blocks: 64 MiB" in caplog.text
    assert "Traceback" in caplog.text


def put_small(log: Log, appends: int) -> None:
    for _ in range(appends):
        log.append([RecordBatch.of(TP, log.end(TP), [b"x" * 100])])


def blocks(log: Log) -> int:
    with log.snapshot() as snapshot:
        return len(list(snapshot.read(TP, 0, log.end(TP))))


def test_small_blocks_are_merged_in_quiet_times(log: Log) -> None:
    with MergeThread(log):
        for round_ in range(1, 4):
            put_small(log, 64)
            wait_until(lambda: blocks(log) <= 8)
            assert log.end(TP) == 64 * round_
    values = [value for batch in log.read(TP, 0, 999) for value in batch.values.to_list()]
    assert values == [b"x" * 100] * 192


def test_it_gives_way_until_blocks_have_piled_up(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PILED_UP", 200)
    monkeypatch.setattr(MergeThread, "_is_busy", lambda _: True)  # however slow the disk is
    put_small(log, 1)
    with MergeThread(log):
        put_small(log, 149)
        assert blocks(log) == 150
        while log.end(TP) < 2000 and blocks(log) == log.end(TP):
            put_small(log, 1)
    assert blocks(log) < log.end(TP)


def test_a_failing_disk_is_logged_and_retried(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "RETRY_S", 0.05)
    step = log.merge_step
    failures = iter([StoreError(log.directory, "the disk is full")] * 3)

    def fails_at_first() -> bool:
        for failure in failures:
            raise failure
        return step()

    monkeypatch.setattr(log, "merge_step", fails_at_first)
    with caplog.at_level(logging.ERROR, "dafka.store"), MergeThread(log):
        put_small(log, 64)
        wait_until(lambda: blocks(log) <= 8)
    assert [record.getMessage() for record in caplog.records] == [
        f"merging, compressing or linking blocks: store at {log.directory}: the disk is full"
    ] * 3


def test_merging_ends_while_it_pauses(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "IDLE_S", 3600)
    merger = MergeThread(log)
    wait_until(lambda: not log.merge_step())
    merger.close()
    merger.close()


def test_merging_ends_with_its_log(log: Log) -> None:
    merger = MergeThread(log)
    log.close()
    wait_until(lambda: "dafka-merger" not in {thread.name for thread in threading.enumerate()})
    merger.close()


def test_stale_staged_records_are_discarded(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    attempt = "A" * 32
    log.write([Stage(RecordBatch.of(TP, 0, [b"x"]), attempt)])
    # The store's loop completes records from another store.
    log.write([RecordBatch.of(OTHER, 0, [b"x"], Transaction(1, 0, 2))])
    with MergeThread(log, staged_hours=0.2 / 3600):
        wait_until(lambda: log.transaction_state(TP).staged_end == 0)
    assert "discarded what was staged in 1 partitions" in caplog.text
    assert log.transaction_state(OTHER).staged_end == 1

"""Cold blocks are compressed, beside any other change of them."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from dafka_core.config.topic_rules import parse_compression
from dafka_core.errors import StoreError
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage import Log, block_rewriter
from dafka_core.storage.block import NUMBERS, Block, compressed
from dafka_core.storage.block_rewriter import BlockCompressor
from tests.integration.storage.changing_log import ChangingLog, told
from tests.integration.storage.damage import change, entries, spoil
from tests.integration.storage.linked import checked
from tests.integration.storage.staged import TP, Clock, clean, large, put

ALL = parse_compression("*=zstd")


def three_blocks(directory: Path) -> list[bytes]:
    values = large(300)
    with Log(directory) as log:
        for first in range(0, 300, 100):
            put(log, values[first : first + 100])
    return values


def compress(log: Log, rules: str = "*=zstd", after_s: float = 0.0) -> BlockCompressor:
    compressor = log.compressor(parse_compression(rules), after_s)
    while compressor.step():
        pass
    return compressor


def codecs(log: Log) -> list[int]:
    with log.snapshot() as tables:
        return [Block.parse(packed).codec for _, packed in tables.entries(2)]


@pytest.mark.parametrize("codec", NUMBERS)
def test_compressed_blocks_have_the_same_records_and_take_less(tmp_path: Path, codec: str) -> None:
    three_blocks(tmp_path)
    with Log(tmp_path) as log:
        before, size_bytes = log.read(TP, 0, 300), log.statistics(TP)
        done = compress(log, f"*={codec}")
        assert (done.blocks, codecs(log)) == (3, [NUMBERS[codec]] * 3)
        after = log.statistics(TP)
        assert size_bytes is not None
        assert after is not None
        assert after.size_bytes == done.after_bytes < done.before_bytes / 5
        assert done.before_bytes == size_bytes.size_bytes
        assert replace(after, size_bytes=size_bytes.size_bytes) == size_bytes
        with log.snapshot() as snapshot:
            # Reads are planned by the records' size in memory.
            assert snapshot.record_sizes(TP, 0, 300) == [1008, 1008, 1009, 1009]
    with Log(tmp_path) as log:
        after_values = [value for batch in log.read(TP, 0, 300) for value in batch.values]
        assert after_values == [value for batch in before for value in batch.values]
        assert compress(log).blocks == 0
        assert log.offset_for_time(TP, 0) == 0


def test_hot_blocks_and_other_topics_are_left(store: Log, clock: Clock) -> None:
    for _ in range(2):
        put(store, large(100))
    assert compress(store, "*=zstd", after_s=60).blocks == 0
    clock.now_us += 100_000_000
    put(store, large(100))
    assert compress(store, "u=zstd *=none", after_s=60).blocks == 0
    assert compress(store, "t*=lz4 *=none", after_s=60).blocks == 2
    assert codecs(store) == [2, 2, 0]
    clock.now_us += 100_000_000
    # Compressed blocks stay so when the rules change.
    assert compress(store, "*=zstd", after_s=60).blocks == 1
    assert codecs(store) == [2, 2, 1]


def test_what_does_not_become_smaller_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = Mock(wraps=compressed)
    monkeypatch.setattr(block_rewriter, "compressed", looked_at)
    with Log(tmp_path) as log, (Path("/dev/urandom")).open("rb") as chance:
        for first in range(0, 300, 100):
            values = Values.of([chance.read(1000) for _ in range(100)])
            log.append([RecordBatch(TP, first, values)])
        assert compress(log).blocks == 0
        assert looked_at.call_count == 3
    with Log(tmp_path) as log:
        assert compress(log).blocks == 0
    assert looked_at.call_count == 3


def test_blocks_that_are_compressed_are_merged_and_extended_like_others(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for _ in range(6):
            put(log, large(100))
        assert compress(log).blocks == 6
    with Log(tmp_path) as log:
        for _ in range(4):
            put(log, large(100))
        clean(log)
        assert 1 in codecs(log)
        assert len(codecs(log)) < 10
        put(log, [b"small"])
        put(log, large(100))
        compress(log)
        found = [
            value
            for batch in log.read(TP._replace(partition="p"), 0, 2000)
            for value in batch.values
        ]
        assert found == [*large(100) * 10, b"small", *large(100)]
        assert all(codecs(log)[:-1])


@pytest.mark.parametrize("seed", range(2))
def test_nobody_notices_whatever_happens_to_the_log(tmp_path: Path, seed: int) -> None:
    with Log(tmp_path / "plain") as plain, Log(tmp_path / "other") as log:
        logs = [ChangingLog(plain, seed), ChangingLog(log, seed)]
        done = 0
        for _ in range(12):
            for each in logs:
                each.change(12)
            done += compress(log, "*=lz4" if seed % 2 else "*=zstd").blocks
            now, before = told(log), told(plain)
            del now["times"], before["times"], now["met"], before["met"]
            assert now == before
        assert done
        assert checked(log).found == ()
    with Log(tmp_path / "other") as log:
        clean(log)
        now = told(log)
        assert now["records"] == before["records"]


@pytest.mark.parametrize(("first", "why"), [(100, "its checksum"), (200, "it does not begin")])
def test_a_damaged_block_is_left_alone_and_the_others_are_compressed(
    tmp_path: Path, first: int, why: str
) -> None:
    values = three_blocks(tmp_path)
    if first == 100:
        spoil(tmp_path / "data.mdb", values[150])
    else:  # the last one, of which no offset is known behind its damaged head
        key, packed = max(entries(tmp_path, b"blocks").items())
        change(tmp_path, b"blocks", key, bytes(len(packed)))
    with Log(tmp_path) as log:
        compressor = log.compressor(ALL, 0)
        errors = []
        for _ in range(20):
            try:
                compressor.step()
            except StoreError as error:
                errors.append(str(error))
            compressor._scanned_s = 0.0  # scan again at once
        assert [error for error in errors if f"offset {first}" not in error] == []
        assert len(errors) == 1
        assert compressor.blocks == 2
        with pytest.raises(StoreError, match=f"offset {first} cannot be read: {why}"):
            log.read(TP, first, first + 100)


def test_what_changes_while_it_is_compressed_is_left_as_it_has_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_blocks(tmp_path)
    with Log(tmp_path) as log:
        changes: list[Callable[[], object]] = [lambda: log.trim(TP, 150)]

        def slow(packed: memoryview, codec: int) -> memoryview | None:
            made = compressed(packed, codec)
            while changes:
                changes.pop()()
            return made

        monkeypatch.setattr(block_rewriter, "compressed", slow)
        compress(log)
        assert [each.offset for each in log.read(TP, 0, 300)] == [150, 200]
        assert codecs(log) == [1, 1]


def test_records_in_the_place_of_compressed_ones_are_compressed(tmp_path: Path) -> None:
    three_blocks(tmp_path)
    with Log(tmp_path) as log:
        compress(log)
        log.write([SetAside(TP, 150)])
        log.discard_aside(log.aside()[0].id)
        for _ in range(2):
            put(log, large(100))
        compress(log)
        assert (log.end(TP), codecs(log)) == (350, [1, 1, 1])


def test_a_partition_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([RecordBatch.of(TopicPartition("t", "p"), 0, large(100))])
        compressor = log.compressor(ALL, 0)
        compressor._waiting.append((TopicPartition("t", "gone"), 0))
        assert compressor.step()
        assert compressor.step()

"""Checkpoints as Spark writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dafka_core.errors import ConfigError
from dafka_core.queries.checkpoint import Checkpoint, local_path
from dafka_core.queries.source_offset import SourceOffset
from tests.unit.queries.checkpoints import (
    ENDS,
    FOREIGN,
    QUERY,
    TIME_MS,
    A,
    B,
    checkpoint,
    offsets,
    write,
)

OURS = json.dumps(ENDS[0].as_json())


def read(directory: Path) -> Checkpoint:
    return Checkpoint.read(str(directory))


def test_batches_and_their_ranges(tmp_path: Path) -> None:
    found = read(checkpoint(tmp_path / "c"))
    assert found.query_id == QUERY
    batches = [
        (each.number, each.own_ends, each.time_ms) for each in map(found.batch, found.planned)
    ]
    assert batches == [(n, {"0": ENDS[n]}, TIME_MS + 1_000 * n) for n in range(3)]
    ranges = [[each[:4] for _, each in found.ranges(number)] for number in range(3)]
    assert ranges == [[(*A, 0, 4)], [(*A, 4, 6), (*B, 2, 3)], [(*A, 6, 9), (*B, 3, 3)]]


@pytest.mark.parametrize(
    ("ends", "committed", "next_batch", "is_unfinished"),
    [(ENDS, 3, 3, False), (ENDS, 2, 2, True), ([], 0, 0, False)],
)
def test_an_unfinished_batch_is_the_next_one(
    tmp_path: Path, ends: list[SourceOffset], committed: int, next_batch: int, is_unfinished: bool
) -> None:
    found = read(checkpoint(tmp_path / "c", ends, committed=committed))
    assert (found.next_batch, found.is_unfinished) == (next_batch, is_unfinished)
    if ends:
        assert found.last.is_committed is not is_unfinished
    else:
        with pytest.raises(ConfigError, match="has no batch yet"):
            _ = found.last


def test_the_start_of_a_batch_is_unknown_once_spark_has_deleted_it(tmp_path: Path) -> None:
    found = read(checkpoint(tmp_path / "c", first=40))
    assert found.before(40) is None
    with pytest.raises(ConfigError, match="no longer has the offsets where batch 40 began"):
        list(found.ranges(40))
    assert len(list(found.ranges(41))) == 2
    (tmp_path / "c" / "offsets" / "41").unlink()
    assert read(tmp_path / "c").before(42) is None
    with pytest.raises(ConfigError, match="has no batch 7, but batches 40 to 42"):
        found.batch(7)


@pytest.mark.parametrize(
    ("number", "partitions", "end", "is_repartition"),
    [
        (2, 3, ENDS[2], True),
        (2, 200, ENDS[2], False),
        (3, 3, ENDS[2], False),
        (2, 3, ENDS[1], False),
    ],
)
def test_a_repartition_copies_the_plan_of_the_previous_batch(
    tmp_path: Path, number: int, partitions: int, end: SourceOffset, is_repartition: bool
) -> None:
    directory = checkpoint(tmp_path / "c")
    write(directory / "offsets" / "3", offsets(end, number, partitions))
    found = read(directory)
    assert [found.is_repartition(each) for each in range(4)] == [False] * 3 + [is_repartition]


def test_an_offset_of_a_hundred_partitions(tmp_path: Path) -> None:
    many = {A._replace(partition=f"{each:032X}"): each for each in range(100)}
    found = read(checkpoint(tmp_path / "c", [SourceOffset(many, dict.fromkeys(many, 0))]))
    assert found.last.own_ends["0"].positions == many


@pytest.mark.parametrize(
    ("version", "lines", "ends"),
    [
        ("v1", f"{FOREIGN}\n{OURS}\n-", {"0": None, "1": ENDS[0]}),
        ("v1", f'"a\u2028\x85b"\n{OURS}', {"0": None, "1": ENDS[0]}),
        ("v2", f"a:{OURS}\nb:-", {"a": ENDS[0]}),
        ("v2", json.dumps({"a": OURS, "b": "-"}), {"a": ENDS[0]}),
    ],
)
def test_several_sources(
    tmp_path: Path, version: str, lines: str, ends: dict[str, SourceOffset | None]
) -> None:
    directory = checkpoint(tmp_path / "c", [])
    write(directory / "offsets" / "0", offsets(lines).replace("v1", version, 1))
    assert read(directory).last.ends == ends


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (FOREIGN, "without a source of format dafka"),
        ("5", "without a source of format dafka"),
        ('{"version": 9, "topics": {}, "start": {}}', "holds an offset that this version"),
        ('{"version": 4, "packed": "c-n"}', "holds an offset that this version"),
    ],
)
def test_an_unknown_offset_is_refused(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        read(checkpoint(tmp_path / "c", [text]))


@pytest.mark.parametrize("time", ["null", "1e99", "-1", "99999999999999999999", '"x"'])
def test_an_invalid_time_is_1970(tmp_path: Path, time: str) -> None:
    directory = checkpoint(tmp_path / "c")
    write(directory / "offsets" / "2", offsets(ENDS[0]).replace(str(TIME_MS), time))
    assert read(directory).last.time_ms == 0


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        *(("metadata", text, "has no query id") for text in (b"", b"{}", b"[]", b'{"id": 1}')),
        ("metadata", b"[" * 100_000, "has no query id"),
        ("metadata", b"\xff", "has no readable metadata"),
        ("metadata", None, "it has no file 'metadata'"),
        ("offsets/2", b"v7\n{}\n", "has offsets of 'v7'"),
    ],
)
def test_an_invalid_checkpoint_is_refused(
    tmp_path: Path, name: str, content: bytes | None, error: str
) -> None:
    directory = checkpoint(tmp_path / "c")
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    with pytest.raises(ConfigError, match=error):
        read(directory)


@pytest.mark.parametrize("text", ["file:///a b/c", "file:/a b/c", "/a b/c"])
def test_a_path_of_this_machine(text: str) -> None:
    assert local_path(text) == Path("/a b/c")


@pytest.mark.parametrize("text", ["hdfs://host/a", "s3a://bucket/a", "abfss://a@b/c"])
def test_a_path_of_another_file_system_is_refused(text: str) -> None:
    assert local_path("a/b:c") == Path("a/b:c")
    with pytest.raises(ConfigError, match="is not on this machine"):
        local_path(text)


@pytest.mark.parametrize(
    ("path", "error"), [("", "must name a directory"), ("/missing", "is not a directory")]
)
def test_a_path_of_no_directory_is_refused(path: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Checkpoint.read(path)

"""A checkpoint's files, read."""

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


def read(directory: Path) -> Checkpoint:
    return Checkpoint.read(str(directory))


def test_batches_and_what_they_have_of_each_partition(tmp_path: Path) -> None:
    found = read(checkpoint(tmp_path / "c"))
    assert found.query_id == QUERY
    assert [each.number for each in found.batches()] == [0, 1, 2]
    assert [each.own_ends for each in found.batches()] == [{"0": end} for end in ENDS]
    assert found.batch(1).time_ms == TIME_MS + 1_000
    ranges = [each[:4] for _, each in found.ranges(1)]
    assert ranges == [(*A, 4, 6), (*B, 2, 3)]
    assert [each.end - each.start for _, each in found.ranges(2)] == [3, 0]


def test_an_unfinished_batch_is_the_next_one(tmp_path: Path) -> None:
    done, begun = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b", committed=2)
    assert (read(done).next_batch, read(done).is_unfinished) == (3, False)
    assert (read(begun).next_batch, read(begun).is_unfinished) == (2, True)
    assert not read(begun).last.is_committed
    new = read(checkpoint(tmp_path / "new", []))
    assert (new.next_batch, new.is_unfinished) == (0, False)
    with pytest.raises(ConfigError, match="has no batch yet"):
        _ = new.last


def test_what_spark_has_deleted_is_not_known(tmp_path: Path) -> None:
    found = read(checkpoint(tmp_path / "c", first=40))
    assert found.before(40) is None
    with pytest.raises(ConfigError, match="does not say any more where batch 40 began"):
        list(found.ranges(40))
    assert len(list(found.ranges(41))) == 2
    with pytest.raises(ConfigError, match="has no batch 7, but batches 40 to 42"):
        found.batch(7)


@pytest.mark.parametrize("number", [1, 100])
def test_offsets_of_any_size_are_read(tmp_path: Path, number: int) -> None:
    many = {A._replace(partition=f"{each:032X}"): each for each in range(number)}
    found = read(checkpoint(tmp_path / "c", [SourceOffset(many, dict.fromkeys(many, 0))]))
    assert found.last.own_ends["0"].positions == many
    assert sum(each.end for _, each in found.ranges(0)) == sum(many.values())


def test_other_sources_beside_ours_are_left_alone(tmp_path: Path) -> None:
    ours = json.dumps(ENDS[0].as_json())
    found = read(checkpoint(tmp_path / "c", [f"{FOREIGN}\n{ours}\n-"]))
    assert found.last.ends == {"0": None, "1": ENDS[0]}
    assert [(name, each.end) for name, each in found.ranges(0)] == [("1", 4)]


@pytest.mark.parametrize("lines", ["a:{ours}\nb:-", '{{"a": {quoted}, "b": "-"}}'])
def test_sources_with_names(tmp_path: Path, lines: str) -> None:
    ours = json.dumps(ENDS[0].as_json())
    text = offsets(lines.format(ours=ours, quoted=json.dumps(ours))).replace("v1", "v2", 1)
    directory = checkpoint(tmp_path / "c", [])
    write(directory / "offsets" / "0", text)
    assert read(directory).last.ends == {"a": ENDS[0]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FOREIGN, "none of whose sources has format dafka"),
        ("5", "none of whose sources has format dafka"),
        ('{"version": 9, "topics": {}, "start": {}}', "holds an offset that this version"),
        ('{"version": 4, "packed": "c-n"}', "holds an offset that this version"),
    ],
)
def test_what_is_not_ours_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(checkpoint(tmp_path / "c", [text]))


@pytest.mark.parametrize("time", ["null", "1e99", "-1", "99999999999999999999", '"x"'])
def test_a_time_that_is_none_is_the_first(tmp_path: Path, time: str) -> None:
    directory = checkpoint(tmp_path / "c")
    text = offsets(ENDS[0]).replace(str(TIME_MS), time)
    write(directory / "offsets" / "2", text)
    assert read(directory).last.time_ms == 0


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    for name, says in (("no", "is no directory"), ("", "it has no file 'metadata'")):
        with pytest.raises(ConfigError, match=says):
            read(tmp_path / name)
    for content in ("", "{}", "[]", '{"id": 1}', "[" * 100_000):
        (tmp_path / "metadata").write_text(content)
        with pytest.raises(ConfigError, match="does not say a query's id"):
            read(tmp_path)
    (tmp_path / "metadata").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="has no metadata to be read"):
        read(tmp_path)
    directory = checkpoint(tmp_path / "c")
    write(directory / "offsets" / "2", "v7\n{}\n")
    with pytest.raises(ConfigError, match="has offsets of 'v7'"):
        read(directory)


def test_paths_are_of_this_machine() -> None:
    assert local_path("file:///a b/c") == Path("/a b/c")
    assert local_path("file:/a") == Path("/a")
    assert local_path("a/b:c") == Path("a/b:c")
    for elsewhere in ("hdfs://host/a", "s3a://bucket/a", "abfss://a@b/c"):
        with pytest.raises(ConfigError, match="is not on this machine"):
            local_path(elsewhere)
    with pytest.raises(ConfigError, match="must name a directory"):
        local_path("")

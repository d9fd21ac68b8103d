"""Checkpoints with the files that Spark 4.3 writes."""

import json
import os
import struct
import time
import zlib
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.records import TopicPartition
from dafka_core.queries import checkpoint as checkpoint_module
from dafka_core.queries.checkpoint import Checkpoint, copied, last_until, local_path, reset, rewind
from dafka_core.queries.source_offset import SourceOffset

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")
QUERY = "7090e364-3b5e-4ae8-8d25-0303c92f6417"
TIME_MS = 1_795_459_629_913
FOREIGN = '{"logOffset":3}'

ENDS = [
    SourceOffset({A: 4}, {A: 0}),
    SourceOffset({A: 6, B: 3}, {B: 2}),
    SourceOffset({A: 9, B: 3}),
]
"""Of three batches: 4, 3 and 3 records."""


def write(path: Path, content: str) -> None:
    """Write a file and its checksum, as Hadoop's file system does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode()
    path.write_bytes(data)
    sums = [zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512)]
    checksum = b"crc\0" + struct.pack(f">I{len(sums)}I", 512, *sums)
    path.with_name(f".{path.name}.crc").write_bytes(checksum)


def offsets(end: SourceOffset | str, number: int = 0, partitions: int = 200) -> str:
    """Return the plan of a batch with one source, with a number of state partitions."""
    text = end if isinstance(end, str) else json.dumps(end.as_json())
    conf = {"spark.sql.shuffle.partitions": str(partitions)}
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": TIME_MS + 1_000 * number, "conf": conf}
    return f"v1\n{json.dumps(metadata)}\n{text}"


def commit(directory: Path, number: int) -> None:
    write(directory / "commits" / str(number), 'v1\n{"nextBatchWatermarkMs":0}')


def checkpoint(
    directory: Path,
    ends: Sequence[SourceOffset | str] = ENDS,
    *,
    first: int = 0,
    committed: int | None = None,
    state: Iterable[str] = (),
) -> Path:
    """Write a checkpoint whose batches end at ``ends``; the first ``committed`` are done."""
    write(directory / "metadata", json.dumps({"id": QUERY}))
    for name in ("offsets", "commits"):
        (directory / name).mkdir()
    for number, end in enumerate(ends, first):
        write(directory / "offsets" / str(number), offsets(end, number))
    for number in range(first, first + (len(ends) if committed is None else committed)):
        commit(directory, number)
    for name in state:
        write(directory / "state" / name, "x")
    return directory


def files(directory: Path) -> set[str]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)) for path in found}


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


DELTAS = [f"0/{part}/{version}.delta" for part in (0, 1) for version in (1, 2, 3)]


def with_checksums(names: set[str]) -> set[str]:
    return names | {str(Path(name).with_name(f".{Path(name).name}.crc")) for name in names}


@pytest.mark.parametrize("committed", [2, 3])
def test_the_batches_after_the_last_one_are_removed(tmp_path: Path, committed: int) -> None:
    own = checkpoint(tmp_path / "c", committed=committed)
    before = files(own)
    backup = rewind(read(own), 0, is_stopped=True)
    removed = {f"{name}/{number}" for name in ("offsets", "commits") for number in (1, 2)}
    assert files(own) == before - with_checksums(removed)
    assert (read(own).next_batch, read(own).is_unfinished) == (1, False)
    assert (files(backup), backup.parent) == (before, tmp_path)
    assert backup.name.startswith("c.backup-2")


def test_state_is_rewound_with_the_batches(tmp_path: Path) -> None:
    """Spark would take a later snapshot for that of a new batch."""
    more = ["0/0/3.snapshot", "1/0/left/3_ab-cd.zip", "1/0/left/2_ef-01.zip"]
    more += ["1/_metadata/v2/0", "1/_metadata/v2/2", "1/0/left/SSTs/9.sst"]
    own = checkpoint(tmp_path / "c", state=[*DELTAS, *more])
    rewind(read(own), 1, is_stopped=True)
    kept = {name for name in (*DELTAS, *more) if "3" not in name} - {"1/_metadata/v2/2"}
    left = {name.removeprefix("state/") for name in files(own) if name.startswith("state/")}
    assert left == with_checksums(kept)


@pytest.mark.parametrize(
    ("state", "batch", "exists"),
    [
        (["3.delta", "2.snapshot"], 1, True),
        (["3.delta", "2.delta", "1.delta"], 0, True),
        (["3.delta", "2.delta"], 1, False),
        (["3.zip", "2.zip"], 1, True),
        (["3.zip", "2.zip"], 0, False),
        (["3.zip", "2.changelog", "1.zip"], 1, True),
        (["3.delta", "1.snapshot"], 1, False),
        (["2.snapshot", "2.delta"], 1, True),
        (["2.delta", "2.snapshot"], 1, True),
    ],
)
def test_the_state_after_the_batch_must_exist(
    tmp_path: Path, state: list[str], batch: int, exists: bool
) -> None:
    own = checkpoint(tmp_path / "c", state=[f"0/0/{name}" for name in state])
    before = files(own)
    if exists:
        rewind(read(own), batch, is_stopped=True)
        return
    with pytest.raises(ConfigError, match=f"no longer has the state after batch {batch}, in .*0/0"):
        rewind(read(own), batch, is_stopped=True)
    assert (files(own), [each.name for each in tmp_path.iterdir()]) == (before, ["c"])


def test_a_query_that_may_run_is_refused(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c")

    def age(seconds: float) -> None:
        for name in ("offsets", "commits"):
            os.utime(own / name, (time.time() - seconds, time.time() - seconds))

    for seconds, ago in ((5, r"\d+"), (-3_600, "0")):
        age(seconds)
        for change in (reset, lambda found: rewind(found, 0)):
            with pytest.raises(ConfigError, match=rf"changed {ago} s ago: its query may run"):
                change(read(own))
    age(checkpoint_module.QUIET_S + 1)
    rewind(read(own), 0)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (4, "has no batch 4, but batches 5 to 7"),
        (5, "sources of other formats"),
        (7, "no committed batch 7: the query will repeat it"),
    ],
)
def test_batches_to_which_a_query_is_not_rewound(tmp_path: Path, batch: int, error: str) -> None:
    own = checkpoint(tmp_path / "c", first=5, committed=2)
    write(own / "offsets" / "5", f"{offsets(ENDS[0])}\n{FOREIGN}")
    with pytest.raises(ConfigError, match=error):
        rewind(read(own), batch, is_stopped=True)


def test_a_rewind_that_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = checkpoint(tmp_path / "c")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "offsets" and path.name == "1":
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(DafkaError, match="is rewound only in part"):
            rewind(read(own), 0, is_stopped=True)
    assert (read(own).planned, read(own).is_unfinished) == ((0, 1), True)
    rewind(read(own), 0, is_stopped=True)
    assert read(own).planned == (0,)
    assert len([*tmp_path.glob("c.backup-*")]) == 2


def test_the_last_batch_until_a_time(tmp_path: Path) -> None:
    found = read(checkpoint(tmp_path / "c", committed=2))
    times = {after_ms: last_until(found, TIME_MS + after_ms) for after_ms in (999, 1_000, 9_999)}
    assert times == {999: 0, 1_000: 1, 9_999: 1}  # batch 2 is not committed
    with pytest.raises(ConfigError, match="no committed batch that old"):
        last_until(found, TIME_MS - 1)


def test_a_reset_moves_all_to_a_backup(tmp_path: Path) -> None:
    own = checkpoint(tmp_path / "c", state=DELTAS)
    before = files(own)
    first = reset(read(own), is_stopped=True)
    assert (files(own), files(first)) == (set(), before)
    assert reset(read(checkpoint(own)), is_stopped=True) != first  # even within a second


@pytest.fixture
def found(tmp_path: Path) -> Checkpoint:
    return read(checkpoint(tmp_path / "c", state=["0/0/1.delta"]))


def test_a_copy_is_the_same_query(found: Checkpoint, tmp_path: Path) -> None:
    made = copied(found, str(tmp_path / "deep" / "copy"))
    assert (made.query_id, made.planned) == (QUERY, (0, 1, 2))
    contents = [
        {name: (each.path / name).read_bytes() for name in files(each.path)}
        for each in (found, made)
    ]
    assert contents[0] == contents[1]


def test_a_fork_is_another_query(found: Checkpoint, tmp_path: Path) -> None:
    made = [copied(found, str(tmp_path / name), is_fork=True) for name in "ab"]
    assert len({found.query_id, *(each.query_id for each in made)}) == 3
    for each in made:
        # Spark would refuse the new file with the old checksum.
        assert files(found.path) - files(each.path) == {".metadata.crc"}
        assert each.last == found.last
    assert read(found.path).query_id == QUERY


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("taken", "exists; name a new directory"),
        ("taken/file", "exists; name a new directory"),
        ("taken/file/below", "cannot be copied"),
        ("c", "is, or is in, the checkpoint"),
        ("c/new", "is, or is in, the checkpoint"),
    ],
)
def test_a_copy_needs_a_new_directory(
    found: Checkpoint, tmp_path: Path, target: str, error: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(DafkaError, match=error):
        copied(found, str(tmp_path / target))
    with pytest.raises(ConfigError, match="is not on this machine"):
        copied(found, "hdfs://host/a")
    (tmp_path / "empty").mkdir()
    assert copied(found, str(tmp_path / "empty")).query_id == QUERY


@pytest.mark.parametrize("times", [1, 9])
def test_a_copy_is_of_one_moment(
    found: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A running query writes and deletes files while they are copied."""
    own, left, calls = checkpoint_module._files, [*range(times)], count()

    def changing(directory: Path) -> set[Any]:
        if next(calls) % 2 and left:  # at the end of a copy
            write(found.path / "offsets" / str(3 + left.pop()), offsets(ENDS[-1]))
        return own(directory)

    monkeypatch.setattr(checkpoint_module, "_files", changing)
    target = tmp_path / "copy"
    if times > 1:
        with pytest.raises(DafkaError, match="changes while it is copied: its query runs"):
            copied(found, str(target))
        assert {each.name for each in tmp_path.iterdir()} == {"c"}
    else:
        assert copied(found, str(target)).planned == (0, 1, 2, 3)
        assert files(target) == files(found.path)

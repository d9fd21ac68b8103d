"""Checkpoints with the files that Spark 4.3 writes."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from dafka_core.model.records import TopicPartition
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
    """Commit a batch."""
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
    """Return the names of a checkpoint's files."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)) for path in found}

"""The positions of blocks in a log's file."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch
from dafka_core.storage import Log, mapped_file
from dafka_core.storage.block import Block
from dafka_core.storage.mapped_file import FilePositions
from tests.integration.storage.processes import TP


def test_blocks_lie_where_it_says(tmp_path: Path) -> None:
    """Small ones share a page, large ones have pages of their own."""
    with Log(tmp_path) as log:
        values = []
        for size_bytes in (1, 500, 1_900, 5_000, 100_000, 300_000):
            values.append(b"%d" % size_bytes * size_bytes)
            log.append([RecordBatch.of(TP, len(values) - 1, values[-1:])])
        (found,), _ = log.lease([(TP, 0, len(values))], max_blocks=100, max_bytes=1 << 30)
        data = (tmp_path / "data.mdb").read_bytes()
        read: list[bytes] = []
        for first, position, size_bytes in found.blocks:
            block = Block.parse(data[position : position + size_bytes])
            assert first == len(read)
            read += block.values
        assert read == values


def test_threads_find_the_same(tmp_path: Path) -> None:
    """Of several concurrent first requests, one comes while another one is noted."""
    data = tmp_path / "data.mdb"
    data.write_bytes(bytes(8_192))
    found: list[int] = []

    class Interrupted(FilePositions):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if asked:
                found.append(self.of(part))

    with (
        data.open("rb") as file,
        mmap.mmap(file.fileno(), 8_192, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
        view[5_000:] as part,
    ):
        asked = False
        positions = Interrupted(data)
        asked = True
        found.append(positions.of(part))
    assert len(found) > 1
    assert set(found) == {5_000}


def test_a_file_that_is_not_mapped_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data.mdb"
    data.write_bytes(bytes(8_192))
    with pytest.raises(StoreError, match=r"does not contain data\.mdb"):
        FilePositions(data).of(memoryview(b"elsewhere"))
    with (
        data.open("rb") as file,
        mmap.mmap(file.fileno(), 8_192, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
        view[5_000:] as part,
    ):
        assert FilePositions(data).of(part) == 5_000
        monkeypatch.setattr(mapped_file, "_MAPS", tmp_path / "missing")
        with pytest.raises(StoreError, match="read it over Flight"):
            FilePositions(data).of(part)

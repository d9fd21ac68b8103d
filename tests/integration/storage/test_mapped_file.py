"""The positions of blocks in a log's file."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.storage import open_environment
from dafka_core.storage.open_environment import FilePositions


@pytest.fixture(params=["plain", os.fsdecode(b"\xff\xc2\x85")])
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file in a directory whose name is not UTF-8, or ends a line in Unicode."""
    data: Path = tmp_path / request.param / "data.mdb"
    data.parent.mkdir()
    data.write_bytes(bytes(8_192))
    return data


@pytest.fixture
def part(data: Path) -> Iterator[memoryview]:
    """What is in the file from position 5,000 on, mapped."""
    with (
        data.open("rb") as file,
        mmap.mmap(file.fileno(), 8_192, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
        view[5_000:] as part,
    ):
        yield part


def test_threads_find_the_same(data: Path, part: memoryview) -> None:
    """Of several concurrent first requests, one comes while another one is noted."""
    found: list[int] = []

    class Interrupted(FilePositions):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if asked:
                found.append(self.of(part))

    asked = False
    positions = Interrupted(data)
    asked = True
    found.append(positions.of(part))
    assert len(found) > 1
    assert set(found) == {5_000}


def test_a_file_that_is_not_mapped_has_none(data: Path) -> None:
    with pytest.raises(StoreError, match=r"does not contain data\.mdb"):
        FilePositions(data).of(memoryview(b"elsewhere"))


def test_without_a_list_of_maps_flight_is_named(
    data: Path, part: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FilePositions(data).of(part) == 5_000
    monkeypatch.setattr(open_environment, "_MAPS", data.parent / "missing")
    with pytest.raises(StoreError, match="read it over Flight"):
        FilePositions(data).of(part)

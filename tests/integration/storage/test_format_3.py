"""A directory of format 3, which commit ff30f70 has written, opens and goes on.

Once it is compressed it is format 4.  ``recorded/store3.tar.xz`` is its ``data.mdb``: appends,
merged in part, trimmed, staged and committed ones, some set aside, and notes (``ChangingLog``).
``DIGEST`` is of what that version said of it.
"""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.nodes.store_backup import back_up, restore
from dafka_core.nodes.store_identity import new_identity
from dafka_core.storage import Log
from dafka_core.storage.cold_marks import FORMAT, FORMAT_AT_FIRST
from dafka_core.storage.log_check import check
from tests.integration.storage.changing_log import PARTITIONS, ChangingLog, look, told
from tests.integration.storage.damage import change
from tests.integration.storage.test_block_compressor import codecs, compress, form

DIGEST = "6ee23e6187ff1fcb78a5569802a290b0ae8cdbd3c55c8f1a8912d9e3fef70d18"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with tarfile.open(Path(__file__).parent / "recorded" / "store3.tar.xz") as archive:
        archive.extractall(path, filter="data")
    return path


def digest(log: Log) -> str:
    """Of all that it says, in plain tuples: classes get fields that they did not have."""
    found = told(log)
    said = [
        [tuple(each)[:4] for each in found["partitions"]],
        found["records"],
        found["times"],
        [log.end(tp) for tp in PARTITIONS],
        found["staged"],
        found["aside"],
        sorted(found["notes"].items()),
    ]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def test_it_serves_all_that_it_holds_and_goes_on(directory: Path) -> None:
    with Log(directory) as log:
        assert form(log) == FORMAT_AT_FIRST
        assert digest(log) == DIGEST
        assert [each.found for each in check(lambda: look(log)) if each.found] == []
        ChangingLog(log, 2_000).change(30)
        assert [each.found for each in check(lambda: look(log)) if each.found] == []
        # The version that has written it opens it as long as nothing is compressed.
        assert form(log) == FORMAT_AT_FIRST


def test_it_becomes_format_4_when_it_is_compressed(directory: Path) -> None:
    with Log(directory) as log:
        compress(log)
        assert any(codecs(log))
        assert form(log) == FORMAT
        assert digest(log) == DIGEST
    with Log(directory) as log:
        assert digest(log) == DIGEST


def test_its_backup_is_of_its_format(directory: Path, tmp_path: Path) -> None:
    new_identity(directory)
    assert back_up(str(directory), tmp_path / "b").format == FORMAT_AT_FIRST
    with Log(directory) as log:
        compress(log)
    assert back_up(str(directory), tmp_path / "c").format == FORMAT
    for name, expected in (("b", FORMAT_AT_FIRST), ("c", FORMAT)):
        restore(tmp_path / name, tmp_path / f"{name} restored")
        with Log(tmp_path / f"{name} restored") as log:
            assert form(log) == expected
            assert digest(log) == DIGEST


def test_a_later_format_is_refused_and_says_what_to_do(directory: Path) -> None:
    change(directory, b"meta", b"format", (FORMAT + 1).to_bytes(4, "little"))
    why = (
        f"its format is {FORMAT + 1}, this program reads formats 3 to {FORMAT}: open it with the "
        "version of Dafka that made it, or a later one"
    )
    with pytest.raises(StoreError, match=why):
        Log(directory)

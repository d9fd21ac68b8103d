"""A directory of this format, written earlier, opens and can be changed; others are refused.

``recorded/store.tar.xz`` contains its ``data.mdb``: appends, merged and compressed in part,
trimmed, staged and committed ones, some set aside, notes and links, all written by ``ChangingLog``.
``DIGEST`` is the digest of its content as read then.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.nodes.store_backup import back_up, restore
from dafka_core.nodes.store_identity import new_identity
from dafka_core.storage import Log
from dafka_core.storage.log_check import check
from dafka_core.storage.open_environment import FORMAT
from tests.integration.storage.changing_log import PARTITIONS, ChangingLog, told
from tests.integration.storage.damage import change
from tests.integration.storage.test_block_compressor import codecs, compress

DIGEST = "5e174e7304ff21e1ddab3c1f33098cf97081845ddab52d7f4aac821e162b1fc9"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with tarfile.open(Path(__file__).parent / "recorded" / "store.tar.xz") as archive:
        archive.extractall(path, filter="data")
    return path


def digest(log: Log) -> str:
    """Of all facts, as plain tuples: classes get new fields."""
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
        assert digest(log) == DIGEST
        assert any(codecs(log))
        assert [each.found for each in check(log.snapshot) if each.found] == []
        compress(log)
        assert digest(log) == DIGEST
        ChangingLog(log, 2_000).change(30)
        assert [each.found for each in check(log.snapshot) if each.found] == []


def test_its_backup_has_what_it_holds(directory: Path, tmp_path: Path) -> None:
    new_identity(directory)
    assert back_up(str(directory), tmp_path / "b").format == FORMAT
    restore(tmp_path / "b", tmp_path / "restored")
    with Log(tmp_path / "restored") as log:
        assert digest(log) == DIGEST


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_and_says_what_to_do(directory: Path, other: int) -> None:
    change(directory, b"meta", b"format", other.to_bytes(4, "little"))
    why = (
        f"its format is {other}, this program reads format {FORMAT}: open it with the version of "
        "Dafka that wrote it"
    )
    with pytest.raises(StoreError, match=why):
        Log(directory)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_the_backup_of_another_format_is_refused(
    directory: Path, tmp_path: Path, other: int
) -> None:
    new_identity(directory)
    back_up(str(directory), tmp_path / "b")
    manifest = tmp_path / "b" / "backup.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": other}))
    why = f"its log format {other}, .* reads formats 1 and {FORMAT}:"
    with pytest.raises(StoreError, match=why):
        restore(tmp_path / "b", tmp_path / "restored")

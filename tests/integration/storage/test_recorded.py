"""A directory that commit b1ada83 wrote opens and can be changed; other formats are refused.

Once it is compressed its format is 4.  ``recorded/store.tar.xz`` contains its ``data.mdb``:
appends, merged in part, trimmed, staged and committed ones, some set aside, notes and links, all
written by ``ChangingLog``.  ``DIGEST`` is the digest of what that version read from it.
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
from dafka_core.storage.open_environment import FORMAT, FORMAT_AT_FIRST
from tests.integration.storage.changing_log import PARTITIONS, ChangingLog, look, told
from tests.integration.storage.damage import change
from tests.integration.storage.test_block_compressor import codecs, compress, form

DIGEST = "1fcc83fc4f974eb020c9e281858163fed785c7ac2708f750f43d81b33a631669"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with tarfile.open(Path(__file__).parent / "recorded" / "store.tar.xz") as archive:
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


@pytest.mark.parametrize("other", [FORMAT_AT_FIRST - 1, FORMAT + 1])
def test_another_format_is_refused_and_says_what_to_do(directory: Path, other: int) -> None:
    change(directory, b"meta", b"format", other.to_bytes(4, "little"))
    why = (
        f"its format is {other}, this program reads formats {FORMAT_AT_FIRST} to {FORMAT}: open "
        "it with the version of Dafka that wrote it"
    )
    with pytest.raises(StoreError, match=why):
        Log(directory)


@pytest.mark.parametrize("other", [FORMAT_AT_FIRST - 1, FORMAT + 1])
def test_the_backup_of_another_format_is_refused(
    directory: Path, tmp_path: Path, other: int
) -> None:
    new_identity(directory)
    back_up(str(directory), tmp_path / "b")
    manifest = tmp_path / "b" / "backup.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": other}))
    with pytest.raises(StoreError, match=f"its log format {other}, .* reads formats 1 and 3 or"):
        restore(tmp_path / "b", tmp_path / "restored")

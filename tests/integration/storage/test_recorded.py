"""A directory of this format, written earlier, opens and can be changed; others are refused.

``recorded/store.tar.xz`` contains its ``data.mdb``: appends, merged and compressed in part,
trimmed, staged and committed ones, some set aside, notes and links, all written by ``ChangingLog``.
``DIGEST`` is the digest of its content as read then.
"""

import hashlib
import tarfile
from pathlib import Path

import pytest

from dafka_core.nodes.store_backup import back_up, restore
from dafka_core.nodes.store_identity import new_identity
from dafka_core.storage import Log
from dafka_core.storage.open_environment import FORMAT
from tests.integration.storage.changing_log import PARTITIONS, ChangingLog, told
from tests.integration.storage.linked import checked
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
        assert checked(log).found == ()
        compress(log)
        assert digest(log) == DIGEST
        ChangingLog(log, 2_000).change(30)
        assert checked(log).found == ()


def test_its_backup_has_what_it_holds(directory: Path, tmp_path: Path) -> None:
    new_identity(directory)
    assert back_up(str(directory), tmp_path / "b").format == FORMAT
    restore(tmp_path / "b", tmp_path / "restored")
    with Log(tmp_path / "restored") as log:
        assert digest(log) == DIGEST

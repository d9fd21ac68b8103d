"""The manifest is believed only if it is what a writer has written."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.archive import manifest as manifests
from dafka_core.archive.archive import Archive
from dafka_core.archive.manifest import ArchivedFile, ArchiveError, Commit, Manifest
from dafka_core.model.epochs import EpochId
from dafka_core.model.names import text_of

STAGED = "0" * 32


def file(start: int, end: int, partition: str = "P", life: int = 0) -> ArchivedFile:
    return ArchivedFile(
        partition, start, end, "2026-01-31", 100, 5, 9, STAGED, EpochId(life, life, life)
    )


def made(directory: Path, *commits: list[ArchivedFile]) -> Manifest:
    manifest = Manifest(directory, "t")
    (manifest.commits / "staged" / STAGED).mkdir(parents=True)
    for files in commits:
        assert manifest.commit(files)
    return manifest


def read(directory: Path) -> Manifest:
    manifest = Manifest(directory, "t")
    manifest.refresh()
    return manifest


def test_what_was_committed_is_read(tmp_path: Path) -> None:
    manifest = made(tmp_path, [file(5, 9), file(0, 3)], [file(3, 5), file(0, 2, "Q")])
    found = read(tmp_path)
    assert found.files == manifest.files
    assert found.files == {"P": [file(0, 3), file(3, 5), file(5, 9)], "Q": [file(0, 2, "Q")]}
    assert (found.version, found.refresh()) == (2, False)


def test_the_second_writer_of_a_number_is_told(tmp_path: Path) -> None:
    one, other = made(tmp_path), read(tmp_path)
    assert one.commit([file(0, 3)])
    assert not other.commit([file(0, 5)])
    assert other.refresh()
    assert other.files == {"P": [file(0, 3)]}
    assert other.commit([file(3, 5)])


def test_what_is_missing_of_a_range(tmp_path: Path) -> None:
    manifest = made(tmp_path, [file(3, 5), file(5, 9, life=4), file(12, 20, life=7)])
    assert list(manifest.missing("P", 0, 25)) == [(0, 3), (9, 12), (20, 25)]
    assert list(manifest.missing("P", 4, 8)) == []
    assert list(manifest.missing("P", 9, 11)) == [(9, 11)]
    assert list(manifest.missing("Q", 1, 2)) == [(1, 2)]
    lives = [manifest.life_before("P", offset).number for offset in (0, 5, 8, 9, 12, 30)]
    assert lives == [0, 0, 0, 4, 4, 7]


def test_names_need_not_be_text(tmp_path: Path) -> None:
    topic, partition = text_of(b"\xfft/"), text_of(b"\x80")
    manifest = Manifest(tmp_path, topic)
    (manifest.commits / "staged" / STAGED).mkdir(parents=True)
    manifest.commit([file(0, 3, partition)])
    assert Archive(tmp_path).topics() == [topic]
    again = Manifest(tmp_path, topic)
    assert again.refresh()
    assert list(again.files) == [partition]


def test_what_a_later_version_has_written_is_no_damage(tmp_path: Path) -> None:
    [path] = made(tmp_path, [file(0, 3)]).commits.glob("*.json")
    path.write_bytes(b'{"v": 3, "other": 1}')
    later = "was written by a later version .*: upgrade this program; the archive is intact$"
    with pytest.raises(ArchiveError, match=later):
        read(tmp_path)
    path.write_bytes(b'{"v": "3"}')
    with pytest.raises(ArchiveError, match="It was changed or is damaged: restore it"):
        read(tmp_path)


def change(**changes: Any) -> bytes:
    tree = json.loads(Commit("t", (file(0, 3),)).packed())
    tree["files"][0] |= {name: value for name, value in changes.items() if name not in tree}
    return json.dumps(tree | {n: v for n, v in changes.items() if n in tree}).encode()


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (b"", "'commit' = b'': must be a JSON object"),
        (b"[" * 100_000, "must be a JSON object"),
        (b"{}", "'v' = None: must be the version, 2"),
        (change(v=0), "'v' = 0: must be the version, 2"),
        (change(topic="u"), "is of topic 'u'"),
        (change(files=[]), "files"),
        (change(start=-1), "'start' = -1: must be `int` >= 0"),
        (change(start=3), r"offsets 3 to 3 \(exclusive\) are not a range"),
        (change(end=2**63), "'end' = 9223372036854775808: must be `int` <= "),
        (change(day="../../x"), "day"),
        (change(day="2026-13-01"), "month must be in 1..12"),
        (change(staged="../x"), "staged"),
        (change(partition=""), "partition"),
        (change(partition="\ud800"), "'files' = "),
        (change(partition="x" * 300), "partition"),
        (b"\xff\xfe", "must be a JSON object"),
    ],
)
def test_what_no_writer_has_written_is_named(tmp_path: Path, octets: bytes, expected: str) -> None:
    manifest = made(tmp_path, [file(3, 9)])
    path = manifest.commits / f"{2:020d}.json"
    path.write_bytes(octets)
    with pytest.raises(ArchiveError, match=expected) as refused:
        read(tmp_path)
    assert str(path) in str(refused.value)
    assert "restore it from a copy" in str(refused.value)


@given(st.binary(max_size=200) | st.text(max_size=100).map(json.dumps).map(str.encode))
def test_any_octets_are_a_value_error_at_most(octets: bytes) -> None:
    with contextlib.suppress(ValueError):
        Commit.parse(octets)
        pytest.fail("it is no commit")


def test_two_files_cannot_have_the_same_offsets(tmp_path: Path) -> None:
    manifest = made(tmp_path, [file(0, 5)])
    with pytest.raises(ArchiveError, match="have the same offsets"):
        manifest.commit([file(4, 9)])
    assert read(tmp_path).version == 1
    (manifest.commits / f"{2:020d}.json").write_bytes(Commit("t", (file(4, 9),)).packed())
    with pytest.raises(ArchiveError, match="have the same offsets"):
        read(tmp_path)
    twice = Commit("t", (file(20, 30), file(5, 9), file(8, 12), file(8, 12, "Q")))
    (manifest.commits / f"{2:020d}.json").write_bytes(twice.packed())
    with pytest.raises(ArchiveError, match="have the same offsets"):
        read(tmp_path)


def test_the_largest_commit_can_be_read(tmp_path: Path) -> None:
    life = EpochId(2**62, 2**63, 2**62)
    longest = ["\udcff" * 250 + f"{number:05}" for number in range(manifests.MAX_COMMIT_FILES)]
    numbers = 2**61, 2**62, "2026-01-31", 2**62, -(2**62), 2**62
    files = [ArchivedFile(name, *numbers, STAGED, life) for name in longest]
    made(tmp_path, files)
    assert len(read(tmp_path).files) == len(files)


def test_a_commit_that_is_missing_hides_nothing(tmp_path: Path) -> None:
    manifest = made(tmp_path, [file(0, 5)], [file(5, 9)], [file(9, 12)])
    (manifest.commits / f"{2:020d}.json").unlink()
    with pytest.raises(ArchiveError, match=f"{2:020d}.json: is missing, but later commits exist"):
        read(tmp_path)
    for number in (3, 1):
        (manifest.commits / f"{number:020d}.json").unlink()
        with pytest.raises(ArchiveError, match=f"{3:020d}.json: has disappeared"):
            manifest.refresh()


def test_what_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, [file(0, 5)], [file(5, 9)])
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "MAX_COMMIT_BYTES", 100)
        with pytest.raises(ArchiveError, match="has more than 100 bytes"):
            read(tmp_path)
    monkeypatch.setattr(manifests, "MAX_FILES", 1)
    with pytest.raises(ArchiveError, match="topic 't' has too many files"):
        read(tmp_path)


def test_strangers_in_the_directory_are_passed_over(tmp_path: Path) -> None:
    manifest = made(tmp_path, [file(0, 5)])
    for name in ("1.json", ".swp", "00000000000000000009.json.bak"):
        (manifest.commits / name).write_text("x")
    (tmp_path / "_dafka" / "other").mkdir()
    assert read(tmp_path).version == 1
    assert Archive(tmp_path).topics() == ["t"]


def test_many_commits_are_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "FOLD", 3)
    manifest = made(tmp_path, *([file(at, at + 1), file(at, at + 1, "Q")] for at in range(8)))
    for number in (1, 2, 4, 5, 6):  # what is folded is not read: it may be anything
        (manifest.commits / f"{number:020d}.json").write_text("x")
    found = read(tmp_path)
    assert (found.files, found.version) == (manifest.files, 8)


def test_a_reader_goes_on_within_what_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "FOLD", 3)
    manifest = made(tmp_path, [file(0, 1)])
    found = read(tmp_path)
    for at in range(1, 7):
        assert manifest.commit([file(at, at + 1)])
        if at % 2:
            assert found.refresh()
    found.refresh()
    assert (found.files, found.version) == (manifest.files, 7)


def test_a_fold_that_cannot_be_written_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "FOLD", 2)
    monkeypatch.setattr(Manifest, "_write_fold", lambda *_: (tmp_path / "none").read_text())
    manifest = made(tmp_path, [file(0, 1)], [file(1, 2)], [file(2, 3)])
    assert read(tmp_path).files == manifest.files
    monkeypatch.undo()
    monkeypatch.setattr(manifests, "FOLD", 2)
    monkeypatch.setattr(manifests, "MAX_COMMIT_FILES", 1)
    assert manifest.commit([file(3, 4)])
    assert [path.name for path in manifest.commits.glob("*-*.json")] == []
    assert read(tmp_path).version == 4

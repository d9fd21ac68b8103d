"""The directory of allowed keys: valid keys, and messages about invalid files."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from zmq.auth import create_certificates

from dafka_core.errors import ConfigError
from dafka_core.security import key_files
from dafka_core.security.allowed_keys import AllowedKeys
from dafka_core.security.key_files import AllowedKey, new_key, parse_public, read_public
from tests.open_files import no_open_file_left


def _replaced(old: str, new: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace(old, new))


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (_replaced("public-key", "key"), "n.key holds no public key"),
    (_replaced('public-key = "', 'public-key = "x'), "n.key holds no public key, or not a whole"),
    (_replaced("roles", "rolls"), "n.key has line 4, which is no line of a key"),
    (_replaced('    roles = "produce"\n', ""), "n.key has no roles"),
    (_replaced("produce", "prodce"), "'prodce' is no role; did you mean 'produce'?"),
    (lambda path: path.write_bytes(b"\xff\xfe"), "n.key holds no public key"),
    (lambda path: shutil.copy(path.with_suffix(".key_secret"), path), "n.key holds a secret key"),
    (lambda path: shutil.copy(path, path.with_name("z.key")), "z.key holds the key of n.key"),
    (lambda path: path.chmod(0o666), "n.key can be written to by all users"),
    (lambda path: path.parent.chmod(0o777), "can be written to by all users"),
    (lambda path: shutil.rmtree(path.parent), "must be a directory of public keys"),
]


@pytest.mark.parametrize(("spoil", "why"), WRONG)
def test_an_invalid_file_is_an_error_at_first_and_logged_later(
    spoil: Callable[[Path], object], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, spoilt = new_key(tmp_path / "k", "a", ("store",))[0], tmp_path / "k" / "n.key"
    new_key(tmp_path / "k", "n", ("produce",))
    allowed, good = AllowedKeys(str(tmp_path / "k")), read_public(kept)
    gone = read_public(spoilt)
    spoil(spoilt)
    with pytest.raises(ConfigError) as refused:
        AllowedKeys(str(tmp_path / "k"))
    assert why in str(refused.value)
    changed = [allowed.look(0.0), allowed.look(0.5), allowed.look(1.5), allowed.look(9.0)]
    assert [each.getMessage() for each in caplog.records if why in each.getMessage()] != []
    said = [each for each in caplog.records if each.levelname == "ERROR"]
    assert len(said) == 1  # once, not each second
    is_whole = "z.key" in why
    assert changed == [not is_whole, False, False, False]
    assert (allowed.find(gone.key) is not None) == is_whole
    if "directory" not in why and not why.startswith("can be"):
        assert allowed.find(good.key) == good


def test_a_read_only_mount_that_all_could_write_is_a_directory_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = read_public(new_key(tmp_path / "k", "a", ("store",))[0])
    (tmp_path / "k").chmod(0o777)
    with pytest.raises(ConfigError, match="can be written to by all users"):
        AllowedKeys(str(tmp_path / "k"))
    mounted = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda path: mounted)
    assert AllowedKeys(str(tmp_path / "k")).find(made.key) == made


def test_changes_of_keys_and_roles_apply(tmp_path: Path) -> None:
    first, _ = new_key(tmp_path, "b", ("tower",))
    new_key(tmp_path, "a", ("tower", "store"))
    allowed = AllowedKeys(str(tmp_path))
    assert [key.name for key in allowed.with_role("tower")] == ["a", "b"]
    first.write_text(first.read_text().replace("tower", "store"))
    assert allowed.look(0.0)
    assert [key.name for key in allowed.with_role("tower")] == ["a"]
    (tmp_path / "a.key").unlink()
    assert not allowed.look(0.9)
    assert allowed.look(1.1)
    assert allowed.with_role("tower") == []


def test_a_key_of_another_program_needs_roles(tmp_path: Path) -> None:
    create_certificates(tmp_path, "foreign")
    with pytest.raises(ConfigError, match=r"foreign\.key has no roles"):
        AllowedKeys(str(tmp_path))


def test_keys_with_one_address_prefix_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        new_key(tmp_path, name, ("produce",))
    monkeypatch.setattr(key_files, "address_prefix", lambda public: "0123456789AB")
    with pytest.raises(ConfigError, match=r"b.key has addresses like those of a.key"):
        AllowedKeys(str(tmp_path))


def _moved(directory: Path) -> None:
    (directory / "n.key").rename(directory / "moved")
    (directory / "n.key").symlink_to("moved")


def test_a_missing_file_revokes_one_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "n"):
        new_key(tmp_path, name, ("produce",))
    _moved(tmp_path)
    allowed = AllowedKeys(str(tmp_path))
    assert [key.name for key in allowed.all()] == ["a", "n"]
    # So Kubernetes leaves what is in a mounted secret no more.
    (tmp_path / "moved").unlink()
    assert allowed.look(1.0)
    assert [key.name for key in allowed.all()] == ["a"]
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
    os.mkfifo(tmp_path / "z.key")
    (tmp_path / "round.key").symlink_to("round.key")
    assert not allowed.look(3.0)
    assert [key.name for key in allowed.all()] == ["a"]
    assert "z.key is no file; it admits no key" in caplog.text
    assert "round.key cannot be read (Too many levels of symbolic links)" in caplog.text


def test_known_keys_stay_valid_without_free_descriptors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        new_key(tmp_path, name, ("produce",))
    allowed = AllowedKeys(str(tmp_path))
    (tmp_path / "b.key").unlink()
    with no_open_file_left():
        assert not allowed.look(1.0)
        with pytest.raises(ConfigError, match=r"cannot be read \(Too many open files\)"):
            AllowedKeys(str(tmp_path))
    assert "(Too many open files); the known keys stay valid" in caplog.text
    assert allowed.look(3.0)
    assert [key.name for key in allowed.all()] == ["a"]


def test_only_changed_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        new_key(tmp_path, name, ("produce",), addresses=("A*",) if name == "b" else ())
    read: list[str] = []

    def parse(name: str, octets: bytes) -> AllowedKey:
        read.append(name)
        return parse_public(name, octets)

    monkeypatch.setattr("dafka_core.security.allowed_keys.parse_public", parse)
    allowed = AllowedKeys(str(tmp_path))
    (tmp_path / "b.key").touch()
    assert not allowed.look(1.0)
    assert not allowed.look(3.0)
    assert read == ["a", "b", "b"]
    owner = allowed.owner("ABC")
    assert owner is not None
    assert owner.name == "b"
    assert allowed.owner("BC") is None


def test_changes_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dafka.security")
    public, _ = new_key(tmp_path, "s", ("store",), addresses=("A*",))
    allowed = AllowedKeys(str(tmp_path))
    public.write_text(public.read_text().replace('"store"', '"consume"'))
    assert allowed.look(1.0)
    public.write_text(public.read_text().replace('"A*"', '"B*"'))
    assert allowed.look(3.0)
    public.write_text(public.read_text().replace("    certificate", "#"))
    assert allowed.look(5.0)
    key = read_public(public).key
    assert [each.getMessage() for each in caplog.records] == [
        f"key s ({key}) has other permissions now (consume; addresses A*)",
        f"key s ({key}) has other permissions now (consume; addresses B*)",
        f"key s ({key}) has another certificate for Arrow Flight now",
    ]

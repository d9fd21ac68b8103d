"""A store's location: as JSON, as URIs, and in its directory."""

import errno
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.errors import StoreError
from dafka_core.flight import store_location
from dafka_core.flight.store_location import StoreLocation

texts = st.text(st.characters(exclude_categories=()), max_size=20)


@settings(deadline=None)
@given(st.builds(StoreLocation, texts, st.lists(texts).map(tuple), texts, texts, texts))
def test_a_location_survives_json_and_pickling(location: StoreLocation) -> None:
    assert StoreLocation.parse(location.packed()) == location
    assert pickle.loads(pickle.dumps(location)) == location


def test_a_store_begins_a_session(tmp_path: Path) -> None:
    first, second = (StoreLocation.begin("S", ["grpc://a:1"], tmp_path) for _ in range(2))
    assert first.session != second.session
    assert (tmp_path / "session").read_text() == f"{second.session}\n"
    assert [each.name for each in tmp_path.iterdir()] == ["session"]
    assert first.here
    assert Path(first.directory).is_absolute()
    with pytest.raises(StoreError, match="file session"):
        StoreLocation.begin("S", [], tmp_path / "missing")


def test_on_a_full_disk_a_store_begins_a_session_that_no_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StoreLocation.begin("S", ["grpc://a:1"], tmp_path)

    def replaced(path: Path, content: bytes, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_location, "replace_file", replaced)
    second = StoreLocation.begin("S", ["grpc://a:1"], tmp_path)
    assert second.session not in (first.session, "")
    assert (tmp_path / "session").read_text() == f"{first.session}\n"


def test_a_location_elsewhere_is_not_here() -> None:
    assert not StoreLocation("S", ()).here
    assert not StoreLocation("S", (), machine="another").here
    assert StoreLocation("S", (), machine=store_location.this_machine()).here


def test_a_socket_where_there_can_be_one(tmp_path: Path) -> None:
    path = store_location.socket_path(Path("/a/b"))
    assert path == "/a/b/flight.sock"
    assert store_location.socket_path(Path("/" + "x" * 87)) is not None
    assert store_location.socket_path(Path("/" + "x" * 88)) is None
    for odd in ("a b", "a%20b", "a#b", "a?b", "é"):
        assert store_location.socket_path(Path("/") / odd) is None


def test_locations_are_taken_apart() -> None:
    assert store_location.path_of(store_location.unix_location("/a b/c")) == "/a b/c"
    assert store_location.path_of("grpc://a:1") is None
    assert store_location.host_of("grpc://a:1") == ("a", 1)
    assert store_location.host_of(store_location.tcp_location("::1", 5)) == ("::1", 5)
    assert store_location.host_of("grpc+tcp://a:1") == ("a", 1)
    assert store_location.host_of(store_location.tcp_location("a", 5, is_tls=True)) == ("a", 5)
    for other in ("http://a:1", "grpc://a", "grpc://a:x", "grpc://[a:1", "grpc+unix:///a", ""):
        assert store_location.host_of(other) is None


def test_a_machine_without_a_boot_id_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_location, "_BOOT_ID", Path("/nowhere"))
    store_location.this_machine.cache_clear()
    try:
        assert store_location.this_machine() == os.uname().nodename
    finally:
        store_location.this_machine.cache_clear()

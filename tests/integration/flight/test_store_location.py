"""Where a store is: as JSON, as URIs, and in its directory."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.errors import InvalidRequestError, StoreError
from dafka_core.flight import json_messages, store_location
from dafka_core.flight.store_location import StoreLocation

texts = st.text(st.characters(exclude_categories=()), max_size=20)


@settings(deadline=None)
@given(st.builds(StoreLocation, texts, st.lists(texts).map(tuple), texts, texts, texts))
def test_a_location_survives_json_and_pickling(location: StoreLocation) -> None:
    assert StoreLocation.parse(location.packed()) == location
    assert pickle.loads(pickle.dumps(location)) == location


def test_members_that_a_later_version_has_are_passed_over() -> None:
    assert StoreLocation.parse(
        '{"v": 1, "store": "S", "locations": [], "more": 1}'
    ) == StoreLocation("S", ())


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("", "location"),
        ("[]", "location"),
        ("[" * 100_000, "location"),
        (b"\xff\xfe\xfd", "location"),
        ("{}", "v"),
        ('{"v": 2, "locations": []}', "v"),
        ('{"v": 1, "locations": []}', "store"),
        ('{"v": 1, "store": "S"}', "locations"),
        ('{"v": 1, "store": "S", "locations": "grpc://a:1"}', "locations"),
        ('{"v": 1, "store": "S", "locations": [1]}', "locations"),
        ('{"v": 1, "store": 1, "locations": []}', "store"),
        ('{"v": 1, "store": "S", "locations": [], "directory": null}', "directory"),
    ],
)
def test_what_is_no_location_is_refused(text: str | bytes, member: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        StoreLocation.parse(text)
    assert refused.value.member == member
    assert len(str(refused.value)) < 300


def test_a_store_begins_a_session(tmp_path: Path) -> None:
    first, second = (StoreLocation.begin("S", ["grpc://a:1"], tmp_path) for _ in range(2))
    assert first.session != second.session
    assert (tmp_path / "session").read_text() == f"{second.session}\n"
    assert [each.name for each in tmp_path.iterdir()] == ["session"]
    assert first.here
    assert Path(first.directory).is_absolute()
    with pytest.raises(StoreError, match="file session"):
        StoreLocation.begin("S", [], tmp_path / "missing")


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
    for other in ("grpc+tls://a:1", "grpc://a", "grpc://a:x", "grpc://[a:1", "grpc+unix:///a", ""):
        assert store_location.host_of(other) is None


def test_what_came_from_elsewhere_is_cut() -> None:
    assert json_messages.short(5) == 5
    assert json_messages.short("x" * 90) == "x" * 90
    assert len(str(json_messages.short(["x" * 200]))) == 103


def test_json_has_nothing_that_is_not_ascii() -> None:
    text = StoreLocation("é\udcff", ("grpc://é:1",)).packed()
    assert text.isascii()
    assert json.loads(text)["v"] == 1

"""Names as they are shown: printable, and the same name when they are read."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.errors import ConfigError, DafkaError, DataLossError, StoreUnreachableError
from dafka_core.model.name_limits import nearest_name
from dafka_core.model.names import (
    HIDDEN,
    JOINERS,
    escape,
    is_plain,
    octets_of,
    printable,
    quoted,
    text_of,
    unescape,
)
from dafka_core.model.records import TopicPartition

ESCAPED = {
    b"bad\xff": r"bad\xff",
    b"new\nline": r"new\x0aline",
    b"\x1b[31m": r"\x1b[31m",
    b"\x7f": r"\x7f",
    "\x85".encode(): r"\xc2\x85",
    "a\u2028b\u202ec".encode(): r"a\xe2\x80\xa8b\xe2\x80\xaec",
    "\u200bd\ufeff".encode(): r"\xe2\x80\x8bd\xef\xbb\xbf",
    b"\xed\xa0\x80": r"\xed\xa0\x80",  # a surrogate's bytes are not UTF-8
    rb"a\xff": r"a\x5cxff",
    rb"a\XFF\xFF": r"a\XFF\x5cxFF",
    b"\\\n": r"\\x0a",
    rb"\\x41": r"\\x5cx41",
}
"""Names with a printable form of their own, by their bytes."""

PLAIN = ("flights", "a\\b", "C:\\new\\xyz", "it's", "a b", "日é本", "\u00a0", "👩\u200d🚀", "\\")
"""Names shown unchanged."""

PIECES = st.sampled_from(
    [b"\\", b"x", b"\\x", b"5", b"c", b"f", b"F", b"\\x5c", b"\xff", b"\xc3", b"\xa9", b"\n", b"\0"]
)
OCTETS = st.binary(max_size=255) | st.lists(PIECES, max_size=12).map(b"".join)


@pytest.mark.parametrize(("octets", "shown"), ESCAPED.items())
def test_invisible_characters_are_escaped(octets: bytes, shown: str) -> None:
    assert escape(text_of(octets)) == shown
    assert octets_of(unescape(shown)) == octets


@pytest.mark.parametrize("name", PLAIN)
def test_visible_names_are_unchanged(name: str) -> None:
    assert escape(name) == unescape(name) == printable(name) == name
    assert is_plain(name)


def test_every_pair_of_bytes_survives_escaping() -> None:
    shown = set()
    singles = [bytes((each,)) for each in range(256)]
    for octets in [*singles, *(first + second for first in singles for second in singles)]:
        name = text_of(octets)
        assert octets_of(unescape(escape(name))) == octets
        shown.add(escape(name))
    assert len(shown) == 256 + 256 * 256


def test_every_character_is_visible_or_escaped() -> None:
    unassigned = range(0x40000, 0xE0000, 99)  # some of ten planes
    for code in (*range(0x40000), *unassigned, *range(0xE0000, sys.maxunicode + 1)):
        if 0xD800 <= code < 0xE000:
            continue  # only bytes can contain them
        name = chr(code)
        hidden = unicodedata.category(name) in HIDDEN and name not in JOINERS
        assert (escape(name) != name) is hidden
        assert escape(name).isprintable() or not hidden
        assert unescape(escape(name)) == name


@given(OCTETS)
def test_any_bytes_survive_escaping(octets: bytes) -> None:
    name = text_of(octets)
    shown = escape(name)
    assert octets_of(unescape(shown)) == octets
    assert is_plain(shown)
    assert printable(shown) == shown
    shown.encode()  # in any file and on any screen


@given(OCTETS, OCTETS)
def test_different_names_are_shown_differently(first: bytes, second: bytes) -> None:
    assert (escape(text_of(first)) == escape(text_of(second))) is (first == second)


def test_any_byte_may_be_escaped() -> None:
    assert unescape(r"a\x2cb\x20\xC3\xa9\x5c") == "a,b é\\"
    assert unescape(r"\x4\x\xg1\\X41") == r"\x4\x\xg1\\X41"


def test_surrogates_without_a_byte_are_refused() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        unescape("\ud800\\x41")
    assert printable("\ud800") == r"\xed\xa0\x80"


def test_a_partition_is_shown_escaped() -> None:
    tp = TopicPartition(text_of(b"a\n\xff"), text_of(b"\x1b"))
    assert str(tp) == r"topic 'a\x0a\xff', partition \x1b"
    assert str(TopicPartition("t", "P")) == "topic 't', partition P"
    assert quoted("it's") == "'it's'"


@pytest.mark.parametrize(
    "error",
    [
        DataLossError(text_of(b"a\n\xff"), text_of(b"\x1bP"), 3, None, "why"),
        ConfigError("topic", escape(text_of(b"a\n\xff\x1bP")), "why"),
        StoreUnreachableError(text_of(b"\n\xff\x1b"), "why"),
    ],
)
def test_no_error_brings_a_control_character_to_a_screen(error: DafkaError) -> None:
    assert is_plain(str(error))
    assert r"\x1b" in str(error)
    assert r"\xff" in str(error)


COMMANDS = ["up", "tower", "store", "produce", "consume", "topics", "heads", "staged", "stores"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("prodce", COMMANDS, "produce"),
        ("stor", COMMANDS, "store"),
        ("Topics", COMMANDS, "topics"),
        ("hedas", COMMANDS, "heads"),
        ("fligths", ["flights", "sensors"], "flights"),
        ("flights", ["flights-2024", "sensors"], "flights-2024"),
        ("fetch_timeout_ms", ["fetchTimeoutMs", "fetch"], "fetchTimeoutMs"),
        ("--dri", ["--dir", "--host"], "--dir"),
        ("timeout", ["timeout-s", "time"], "timeout-s"),
        ("0123456789ABCDEF0123456789ABCDEX", ["0123456789ABCDEF0123456789ABCDEF"], "0123456789"),
        ("x" * 100 + "y", ["x" * 100], "x" * 100),
    ],
)
def test_a_misspelling_is_recognised(name: str, known: list[str], meant: str) -> None:
    found = nearest_name(name, known)
    assert found is not None
    assert found.startswith(meant)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("others", ["orders"]),
        ("orders", COMMANDS),
        ("others", COMMANDS),
        ("--nope", ["--tower", "--host", "--json"]),
        ("--since", ["--wire", "--dir"]),
        ("x", ["y", "xy"]),
        ("", COMMANDS),
        ("---", ["--dir"]),
        ("A1B2C3D4A1B2C3D4A1B2C3D4A1B2C3D4", ["0123456789ABCDEF0123456789ABCDEF"]),
        ("orders", []),
    ],
)
def test_a_different_name_is_no_misspelling(name: str, known: list[str]) -> None:
    assert nearest_name(name, known) is None


def test_the_nearest_of_several_names_is_suggested() -> None:
    assert nearest_name("sensor", ["sensors-of-1990", "sensors", "censors"]) == "sensors"
    assert nearest_name("topic", ["tonic", "topics", "topic-for-tests"]) == "topics"

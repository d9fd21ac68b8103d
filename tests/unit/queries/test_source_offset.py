"""The checkpointed offset."""

import base64
import contextlib
import json
import math
import uuid
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.errors import ConfigError
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import PACKED_PARTITIONS, SourceOffset, pack, unpack

OLD, NEW = EpochId(2, 7, 1), EpochId(3, 2**64 - 1, 2)
A, B = TopicPartition("t", "A"), TopicPartition("t", "B")
MANY = {TopicPartition("t", uuid.uuid4().hex.upper()): n for n in range(PACKED_PARTITIONS)}
ODD = [TopicPartition("bad\udcff\n", "A"), TopicPartition("t", "\x1b")]
"""Names that are not plain text: Spark would change their bytes."""


@pytest.mark.parametrize(
    ("offset", "names"),
    [
        (SourceOffset({A: 1, TopicPartition("ü", "A"): 2}, {A: 0}), "start topics version"),
        (SourceOffset({A: 1}, {}, {A: OLD}), "lives start topics version"),
        (SourceOffset({A: 1}, begun_us=5), "begun start topics version"),
        (SourceOffset(dict(list(MANY.items())[1:])), "start topics version"),
        (SourceOffset(MANY, {A: 0}, {A: NEW}), "packed partitions records version"),
        (SourceOffset(MANY, begun_us=5), "begun packed partitions records version"),
        *(
            (SourceOffset({A: 2}, {A: 2, odd: 1}), "packed partitions records version")
            for odd in ODD
        ),
        *((SourceOffset({A: 2, odd: 1}), "packed partitions records version") for odd in ODD),
    ],
)
def test_parse_is_the_inverse_and_the_text_has_one_form(offset: SourceOffset, names: str) -> None:
    """Spark compares offsets as text: another order of keys would be new data forever."""
    tree = offset.as_json()
    assert list(tree) == names.split()
    text = json.dumps(tree, ensure_ascii=False).encode()
    assert text == json.dumps(tree, sort_keys=True, ensure_ascii=False).encode()
    assert SourceOffset.parse(json.loads(text)) == offset
    backwards = SourceOffset(
        dict(reversed(dict(offset.positions).items())),
        dict(reversed(dict(offset.start).items())),
        offset.lives,
        offset.begun_us,
    )
    assert json.dumps(backwards.as_json(), ensure_ascii=False).encode() == text


def test_the_form_of_a_short_offset() -> None:
    text = '{"start": {}, "topics": {"t": {"A": 1}}, "version": 4}'
    assert json.dumps(SourceOffset({A: 1}, {}, {A: NO_LIFE}).as_json()) == text


def test_the_initial_offset_holds_itself() -> None:
    initial = SourceOffset.initial({A: 3})
    assert initial.is_initial
    assert initial.start == {A: 3}
    assert not SourceOffset({A: 3}, {A: 1}).is_initial


def test_a_range_has_the_lives_of_its_ends() -> None:
    begin = SourceOffset({A: 3, B: 4}, {}, {A: OLD, B: OLD})
    end = SourceOffset({A: 9, B: 5}, {B: 4}, {A: NEW, B: NEW})
    assert [(each.partition, each.after, each.life) for each in end.since(begin)] == [
        ("A", OLD, NEW),
        ("B", NO_LIFE, NEW),  # the query has not read the records before
    ]
    assert list(end.since(end)) == [("t", "A", 9, 9, NEW, NEW), ("t", "B", 4, 5, NEW, NO_LIFE)]


def test_a_batch_that_ends_before_its_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="starts at offset 5 and ends before it, at 4"):
        list(SourceOffset({A: 4}).since(SourceOffset({A: 5}, {A: 0})))


def test_a_report_sums_up_many_partitions() -> None:
    assert SourceOffset({A: 1}).report() == SourceOffset({A: 1}).as_json()
    summary = {"partitions": 100, "records": sum(range(100))}
    assert SourceOffset(MANY).report() == summary
    assert summary.items() <= SourceOffset(MANY).as_json().items()


def test_an_error_shows_a_part_of_a_long_offset() -> None:
    tree = SourceOffset(MANY).as_json()
    with pytest.raises(ConfigError, match=r"is damaged: .* new checkpoint") as caught:
        SourceOffset.parse(tree | {"packed": tree["packed"][:-9]})
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "given",
    [
        {},
        [],
        {"topics": {}, "start": {}},
        {"topics": {}, "version": 4},
        {"topics": {}, "start": {}, "begun": "now", "version": 4},
        {"packed": 5, "version": 4},
        {"packed": "x", "version": 4},
        {"topics": {"t": {"A": "1"}}, "start": {}, "version": 4},
        {"topics": {"t": 5}, "start": {}, "version": 4},
        {"topics": {"t": {"A": True}}, "start": {}, "version": 4},
        {"topics": {}, "start": {}, "lives": {"t": {"A": [1, 2]}}, "version": 4},
        {"topics": {}, "start": {}, "lives": {"t": {"A": [1, 2, "3"]}}, "version": 4},
    ],
)
def test_a_foreign_checkpoint_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"new checkpoint"):
        SourceOffset.parse(given)


@pytest.mark.parametrize("given", [0, {"flights": {"0": 5}}])  # of rates, and of Kafka
def test_another_sources_checkpoint_is_named(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"another source's.*new checkpoint"):
        SourceOffset.parse(given)


@pytest.mark.parametrize("version", [1, 2, 3, 5, "4"])
def test_another_version_is_refused(version: object) -> None:
    tree = SourceOffset({A: 1}).as_json() | {"version": version}
    with pytest.raises(ConfigError, match=f"it has version {version!r}, not 4.*new checkpoint"):
        SourceOffset.parse(tree)


# -- the packed text -------------------------------------------------------------------------------

ADDRESS = TopicPartition("t", "0" * 31 + "7")

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9) | st.just("\udcff")
addresses = st.binary(min_size=16, max_size=16).map(lambda packed: packed.hex().upper())
tps = st.builds(TopicPartition, names, names | addresses)
offsets = st.integers(0, 2**63 - 1)
longs = st.integers(0, 2**64 - 1)
lives = st.builds(EpochId, longs, longs, longs) | st.just(EpochId(1, 7, 1))


@given(st.dictionaries(tps, offsets), st.dictionaries(tps, offsets), st.dictionaries(tps, lives))
def test_packed_offsets_are_unpacked(
    positions: dict[TopicPartition, int],
    start: dict[TopicPartition, int],
    lived: dict[TopicPartition, EpochId],
) -> None:
    text = pack(positions, start, lived)
    assert unpack(text) == (positions, start, lived)
    backwards = dict(reversed(positions.items()))
    assert pack(backwards, start, dict(reversed(lived.items()))) == text  # Spark compares texts


COUNT = 10_000
LEAST_CHARS = (128 * COUNT - math.lgamma(COUNT + 1) / math.log(2)) / math.log2(93)
"""No text of JSON's 93 plain ASCII characters can hold that many random names, in any order."""


def test_random_names_take_little_more_than_their_entropy() -> None:
    random = {TopicPartition("t", uuid.uuid4().hex.upper()): 10 for _ in range(COUNT)}
    assert 177_000 < LEAST_CHARS < len(pack(random, {}, {})) < 1.03 * LEAST_CHARS
    one_life = dict.fromkeys(random, EpochId(1, 7, 1))
    assert len(pack(random, dict.fromkeys(random, 0), one_life)) < 1.03 * LEAST_CHARS
    own_lives = {tp: EpochId(1, uuid.uuid4().int % 2**64, 1) for tp in random}
    assert len(pack(random, {}, own_lives)) < 1.03 * LEAST_CHARS + 10.5 * COUNT


def test_regular_names_and_positions_take_few_characters() -> None:
    regular = {TopicPartition("t", f"{n:032X}"): 10 + n % 7 for n in range(COUNT)}
    assert len(pack(regular, {}, {})) < 1_000
    irregular = {tp: hash(tp) % 1_000 for tp in regular}
    assert len(pack(irregular, {}, {})) < 2.1 * COUNT


def packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content)).decode()


def content_of(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "\n",
        "ü",
        packed(b""),
        packed(b"\1"),
        packed(b"\xff\xff\xff\xff"),
        packed(bytes(8) + b"x"),
        pack({ADDRESS: 5}, {}, {ADDRESS: EpochId(1, 2, 3)})[:-5],
        packed(content_of(pack({ADDRESS: 5}, {}, {})) + b"x"),
        packed(content_of(pack({ADDRESS: 5}, {}, {ADDRESS: EpochId(1, 2, 3)}))[:-28] + bytes(4)),
    ],
)
def test_an_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the packed offset is damaged"):
        unpack(text)


@given(st.binary())
def test_any_bytes_are_unpacked_or_refused(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        unpack(packed(content))


def test_numbers_that_are_too_large_are_refused() -> None:
    with pytest.raises(OverflowError):
        pack({ADDRESS: 5}, {}, {ADDRESS: EpochId(2**64, 0, 0)})
    with pytest.raises(ValueError, match="does not end"):
        unpack(pack({ADDRESS: 5}, {}, {}), max_bytes=10)

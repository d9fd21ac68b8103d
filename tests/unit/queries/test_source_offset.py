"""The checkpointed offset."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import PACKED_PARTITIONS, SourceOffset

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


@pytest.mark.parametrize("version", [1, 2, 3, 5, "4"])
def test_another_version_is_refused(version: object) -> None:
    tree = SourceOffset({A: 1}).as_json() | {"version": version}
    with pytest.raises(ConfigError, match=f"it has version {version!r}, not 4.*new checkpoint"):
        SourceOffset.parse(tree)

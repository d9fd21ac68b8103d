"""The checkpointed offset."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.packed_offset import PACKED_PARTITIONS
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import TASKS, SourceOffset

OLD, NEW = EpochId(2, 7, 1), EpochId(3, 2**64 - 1, 2)
A, B = TopicPartition("t", "A"), TopicPartition("t", "B")


def test_equal_offsets_are_equal_text() -> None:
    """Trap: Spark compares offsets as text; another order of keys would be new data for ever."""
    first = SourceOffset({A: 1, B: 2}, {A: 0, B: 0})
    second = SourceOffset({B: 2, A: 1}, {B: 0, A: 0})
    assert json.dumps(first.as_json()) == json.dumps(second.as_json())
    text = json.dumps(first.as_json())
    assert text == json.dumps(first.as_json(), sort_keys=True)
    assert json.dumps(SourceOffset.parse(json.loads(text)).as_json()) == text


def test_parse_is_the_inverse() -> None:
    offset = SourceOffset({A: 1, TopicPartition("ü", "A"): 2}, {A: 0})
    assert SourceOffset.parse(json.loads(json.dumps(offset.as_json()))) == offset


def test_the_initial_offset_carries_itself() -> None:
    initial = SourceOffset.initial({A: 3})
    assert initial.is_initial
    assert initial.start == {A: 3}
    assert not SourceOffset({A: 3}, {A: 1}).is_initial


def test_lives_are_kept_and_handed_on() -> None:
    begin = SourceOffset({A: 3, B: 4}, {}, {A: OLD, B: OLD})
    end = SourceOffset({A: 9, B: 5}, {B: 4}, {A: NEW, B: NEW})
    assert SourceOffset.parse(json.loads(json.dumps(end.as_json()))) == end
    first, second = end.since(begin)
    assert (first.after, first.life) == (OLD, NEW)
    assert (second.after, second.life) == (NO_LIFE, NEW)  # nothing was read before


def test_without_lives_the_text_is_what_it_was() -> None:
    text = '{"start": {}, "tasks": 2, "topics": {"t": {"A": 1}}, "version": 1}'
    assert json.dumps(SourceOffset({A: 1}, {}, {A: NO_LIFE}).as_json()) == text


def test_when_a_query_began_is_kept_and_handed_on() -> None:
    text = '{"begun": 1795262400000000, "start": {}, "tasks": 2, "topics": {"t": {"A": 1}}, '
    text += '"version": 3}'
    offset = SourceOffset({A: 1}, begun_us=1_795_262_400_000_000)
    assert json.dumps(offset.as_json()) == text
    assert SourceOffset.parse(json.loads(text)) == offset
    many = SourceOffset(MANY, {}, begun_us=5)
    assert many.as_json()["version"] == 3
    assert SourceOffset.parse(json.loads(json.dumps(many.as_json()))) == many


# -- offsets of many partitions --------------------------------------------------------------------

MANY = {TopicPartition("t", uuid.uuid4().hex.upper()): n for n in range(PACKED_PARTITIONS)}


def test_the_offset_of_many_partitions_is_packed() -> None:
    few = dict(list(MANY.items())[1:])
    assert set(SourceOffset(few).as_json()) == {"start", "tasks", "topics", "version"}
    offset = SourceOffset(MANY, dict.fromkeys(few, 0), dict.fromkeys(few, NEW))
    tree = offset.as_json()
    assert {name: tree[name] for name in tree if name != "packed"} == {
        "partitions": 100,
        "records": sum(range(100)),
        "tasks": TASKS,
        "version": 2,
    }
    text = json.dumps(tree)
    assert text == json.dumps(tree, sort_keys=True)
    found = SourceOffset.parse(json.loads(text))
    assert found == offset
    assert json.dumps(found.as_json()) == text


def test_an_offset_of_many_that_was_not_packed_is_read() -> None:
    """A number has no room in a packed one."""
    life = EpochId(2**70, 1, 1)
    offset = SourceOffset(MANY, {}, dict.fromkeys(MANY, life))
    tree = json.loads(json.dumps(offset.as_json()))
    assert tree["version"] == 1
    assert SourceOffset.parse(tree) == offset


def test_a_report_sums_up_many_partitions() -> None:
    assert SourceOffset({A: 1}).report() == SourceOffset({A: 1}).as_json()
    assert SourceOffset(MANY).report() == {"partitions": 100, "records": sum(range(100))}


def test_an_error_shows_a_part_of_a_long_offset() -> None:
    tree = SourceOffset(MANY).as_json()
    with pytest.raises(ConfigError, match=r"is damaged: .* new checkpoint") as caught:
        SourceOffset.parse(tree | {"packed": tree["packed"][:-9]})
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("odd", [TopicPartition("bad\udcff\n", "A"), TopicPartition("t", "\x1b")])
@pytest.mark.parametrize("kept", ["positions", "start"])
def test_names_that_are_not_plain_are_packed(odd: TopicPartition, kept: str) -> None:
    """Who does not know such offsets refuses them; others stay as they are."""
    names = {A: 2, odd: 1}
    offset = SourceOffset({A: 2}, names) if kept == "start" else SourceOffset(names, {}, {odd: NEW})
    tree = offset.as_json()
    assert tree["version"] == 2
    text = json.dumps(tree, ensure_ascii=False)
    assert SourceOffset.parse(json.loads(text.encode())) == offset
    json.dumps(offset.report(), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "given",
    [
        {},
        [],
        {"topics": {}, "start": {}, "version": 2},
        {"topics": {}, "start": {}, "version": 3},
        {"topics": {}, "start": {}, "begun": "now", "version": 3},
        {"topics": {}, "start": {}, "version": 4},
        {"packed": 5, "version": 2},
        {"packed": "x", "version": 2},
        {"topics": {}, "start": {}, "version": "1"},
        {"topics": {}, "start": {}, "tasks": 3, "version": 1},
        {"topics": {}, "start": {}, "version": 1},
        {"topics": {"t": {"A": "1"}}, "start": {}, "version": 1},
        {"topics": {"t": 5}, "start": {}, "version": 1},
        {"topics": {"t": {"A": True}}, "start": {}, "version": 1},
        {"topics": {}, "start": {}, "lives": {"t": {"A": [1, 2]}}, "version": 1},
        {"topics": {}, "start": {}, "lives": {"t": {"A": [1, 2, "3"]}}, "version": 1},
    ],
)
def test_a_foreign_checkpoint_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"new checkpoint"):
        SourceOffset.parse(given)

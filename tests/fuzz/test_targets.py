"""Octets of any kind, and those that fuzzing has found: nothing but the promised errors."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.json_trees import changed
from tests.fuzz.targets import JSON_AT, TARGETS, joined, pieces

CHANGES = st.lists(st.tuples(st.integers(0, corpus.MAX_BYTES), st.integers(0, 255)), max_size=8)


@pytest.mark.parametrize("target", TARGETS)
def test_what_fuzzing_has_found_stands(target: str) -> None:
    entries = corpus.read(target)
    assert entries
    for entry in entries:
        TARGETS[target](entry)


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.data())
def test_octets_are_refused_or_say_the_same_again(target: str, data: st.DataObject) -> None:
    octets = bytearray(data.draw(st.sampled_from(corpus.read(target)) | st.binary(max_size=300)))
    for at, octet in data.draw(CHANGES):
        if at < len(octets):
            octets[at] = octet
    TARGETS[target](bytes(octets))


@pytest.mark.parametrize("target", JSON_AT)
@given(data=st.data())
def test_trees_are_refused_or_say_the_same_again(target: str, data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(corpus.read(target)))
    chance = data.draw(st.randoms(use_true_random=False))
    at = JSON_AT[target]
    tree = entry[at:]
    for _ in range(data.draw(st.integers(1, 4))):
        tree = changed(tree, chance) or tree
    TARGETS[target](entry[:at] + tree)


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_pieces_are_what_was_joined(given_pieces: list[bytes]) -> None:
    assert pieces(joined(given_pieces)) == given_pieces


def test_a_tree_is_changed_and_stays_json() -> None:
    chance = random.Random(1)
    found = {changed(b'{"v": 1, "topic": "t"}', chance) for _ in range(100)}
    assert len(found) > 20
    assert changed(b"{", chance) is None

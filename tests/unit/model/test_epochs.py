"""Epochs name records for ever; two histories say from where on their records differ."""

import struct
from itertools import product
from typing import NamedTuple

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.model.epochs import (
    EPOCH_BYTES,
    MAX_END,
    MAX_EPOCHS,
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    digest,
    divergence,
    epoch_at,
    follows,
    known_until,
    last_life,
    prefix,
    with_epoch,
)
from dafka_core.model.records import PartitionLives

A = Epoch.first(EpochId(1, 0xA, 1))
B = Epoch(2, 0xB, 2, 5, A.digest)
C = Epoch(3, 0xC, 1, 9, B.digest)
OTHER = Epoch(2, 0xF, 2, 7, A.digest)


# -- one epoch ------------------------------------------------------------------------------------


@given(
    st.builds(
        Epoch,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 255),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
    )
)
def test_packed_epochs_are_unpacked(epoch: Epoch) -> None:
    assert len(epoch.packed()) == EPOCH_BYTES
    assert Epoch.unpack(epoch.packed()) == epoch
    assert Epoch(*epoch.life, epoch.start, epoch.parent) == epoch
    with pytest.raises(struct.error):
        Epoch.unpack(epoch.packed() + b"\0")


def test_the_format_on_disk_is_fixed() -> None:
    packed = "00000002 000000000000000b 02 0000000000000005 32f7b2bcfe7335e7"
    assert B.packed() == bytes.fromhex(packed)
    assert B.parent == xxhash.xxh3_64_intdigest(A.packed())


def test_every_field_changes_the_digest() -> None:
    others = [B._replace(**{name: value + 1}) for name, value in B._asdict().items()]
    assert len({epoch.digest for epoch in (A, B, C, *others)}) == 3 + len(others)


def test_lives_are_ordered_by_their_number_then_by_their_id() -> None:
    assert NO_LIFE < A.life < B.life < OTHER.life < C.life


# -- one history ----------------------------------------------------------------------------------


def test_an_empty_history() -> None:
    assert last_life(()) == NO_LIFE
    assert digest(()) == 0
    assert epoch_at((), 3) is None
    assert prefix((), 3) == ()


@pytest.mark.parametrize(("offset", "epoch"), [(0, A), (4, A), (5, B), (8, B), (9, C), (10**9, C)])
def test_the_epoch_at_an_offset(offset: int, epoch: Epoch) -> None:
    assert epoch_at((A, B, C), offset) == epoch
    # A later epoch does not cover the records before it.
    assert prefix((A, B, C), offset + 1)[-1] == epoch
    assert epoch_at((B, C), 4) is None


def test_a_full_history_drops_its_oldest_epochs() -> None:
    history: History = ()
    for number in range(1, MAX_EPOCHS + 5):
        history = with_epoch(history, Epoch(number, 0, 1, number, digest(history)))
    assert len(history) == MAX_EPOCHS
    assert history[-1].number == MAX_EPOCHS + 4
    # Histories that share its forgotten epochs know them.
    longer = with_epoch(history, Epoch(MAX_EPOCHS + 5, 0, 1, MAX_EPOCHS + 5, digest(history)))
    assert divergence(history, longer) == MAX_EPOCHS + 5


def test_the_newest_life_is_stored_or_promised() -> None:
    assert PartitionLives(0, (), NO_LIFE).newest == NO_LIFE
    assert PartitionLives(0, (), B.life).newest == B.life
    assert PartitionLives(9, (A, B), NO_LIFE).newest == B.life
    assert PartitionLives(9, (A, B), A.life).newest == B.life
    assert PartitionLives(9, (A, B), C.life).newest == C.life


@pytest.mark.parametrize(
    ("history", "epoch", "offset", "expected"),
    [
        ((), A, 0, True),
        ((), B, 0, False),  # it lacks what is before
        ((), B, 5, True),  # records of an unknown history
        ((), A, 5, True),
        ((A,), A, 3, True),
        ((A,), B, 5, True),
        ((A,), B, 6, False),  # it has a record of A where B begins
        ((A,), B, 4, False),  # it lacks one
        ((A,), C, 9, False),  # it lacks all of B
        ((A,), C._replace(start=5), 5, False),
        ((A, B), OTHER, 7, False),
        ((A, B), A, 7, False),  # an older life continues
        ((A, B), C, 9, True),
        ((B,), C, 9, True),  # the oldest is forgotten
        # Where only C stores had answered, a life continues records of an unknown history.
        ((A,), C._replace(start=5, parent=0), 5, True),
        ((A,), C._replace(start=5, parent=0), 6, False),
        ((A, B), A._replace(start=9), 9, False),
    ],
)
def test_records_that_may_follow_a_history(
    history: History, epoch: Epoch, offset: int, expected: bool
) -> None:
    assert follows(history, epoch, offset) is expected


# -- two histories --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "offset"),
    [
        ((), (), None),
        ((), (A, B), None),
        ((A,), (A,), None),
        ((A,), (A, B), 5),
        ((A, B), (A, OTHER), 5),
        ((A, B, C), (A, OTHER), 5),
        ((A, B, C), (A, B), 9),
        ((A,), (A._replace(id=7),), 0),
        ((A, B, C), (B, C), None),  # one has forgotten its oldest
        ((B,), (OTHER,), 5),
    ],
)
def test_where_histories_part(one: History, other: History, offset: int | None) -> None:
    assert divergence(one, other) == offset
    assert divergence(other, one) == offset


class Held(NamedTuple):
    """A store's records of a line, from the first up to ``end``."""

    history: History
    end: int

    def life_at(self, offset: int) -> EpochId:
        """An epoch and an offset name a record."""
        epoch = epoch_at(self.history, offset)
        assert epoch is not None
        return epoch.life


@st.composite
def stores(draw: st.DrawFn) -> list[Held]:
    """Stores of one partition, with lives that began after any part of a store's records."""
    held = [Held((A,), draw(st.integers(1, 9)))]
    for number in range(2, 2 + draw(st.integers(0, 6))):
        history, end = draw(st.sampled_from(held))
        start = draw(st.integers(0, end))
        known = prefix(history, start)
        newest = max(store.history[-1].number for store in held)
        life = EpochId(draw(st.sampled_from([newest + 1, max(newest, 2)])), number, 1)
        new = with_epoch(known, Epoch(*life, start, digest(known)))
        held.append(Held(new, start + draw(st.integers(1, 5))))
    # Some have not everything of a line yet.
    short = [Held(prefix(s.history, e), e) for s in held for e in {1, (s.end + 1) // 2}]
    return held + short


@settings(max_examples=300, deadline=None)
@given(stores())
def test_parting_is_the_first_different_record(held: list[Held]) -> None:
    for one, other in product(held, held):
        both = range(min(one.end, other.end))
        differ = [offset for offset in both if one.life_at(offset) != other.life_at(offset)]
        start = divergence(one.history, other.history)
        assert differ[:1] == [each for each in [start] if each is not None and each in both]
        # From there on nothing is equal.
        assert not differ or differ == list(range(differ[0], both.stop))


@settings(max_examples=300, deadline=None)
@given(stores())
def test_equal_digests_prove_equal_records(held: list[Held]) -> None:
    for one, other in product(held, held):
        same = digest(one.history) == digest(other.history)
        assert same == (one.history == other.history)


@settings(max_examples=300, deadline=None)
@given(stores())
def test_a_record_follows_an_equal_history(held: list[Held]) -> None:
    for one, other in product(held, held):
        if one.end >= other.end:
            continue
        epoch = epoch_at(other.history, one.end)
        assert epoch is not None
        same = all(one.life_at(offset) == other.life_at(offset) for offset in range(one.end))
        assert follows(one.history, epoch, one.end) == same


@settings(max_examples=300, deadline=None)
@given(stores())
def test_two_stores_that_fetch_from_each_other_end_with_the_newer_history(held: list[Held]) -> None:
    """As a store does: it gives up what has parted, and takes what follows."""
    for one, other in product(held, held):
        if last_life(one.history) >= last_life(other.history):
            continue
        history, end = one
        start = divergence(history, other.history)
        if start is not None and start < end:
            history, end = prefix(history, start), start
        while end < other.end:
            epoch = epoch_at(other.history, end)
            assert epoch is not None
            assert follows(history, epoch, end)
            history = history if epoch in history[-1:] else with_epoch(history, epoch)
            end += 1
        assert (history, end) == other


def test_known_until_is_the_end_of_the_valid_records() -> None:
    assert known_until((A, B, C), C.life) == MAX_END
    assert known_until((A, B, C), A.life) == B.start
    assert known_until((A, C), B.life) == 0  # a newer one has taken its place
    assert known_until((A, B), C.life) is None  # it may come
    assert known_until((), C.life) == known_until((A, B), NO_LIFE) == MAX_END  # C nodes

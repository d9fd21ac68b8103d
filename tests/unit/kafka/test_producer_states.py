"""Batches of idempotent producers: written, or answered without writing."""

from collections.abc import Iterator

import pytest

from dafka_kafka.errors import KafkaError
from dafka_kafka.producer_states import (
    EXPIRES_MS,
    KEPT_BATCHES,
    LAST_SEQUENCE,
    ProducerKey,
    ProducerState,
    ProducerStates,
    Sequenced,
    WrittenBatch,
    notes_of,
)

KEY = ProducerKey("t", "3", 0x7FFF_FFFF_FFFF_FFFF)
NOW = 1_700_000_000_000
OUT_OF_ORDER = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER


def written(*batches: Sequenced, offset: int = 0, now_ms: int = NOW) -> ProducerStates:
    """Return the state after these batches, written at consecutive offsets."""
    states = ProducerStates()
    for batch in batches:
        states.append(KEY, batch, offset, now_ms)
        offset += batch.record_count
    return states


def tens(count: int, epoch: int = 0) -> list[Sequenced]:
    return [Sequenced(epoch, 10 * at, 10) for at in range(count)]


WRAPPED = [Sequenced(0, LAST_SEQUENCE - 4, 10)]
"""Five records before sequences wrap, and five after."""

CASES = {
    "the first one": ([], Sequenced(0, 0, 10), None),
    "of a producer that is not known": ([], Sequenced(4, 77, 10), None),
    "the next one": (tens(2), Sequenced(0, 20, 1), None),
    "the last one again": (tens(2), Sequenced(0, 10, 10), WrittenBatch(10, 19, 110)),
    "the fifth last one again": (tens(6), Sequenced(0, 10, 10), WrittenBatch(10, 19, 110)),
    "the sixth last one again": (tens(6), Sequenced(0, 0, 10), OUT_OF_ORDER),
    "one with other records that begins as one before": (
        tens(2),
        Sequenced(0, 10, 9),
        OUT_OF_ORDER,
    ),
    "one is missing before it": (tens(2), Sequenced(0, 30, 10), OUT_OF_ORDER),
    "a first one again, with more records": (tens(1), Sequenced(0, 0, 20), OUT_OF_ORDER),
    "of a newer epoch": (tens(2), Sequenced(1, 0, 10), None),
    "of a newer epoch that goes on": (tens(2), Sequenced(1, 20, 10), OUT_OF_ORDER),
    "of an older epoch": (tens(2, 5), Sequenced(4, 20, 10), KafkaError.INVALID_PRODUCER_EPOCH),
    "of an older epoch again": (
        [*tens(1, 4), *tens(1, 5)],
        Sequenced(4, 0, 10),
        KafkaError.INVALID_PRODUCER_EPOCH,
    ),
    "of a newer epoch again": (
        [*tens(2, 4), *tens(1, 5)],
        Sequenced(5, 0, 10),
        WrittenBatch(0, 9, 120),
    ),
    "behind the last sequence": (WRAPPED, Sequenced(0, 5, 10), None),
    "over the last sequence again": (
        WRAPPED,
        Sequenced(0, LAST_SEQUENCE - 4, 10),
        WrittenBatch(LAST_SEQUENCE - 4, 4, 100),
    ),
    "right after the last sequence": (
        [Sequenced(0, LAST_SEQUENCE - 9, 10)],
        Sequenced(0, 0, 1),
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_batch_before_and_after_a_restart(case: str) -> None:
    before, batch, verdict = CASES[case]
    states, notes, offset = ProducerStates(), dict[str, bytes | None](), 100
    for each in before:
        notes |= states.append(KEY, each, offset, NOW)
        offset += each.record_count
    restored = ProducerStates()
    restored.restore({name: octets for name, octets in notes.items() if octets is not None})
    assert states.verdict(KEY, batch, NOW) == restored.verdict(KEY, batch, NOW) == verdict


def test_batches_end_where_the_next_one_begins() -> None:
    assert [each.end for each in written(*WRAPPED, offset=7)._states[KEY].batches] == [17]


def test_other_partitions_and_producers_are_others() -> None:
    states = written(*tens(2))
    for other in (
        KEY._replace(topic="u"),
        KEY._replace(partition="4"),
        KEY._replace(producer_id=1),
    ):
        assert states.verdict(other, Sequenced(0, 0, 10), NOW) is None


def test_a_producer_that_writes_nothing_for_a_day_is_forgotten_and_its_note_deleted() -> None:
    states = written(*tens(2))
    other = KEY._replace(producer_id=1)
    late = NOW + EXPIRES_MS
    assert states.verdict(KEY, Sequenced(0, 10, 10), late - 1) == WrittenBatch(10, 19, 10)
    assert states.verdict(KEY, Sequenced(0, 10, 10), late) is None
    assert states.append(other, Sequenced(0, 0, 1), 20, late, late)[KEY.note] is None
    assert len(states) == 1
    notes = states.append(KEY, Sequenced(2, 10, 10), 21, late, late)
    assert ProducerState.unpack(notes[KEY.note] or b"") == ProducerState(
        2, (WrittenBatch(10, 19, 21),), late
    )


def test_a_producer_is_not_forgotten_while_the_clock_is_in_doubt() -> None:
    states = written(*tens(2))
    late = NOW + 2 * EXPIRES_MS
    assert states.verdict(KEY, Sequenced(0, 10, 10), 0) == WrittenBatch(10, 19, 10)
    other = KEY._replace(producer_id=1)
    assert states.append(other, Sequenced(0, 0, 1), 20, late).keys() == {other.note}
    states.append(KEY, Sequenced(0, 20, 10), 21, late)
    assert states.verdict(KEY, Sequenced(0, 10, 10), 0) == WrittenBatch(10, 19, 10)


def test_beyond_so_many_the_oldest_is_forgotten_and_may_not_go_on() -> None:
    states = ProducerStates(max_states=2)
    keys = [KEY._replace(producer_id=each) for each in range(3)]
    for at, key in enumerate([*keys[:2], keys[0]]):
        states.append(key, Sequenced(0, at // 2, 1), at, NOW + at)
    assert states.append(keys[2], Sequenced(0, 0, 1), 3, NOW + 3)[keys[1].note] is None
    # It was written, and may be sent again: its state is lost.
    assert states.verdict(keys[1], Sequenced(0, 1, 1), NOW) == KafkaError.UNKNOWN_PRODUCER_ID
    assert states.verdict(keys[1], Sequenced(0, 0, 1), NOW) is None
    assert states.verdict(keys[0], Sequenced(0, 2, 1), NOW) is None
    assert states.verdict(keys[1], Sequenced(0, 1, 1), NOW + 1 + EXPIRES_MS) is None


def test_what_was_not_written_after_all_is_forgotten() -> None:
    states = ProducerStates()
    other = KEY._replace(partition="4")
    first, _, _ = [
        states.append(KEY, Sequenced(0, 0, 10), 0, NOW),
        states.append(KEY, Sequenced(0, 10, 10), 10, NOW),
        states.append(other, Sequenced(0, 0, 10), 20, NOW),
    ]
    notes = {name: octets for name, octets in first.items() if octets is not None}
    states.reset("t", "3", 10, notes)
    assert states.verdict(KEY, Sequenced(0, 10, 10), NOW) is None
    assert states.verdict(KEY, Sequenced(0, 0, 10), NOW) == WrittenBatch(0, 9, 0)
    assert states.verdict(other, Sequenced(0, 0, 10), NOW) == WrittenBatch(0, 9, 20)
    # The records were replaced by those of another history.
    states.reset("t", "3", 9, notes)
    assert states.verdict(KEY, Sequenced(0, 0, 10), NOW) is None
    assert states.verdict(other, Sequenced(0, 0, 10), NOW) == WrittenBatch(0, 9, 20)


def test_batches_before_those_that_another_history_replaced_are_not_written_again() -> None:
    states = ProducerStates()
    for at in range(3):
        notes = states.append(KEY, Sequenced(0, 10 * at, 10), 10 * at, NOW)
    states.reset("t", "3", 20, {name: octets for name, octets in notes.items() if octets})
    assert states.verdict(KEY, Sequenced(0, 0, 10), NOW) == WrittenBatch(0, 9, 0)
    assert states.verdict(KEY, Sequenced(0, 10, 10), NOW) == WrittenBatch(10, 19, 10)
    assert states.verdict(KEY, Sequenced(0, 20, 10), NOW) is None
    assert states.verdict(KEY, Sequenced(0, 30, 10), NOW) == OUT_OF_ORDER


def test_a_partition_is_read_again_without_visiting_all_others() -> None:
    class Unvisited(dict[ProducerKey, ProducerState]):
        def __iter__(self) -> Iterator[ProducerKey]:
            pytest.fail("this takes half a second for 100,000 producers")

    states = written(*tens(2))
    states._states = Unvisited(states._states)
    states.reset("t", "3", 10, {KEY.note: states._states[KEY].packed()})
    assert states.verdict(KEY, Sequenced(0, 0, 10), NOW) == WrittenBatch(0, 9, 0)
    assert states.verdict(KEY, Sequenced(0, 10, 10), NOW) is None


@pytest.mark.parametrize("topic", ["t", "a/b/7", "10/x", "\udcff"])
def test_names_of_notes_tell_whose_they_are(topic: str) -> None:
    key = ProducerKey(topic, "12", 0xABC)
    assert ProducerKey.parse(key.note) == key
    assert key.note.startswith(notes_of(topic, "12"))
    assert not key.note.startswith(notes_of(topic, "1"))


def test_a_note_that_cannot_be_read_is_passed_over() -> None:
    octets = ProducerState(0, (WrittenBatch(0, 9, 0),), NOW).packed()
    states = ProducerStates()
    for each in (b"", b"\x02" + octets[1:], octets[:-1], octets + b"\0"):
        states.restore({KEY.note: each})
        with pytest.raises(ValueError, match="a note of a producer"):
            ProducerState.unpack(each)
    states.restore({"kafka producer/x/t\0zz": octets, "kafka producer/": octets})
    assert len(states) == 0


def test_no_more_batches_are_kept_than_a_producer_has_on_their_way() -> None:
    states = written(*tens(40))
    assert len(states._states[KEY].batches) == KEPT_BATCHES

"""Decoding in bulk gives what decoding each message by itself would give."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.model.epochs import Epoch
from dafka_core.model.records import TopicPartition, Transaction
from dafka_core.model.values import Values
from dafka_core.protocol import bulk_decoder
from dafka_core.protocol import messages as m
from dafka_core.protocol.bulk_decoder import BulkDecoder
from dafka_core.protocol.limits import MAX_BATCH_COUNT, MAX_SEQUENCE
from tests.unit.protocol.record_frames import (
    EPOCH,
    MIXES,
    Frames,
    Named,
    assert_equal,
    batch_header,
    batch_of,
    grouped,
    header,
    one_by_one,
    with_epochs,
)
from tests.unit.protocol.strategies import packed
from tests.unit.protocol.vectors import RECORDED_VECTORS


def receive(decoder: BulkDecoder, first: bytes, second: bytes) -> None:
    """Add a message as the receive loop does, which looks RECORDs up itself."""
    bucket = decoder.buckets.get(first[:-8])
    if bucket is None:
        decoder.add(first, second)
    else:
        bucket.sequences.append(first[-8:])
        bucket.values.append(second)


@settings(max_examples=500, deadline=None)
@given(st.lists(MIXES, min_size=1, max_size=3), st.sampled_from([BulkDecoder.add, receive]))
def test_decoding_many_equals_decoding_each(mixes: list[list[Frames]], take_in: object) -> None:
    assert callable(take_in)
    decoder = BulkDecoder()
    invalid_count = 0
    for messages in mixes:
        for first, second in messages:
            take_in(decoder, first, second)
        expected, invalid_here = one_by_one(messages)
        invalid_count += invalid_here
        assert_equal(grouped(decoder.take()), expected)
        assert decoder.invalid_count == invalid_count
        assert decoder.take() == []


@pytest.mark.parametrize(
    ("sequences", "expected", "invalid_count"),
    [
        ([0, 1, 2], [(0, 3)], 0),
        ([5], [(5, 1)], 0),
        ([0, 1, 3, 4], [(0, 2), (3, 2)], 0),
        ([2, 1, 0], [(2, 1), (1, 1), (0, 1)], 0),
        ([7, 7, 8], [(7, 1), (7, 2)], 0),
        ([2**64 - 1, 0, 1], [(0, 2)], 1),
        ([2**64 - 1], [], 1),
        ([MAX_SEQUENCE - 1, MAX_SEQUENCE, MAX_SEQUENCE + 1], [(MAX_SEQUENCE - 1, 2)], 1),
        ([4, 2**63, 5], [(4, 2)], 1),
    ],
)
@pytest.mark.parametrize("as_batches", [False, True])
def test_consecutive_records_are_one_batch(
    sequences: list[int], expected: list[tuple[int, int]], invalid_count: int, as_batches: bool
) -> None:
    decoder = BulkDecoder()
    for i, sequence in enumerate(sequences):
        if as_batches:
            decoder.add(batch_header(sequence, 1), packed([bytes([i])]))
        else:
            decoder.add(header(sequence), bytes([i]))
    batches = [batch for _, batch in decoder.take()]
    assert [(batch.offset, len(batch.values)) for batch in batches] == expected
    assert decoder.invalid_count == invalid_count


def test_consecutive_batches_become_one() -> None:
    decoder = BulkDecoder()
    decoder.add(batch_header(3, 2), packed([b"a", b""]))
    decoder.add(batch_header(5, 1), packed([b"ccc"]))
    decoder.add(batch_header(9, 2), packed([b"d", b"e"]))
    assert decoder.take() == [
        ("", batch_of(3, [b"a", b"", b"ccc"])),
        ("", batch_of(9, [b"d", b"e"])),
    ]
    assert decoder.invalid_count == 0


@pytest.mark.parametrize(
    ("sequence", "count", "value"),
    [
        (5, 0, b""),
        (5, 1, b""),
        (5, 1, bytes(3)),
        (5, 1, b"\1\0\0\0"),
        (5, 1, b"\0\0\0\0x"),
        (5, 2, bytes(4)),
        (5, 2, b"\xff\xff\xff\xff\1\0\0\0"),
        (5, MAX_BATCH_COUNT + 1, bytes(4 * MAX_BATCH_COUNT + 4)),
        (5, 2**32 - 1, b""),
        (MAX_SEQUENCE, 2, bytes(8)),
        (2**64 - 1, 2, bytes(8)),
    ],
)
def test_invalid_batches_are_dropped_and_counted(sequence: int, count: int, value: bytes) -> None:
    decoder = BulkDecoder()
    decoder.add(batch_header(3, 2), packed([b"a", b"b"]))
    decoder.add(batch_header(sequence, count), value)
    decoder.add(batch_header(5, 1), packed([b"c"]))
    assert decoder.take() == [("", batch_of(3, [b"a", b"b", b"c"]))]
    assert decoder.invalid_count == 1


@pytest.mark.parametrize("lacks_bytes", [1, 8, 16, 24, 29, 37, 53, 57])
def test_a_truncated_batch_header_is_dropped_and_counted(lacks_bytes: int) -> None:
    decoder = BulkDecoder()
    receive(decoder, batch_header(3, 1), packed([b"a"]))
    # The receive loop takes it for a record of the partition that it knows, if 8 are left.
    receive(decoder, batch_header(4, 1)[:-lacks_bytes], packed([b"b"]))
    receive(decoder, batch_header(4, 1) + b"\0", packed([b"b"]))
    assert decoder.take() == [("", batch_of(3, [b"a"]))]
    assert decoder.invalid_count == 2


def test_batches_are_joined_within_their_epochs() -> None:
    decoder = BulkDecoder()
    second = Epoch(2, 0x22, 1, 5, EPOCH.digest)
    decoder.add(batch_header(3, 1, epoch=EPOCH.packed()), packed([b"a"]))
    decoder.add(batch_header(4, 1, epoch=EPOCH.packed()), packed([b"b"]))
    decoder.add(batch_header(5, 1, epoch=second.packed()), packed([b"c"]))
    decoder.add(batch_header(6, 1), packed([b"d"]))
    # Before its epoch, and of an epoch that no life can have.
    decoder.add(batch_header(4, 1, epoch=second.packed()), packed([b"x"]))
    decoder.add(batch_header(7, 1, epoch=EPOCH._replace(number=0).packed()), packed([b"x"]))
    assert with_epochs(batch for _, batch in decoder.take()) == [
        (batch_of(3, [b"a", b"b"]), EPOCH, None),
        (batch_of(5, [b"c"]), second, None),
        (batch_of(6, [b"d"]), None, None),
    ]
    assert decoder.invalid_count == 2


def test_timestamps_of_joined_batches_follow_each_other() -> None:
    decoder = BulkDecoder()
    two = [(1, 5), (1, 8)]
    decoder.add(batch_header(3, 2, runs=2), packed([b"a", b"b"], two))
    decoder.add(batch_header(5, 3, runs=1), packed([b"c", b"d", b"e"], [(3, 9)]))
    decoder.add(batch_header(9, 1, runs=1), packed([b"f"], [(1, 11)]))
    decoder.add(batch_header(10, 1), packed([b"g"]))  # of an unknown time: so are the others
    [(_, first), (_, second)] = decoder.take()
    assert first.times is not None
    assert first.times.tolist() == [[1, 5], [1, 8], [3, 9]]
    assert (second.times, second.count) == (None, 2)
    assert decoder.invalid_count == 0


def test_batches_of_transactions_are_joined_within_them() -> None:
    decoder = BulkDecoder()
    first, second = Transaction(4, 3, 6), Transaction(5, 6, 8)
    decoder.add(batch_header(3, 2, transaction=first), packed([b"a", b"b"]))
    decoder.add(batch_header(5, 1, transaction=first), packed([b"c"]))
    decoder.add(batch_header(6, 1, transaction=second), packed([b"d"]))
    decoder.add(batch_header(7, 1), packed([b"e"]))
    # The transaction does not contain this record.
    decoder.add(batch_header(8, 1, transaction=second), packed([b"x"]))
    assert decoder.take() == [
        ("", batch_of(3, [b"a", b"b", b"c"], transaction=first)),
        ("", batch_of(6, [b"d"], transaction=second)),
        ("", batch_of(7, [b"e"])),
    ]
    assert decoder.invalid_count == 1


def test_recorded_records() -> None:
    records = [
        v for v in RECORDED_VECTORS if isinstance(v.message, (m.RecordMessage, m.DirectRecord))
    ]
    decoder = BulkDecoder()
    for vector in records:
        decoder.add(*vector.frames)
    taken = decoder.take()
    assert [requestor for requestor, _ in taken] == [
        "",
        "3B6B7CF3E064452E83D012EC823A4DD9",
        "8E1BBB578999443B8818C5851AFC9A3F",
    ]
    values = Values.of([b"hello 1", b"hello 2", b"hello 3"])
    for _, batch in taken:
        assert batch == replace(taken[0][1], values=values)


def test_receive_loop_may_append_to_known_buckets() -> None:
    decoder = BulkDecoder()
    decoder.add(header(0), b"a")
    bucket = decoder.buckets[header(0)[:-8]]
    bucket.sequences.append(header(1)[-8:])
    bucket.values.append(b"b")
    assert decoder.take() == [("", batch_of(0, [b"a", b"b"]))]
    # The same bucket serves the next burst, and earlier results stay unchanged.
    assert decoder.buckets[header(0)[:-8]] is bucket
    assert bucket.values == []


@pytest.mark.parametrize("as_batches", [False, True])
def test_taken_values_are_not_touched_by_the_next_burst(as_batches: bool) -> None:
    decoder = BulkDecoder()
    taken = []
    for offset, value in enumerate([b"a", b"b"]):
        if as_batches:
            decoder.add(batch_header(offset, 1), packed([value]))
        else:
            decoder.add(header(offset), value)
        taken.extend(decoder.take())
    assert taken == [("", batch_of(0, [b"a"])), ("", batch_of(1, [b"b"]))]


def test_remembered_prefixes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_decoder, "MAX_KNOWN_PREFIXES", 100)
    decoder = BulkDecoder()
    buckets = decoder.buckets
    for start in range(0, 1_000, 30):
        for i, as_batch in product(range(start, start + 30), (False, True)):
            named = Named("", TopicPartition("t", f"P{i}"))
            if as_batch:
                decoder.add(batch_header(i, 1, named), packed([b"v"]))
            else:
                decoder.add(header(i, named), b"v")
        assert len(decoder.take()) == 60
        assert len(buckets) <= 100
    # The receive loop holds on to the dictionary.
    assert decoder.buckets is buckets


def test_invalid_messages_are_not_remembered() -> None:
    decoder = BulkDecoder()
    for i in range(1_000):
        decoder.add(b"M%d" % i + bytes(8), b"v")
        decoder.add(b"r%d" % i + bytes(36), packed([b"v"]))
        decoder.add(b"H%d" % i, b"\xaa\xa5H\x01\x01P\x01t" + bytes(8))
    assert decoder.buckets == {}
    assert decoder.invalid_count == 3_000
    assert decoder.take() == []

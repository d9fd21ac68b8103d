"""Frames of records, of every form and broken in every way; and their meaning, one by one."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import EPOCH_BYTES, Epoch
from dafka_core.model.records import NO_VERSION, RecordBatch, TopicPartition, Transaction
from dafka_core.model.values import Longs, Values
from dafka_core.protocol import codec
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import BulkDecoder, decode, encode, encode_batch_prefix
from dafka_core.protocol.limits import MAX_BATCH_COUNT, MAX_SEQUENCE
from tests.unit.protocol.strategies import MESSAGES, packed, runs_of

# Invalid and valid sequences: near 0, near our limit, and at the overflow of 64 bits.
SEQUENCES = st.one_of(
    st.integers(0, 9),
    st.integers(MAX_SEQUENCE - 3, MAX_SEQUENCE + 3),
    st.integers(2**64 - 3, 2**64 - 1),
)
STRETCHES = st.builds(
    lambda start, count: [(start + i) % 2**64 for i in range(count)], SEQUENCES, st.integers(1, 6)
)

Frames = tuple[bytes, bytes]
PackedRecords = m.RecordBatchMessage | m.DirectRecordBatch


class Named(NamedTuple):
    requestor: str
    tp: TopicPartition


DEFAULT = Named("", TopicPartition("t", "P"))
EPOCH = Epoch(1, 0x11FE, 1, 0, 0)
NO_EPOCH = bytes(EPOCH_BYTES)


def batch_of(
    offset: int,
    values: list[bytes],
    of: Named = DEFAULT,
    transaction: Transaction | None = None,
    epoch: Epoch | None = None,
    times: Longs | None = None,
) -> RecordBatch:
    return RecordBatch(of.tp, offset, Values.of(values), transaction, times, epoch)


def header(sequence: int, of: Named = DEFAULT) -> bytes:
    return encode_batch_prefix(*of, packed=False) + sequence.to_bytes(8, "big")


def batch_header(
    sequence: int,
    count: int,
    of: Named = DEFAULT,
    transaction: tuple[int, ...] = (0, 0, 0),
    epoch: bytes = NO_EPOCH,
    runs: int = 0,
) -> bytes:
    numbers = [number.to_bytes(8, "big", signed=number < 0) for number in transaction]
    tail = sequence.to_bytes(8, "big") + count.to_bytes(4, "big") + b"".join(numbers) + epoch
    return encode_batch_prefix(*of, packed=True) + tail + runs.to_bytes(4, "big")


def stretch(sequences: list[int], of: Named, value: bytes) -> list[Frames]:
    """Return messages of one partition, with a distinguishing value."""
    return [(header(sequence, of), value + sequence.to_bytes(8, "big")) for sequence in sequences]


def packed_stretch(
    sequence: int,
    parts: list[tuple[list[bytes], tuple[int, ...], bytes, list[int]]],
    of: Named,
    overlap: int,
) -> list[Frames]:
    """Batches that follow each other, or overlap, in one partition.

    They are of transactions and epochs, or of none.
    """
    messages = []
    for values, transaction, epoch, stamps in parts:
        runs = runs_of(len(values), stamps)
        numbers = batch_header(sequence % 2**64, len(values), of, transaction, epoch, len(runs))
        messages.append((numbers, packed(values, runs)))
        sequence += max(len(values) - overlap, 0)
    return messages


def two_frames(message: m.Message, layout: str) -> list[Frames]:
    frames = encode(message, layout)
    return [(frames[0], frames[-1])]


def cut(messages: list[Frames], size_bytes: int) -> list[Frames]:
    return [(first[: len(first) - size_bytes], second) for first, second in messages]


def cut_values(messages: list[Frames], size_bytes: int) -> list[Frames]:
    return [(first, second[: len(second) - size_bytes]) for first, second in messages]


def recount(messages: list[Frames], count: int) -> list[Frames]:
    """Change the announced number of records."""
    at = -(4 + 24 + EPOCH_BYTES + 4)
    return [
        (first[:at] + count.to_bytes(4, "big") + first[at + 4 :], second)
        for first, second in messages
    ]


# None, those that include all records, and those that exclude some or all.
TRANSACTIONS = st.sampled_from(
    [(0, 0, 0), (0, 0, 0), (5, 0, 2**63 - 1), (NO_VERSION, 0, 2**63 - 1), (5, 3, 6), (0, 1, 0)]
)
# None, those of all, some or no records; and invalid ones.
EPOCHS = st.sampled_from(
    [
        NO_EPOCH,
        NO_EPOCH,
        EPOCH.packed(),
        EPOCH._replace(number=2, start=4, parent=EPOCH.digest).packed(),
        EPOCH._replace(start=2**63).packed(),
        EPOCH._replace(number=0).packed(),
    ]
)
# None, one for all records or several; and one that cannot be.
STAMPS = st.lists(st.sampled_from([0, 5, 5, 2**63 - 1, -1]), max_size=3)
NAMED = st.builds(
    Named,
    st.sampled_from(["", "", "C1", "C2"]),
    st.builds(
        TopicPartition,
        st.sampled_from(["t", "tt"]),
        # Partitions with a common prefix: the bytes after a name must not count as part of it.
        st.sampled_from(["P1", "P2", "P1\1", "P1\1\1\1\1\1"]),
    ),
)
SINGLE = st.builds(stretch, STRETCHES, NAMED, st.binary(max_size=3))
PACKED = st.builds(
    packed_stretch,
    SEQUENCES,
    st.lists(
        st.tuples(
            st.lists(st.binary(max_size=5), min_size=1, max_size=4), TRANSACTIONS, EPOCHS, STAMPS
        ),
        min_size=1,
        max_size=4,
    ),
    NAMED,
    st.sampled_from([0, 0, 1]),
)
INVALID = st.one_of(
    st.tuples(st.binary(max_size=40), st.binary(max_size=9)).map(lambda pair: [pair]),
    st.builds(two_frames, MESSAGES, st.sampled_from([RFC46, C_LAYOUT])),
    st.builds(cut, SINGLE | PACKED, st.integers(1, 20)),
    st.builds(cut, PACKED, st.just(4)),
    st.builds(cut_values, PACKED, st.integers(1, 9)),
    st.builds(recount, PACKED, st.sampled_from([0, 1, 2, 5, MAX_BATCH_COUNT + 1, 2**32 - 1])),
)
MIXES = st.lists(SINGLE | PACKED | INVALID, max_size=12).map(
    lambda parts: [each for part in parts for each in part]
)


def values_in(message: m.Message) -> tuple[list[bytes], Longs | None] | None:
    """The records of a message, and their times; None if it is about something else."""
    match message:
        case m.RecordMessage() | m.DirectRecord():
            return [message.value], None
        case m.RecordBatchMessage() | m.DirectRecordBatch():
            lengths, records, times = m.unpack_batch(message.count, message.value, message.runs)
            ends = [0, *lengths.cumsum().tolist()]
            return [bytes(records[start:stop]) for start, stop in pairwise(ends)], times
    return None


def one_by_one(messages: list[Frames]) -> tuple[dict[tuple[Named, bool], list[RecordBatch]], int]:
    """The batches by their names and form, and how many messages were no records."""
    batches: dict[tuple[Named, bool], list[RecordBatch]] = defaultdict(list)
    invalid_count = 0
    for frames in messages:
        try:
            message: m.Message | None = decode(frames)
        except ProtocolError:
            message = None
        found = None if message is None else values_in(message)
        if found is None:
            invalid_count += 1
            continue
        values, times = found
        assert isinstance(message, m.AnyRecord)
        named = Named(message.requestor, message.tp)
        of_form = batches[named, isinstance(message, PackedRecords)]
        of: tuple[Transaction | None, Epoch | None] = (None, None)
        if isinstance(message, PackedRecords):
            of = (message.transaction, message.epoch)
        last = of_form[-1] if of_form else None
        if last and (last.end, last.transaction, last.epoch) == (message.sequence, *of):
            known = last.times is not None and times is not None
            joined = np.concatenate([last.times, times]) if known else None
            of_form[-1] = batch_of(last.offset, [*last.values, *values], named, *of, joined)
        else:
            of_form.append(batch_of(message.sequence, values, named, *of, times))
    return dict(batches), invalid_count


def grouped(taken: list[tuple[str, RecordBatch]]) -> dict[Named, list[RecordBatch]]:
    batches: dict[Named, list[RecordBatch]] = defaultdict(list)
    for requestor, batch in taken:
        batches[Named(requestor, batch.tp)].append(batch)
    return dict(batches)


def assert_equal(
    taken: dict[Named, list[RecordBatch]], expected: dict[tuple[Named, bool], list[RecordBatch]]
) -> None:
    """Compare batches and their order; the order of the two forms does not matter."""
    assert taken.keys() == {named for named, _ in expected}
    for named, batches in taken.items():
        single, packed_batches = expected.get((named, False), []), expected.get((named, True), [])
        orders = (single + packed_batches, packed_batches + single)
        assert with_epochs(batches) in map(with_epochs, orders)


def with_epochs(
    batches: Iterable[RecordBatch],
) -> list[tuple[RecordBatch, Epoch | None, list[list[int]] | None]]:
    """Batches that are the same are so whatever their epochs and times are; these are not."""
    return [
        (batch, batch.epoch, None if batch.times is None else batch.times.tolist())
        for batch in batches
    ]


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
    monkeypatch.setattr(codec, "MAX_KNOWN_PREFIXES", 100)
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

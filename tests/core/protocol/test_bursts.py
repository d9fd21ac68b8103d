"""A burst gives what decoding each message by itself would give."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.errors import ProtocolError
from dafka_core.protocol import bursts
from dafka_core.protocol.bursts import Burst
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.messages import DirectRecord, Message, RecordMessage
from dafka_core.protocol.wire import RFC46, decode, encode, encode_run_prefix
from dafka_core.records import Run
from tests.core.protocol.vectors import MESSAGES, RECORDED_VECTORS, names

RECORD_PREFIX = encode_run_prefix(RecordMessage, "", "t", "P")

# What peers cannot mean, and what they can: near 0, near our limit, and where 64 bits wrap.
SEQUENCES = st.one_of(
    st.integers(0, 9),
    st.integers(MAX_SEQUENCE - 3, MAX_SEQUENCE + 3),
    st.integers(2**64 - 3, 2**64 - 1),
)
STRETCHES = st.builds(
    lambda start, count: [(start + i) % 2**64 for i in range(count)], SEQUENCES, st.integers(1, 6)
)


def header(sequence: int, requestor: str = "", topic: str = "t", partition: str = "P") -> bytes:
    kind = DirectRecord if requestor else RecordMessage
    return encode_run_prefix(kind, requestor, topic, partition) + sequence.to_bytes(8, "big")


def stretch(
    sequences: list[int], requestor: str, topic: str, partition: str, value: bytes
) -> list[tuple[bytes, bytes]]:
    """Messages of one partition, with a value that tells them apart."""
    return [
        (header(sequence, requestor, topic, partition), value + sequence.to_bytes(8, "big"))
        for sequence in sequences
    ]


def two_frames(message: Message, layout: str) -> list[tuple[bytes, bytes]]:
    frames = encode(message, layout)
    return [(frames[0], frames[-1])]


def cut(messages: list[tuple[bytes, bytes]], size_bytes: int) -> list[tuple[bytes, bytes]]:
    return [(first[: len(first) - size_bytes], second) for first, second in messages]


VALID = st.builds(
    stretch,
    STRETCHES,
    st.sampled_from(["", "", "C1", "C2"]),
    st.sampled_from(["t", "tt"]),
    st.sampled_from(["P1", "P2"]),
    st.binary(max_size=3),
)
INVALID = st.one_of(
    st.tuples(st.binary(max_size=40), st.binary(max_size=9)).map(lambda pair: [pair]),
    st.builds(two_frames, MESSAGES, st.sampled_from([RFC46, "deployed"])),
    st.builds(cut, VALID, st.integers(1, 20)),
)
MIXES = st.lists(VALID | INVALID, max_size=12).map(
    lambda parts: [m for part in parts for m in part]
)


def one_by_one(messages: list[tuple[bytes, bytes]]) -> tuple[dict[object, list[Run]], int]:
    """The runs by (requestor, topic, partition), and how many messages were no records."""
    runs: dict[object, list[Run]] = defaultdict(list)
    invalid_count = 0
    for frames in messages:
        try:
            message = decode(frames)
        except ProtocolError:
            message = None
        if not isinstance(message, (RecordMessage, DirectRecord)):
            invalid_count += 1
            continue
        requestor = message.requestor if isinstance(message, DirectRecord) else ""
        of_partition = runs[requestor, message.topic, message.partition]
        if of_partition and of_partition[-1].end == message.sequence:
            of_partition[-1].values.append(message.value)
        else:
            of_partition.append(
                Run(message.topic, message.partition, message.sequence, [message.value])
            )
    return dict(runs), invalid_count


def grouped(taken: list[tuple[str, Run]]) -> dict[object, list[Run]]:
    runs: dict[object, list[Run]] = defaultdict(list)
    for requestor, run in taken:
        runs[requestor, run.topic, run.partition].append(run)
    return dict(runs)


@settings(max_examples=400, deadline=None)
@given(st.lists(MIXES, min_size=1, max_size=3))
def test_burst_equals_decoding_one_by_one(mixes: list[list[tuple[bytes, bytes]]]) -> None:
    burst = Burst()
    invalid_count = 0
    for messages in mixes:
        for first, second in messages:
            burst.add(first, second)
        runs, invalid_here = one_by_one(messages)
        invalid_count += invalid_here
        assert grouped(burst.take()) == runs
        assert burst.invalid_count == invalid_count
        assert burst.take() == []


@given(names(0), names(), names(), st.integers(0, MAX_SEQUENCE), st.binary(max_size=9))
@settings(deadline=None)
def test_prefix_and_sequence_are_the_encoded_header(
    requestor: str, topic: str, partition: str, sequence: int, value: bytes
) -> None:
    message: Message = RecordMessage(topic, partition, sequence, value)
    if requestor:
        message = DirectRecord(requestor, topic, partition, sequence, value)
    prefix = encode_run_prefix(type(message), requestor, topic, partition)
    assert [prefix + sequence.to_bytes(8, "big"), value] == encode(message)


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
def test_runs(sequences: list[int], expected: list[tuple[int, int]], invalid_count: int) -> None:
    burst = Burst()
    for i, sequence in enumerate(sequences):
        burst.add(header(sequence), bytes([i]))
    runs = [run for _, run in burst.take()]
    assert [(run.offset, len(run.values)) for run in runs] == expected
    assert burst.invalid_count == invalid_count


def test_recorded_records() -> None:
    records = [v for v in RECORDED_VECTORS if isinstance(v.message, (RecordMessage, DirectRecord))]
    burst = Burst()
    for vector in records:
        burst.add(*vector.frames)
    taken = burst.take()
    assert [requestor for requestor, _ in taken] == [
        "",
        "3B6B7CF3E064452E83D012EC823A4DD9",
        "8E1BBB578999443B8818C5851AFC9A3F",
    ]
    for _, run in taken:
        assert run == replace(taken[0][1], values=[b"hello 1", b"hello 2", b"hello 3"])


def test_receive_loop_may_append_to_known_buckets() -> None:
    burst = Burst()
    burst.add(header(0), b"a")
    bucket = burst.buckets[RECORD_PREFIX]
    bucket.sequences.append(header(1)[-8:])
    bucket.values.append(b"b")
    assert burst.take() == [("", Run("t", "P", 0, [b"a", b"b"]))]
    # The same bucket serves the next burst, and what was taken stays as it was.
    assert burst.buckets[RECORD_PREFIX] is bucket
    assert bucket.values == []


def test_taken_values_are_not_touched_by_the_next_burst() -> None:
    burst = Burst()
    burst.add(header(0), b"a")
    [(_, run)] = burst.take()
    burst.add(header(1), b"b")
    assert burst.take() == [("", Run("t", "P", 1, [b"b"]))]
    assert run.values == [b"a"]


def test_remembered_prefixes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "MAX_KNOWN_PREFIXES", 100)
    burst = Burst()
    buckets = burst.buckets
    for start in range(0, 1_000, 30):
        for i in range(start, start + 30):
            burst.add(header(i, partition=f"P{i}"), b"v")
        assert len(burst.take()) == 30
        assert len(buckets) <= 100
    # The receive loop holds on to the dictionary.
    assert burst.buckets is buckets


def test_invalid_messages_are_not_remembered() -> None:
    burst = Burst()
    for i in range(1_000):
        burst.add(b"M%d" % i + bytes(8), b"v")
        burst.add(b"H%d" % i, b"\xaa\xa5H\x01\x01P\x01t" + bytes(8))
    assert burst.buckets == {}
    assert burst.invalid_count == 2_000
    assert burst.take() == []

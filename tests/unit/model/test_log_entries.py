"""Attempts, as the log keeps them and as people read them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.log_entries import (
    ATTEMPT_BYTES,
    MAX_ROWS,
    REPLICA,
    Deletion,
    NotedBatch,
    attempt_octets,
    attempt_text,
    packed_deletions,
    parsed_deletions,
)
from dafka_core.model.records import PartitionInfo, PartitionLives, TopicPartition
from dafka_core.model.values import Values

octets_of_attempts = st.binary(min_size=ATTEMPT_BYTES, max_size=ATTEMPT_BYTES)


def test_an_attempt_is_encoded_as_bytes() -> None:
    assert attempt_octets("0123456789ABCDEF" * 2) == bytes.fromhex("0123456789ABCDEF" * 2)


@given(octets_of_attempts.filter(lambda octets: octets != REPLICA))
def test_an_encoded_attempt_is_decoded(octets: bytes) -> None:
    text = octets.hex().upper()
    assert attempt_text(attempt_octets(text)) == text


def test_a_replica_is_no_attempt() -> None:
    assert attempt_text(REPLICA) == ""
    with pytest.raises(ValueError, match="not all zero"):
        attempt_octets(REPLICA.hex())


@pytest.mark.parametrize(
    "attempt", ["", "a" * 32, "A" * 31, "A" * 34, "G" * 32, "AA " * 16, "\uff11" * 32, "é"]
)
def test_an_invalid_attempt_is_refused(attempt: str) -> None:
    with pytest.raises(ValueError, match="32 upper-case hex digits") as refused:
        attempt_octets(attempt)
    assert repr(attempt) in str(refused.value)


@pytest.mark.parametrize(
    "notes", [{"n" * 481: b""}, {"n": bytes(4_097)}, {str(at): b"" for at in range(10_001)}]
)
def test_notes_are_limited(notes: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match="note"):
        NotedBatch(TP, 0, Values.of([b"v"]), notes=notes)


TP = TopicPartition("t\udcff", "A" * 32)
LIFE = EpochId(7, 2**64 - 1, 2)


def test_packed_deletions_are_parsed() -> None:
    infos = [PartitionInfo(*TP, 5, 100, LIFE), PartitionInfo(TP.topic, "B", 0, 0)]
    (content,) = packed_deletions(infos, 17, 1 << 20)
    assert parsed_deletions(content) == [
        Deletion(TP, 100, LIFE, 17),
        Deletion(TopicPartition(TP.topic, "B"), 0, NO_LIFE, 17),
    ]


@pytest.mark.parametrize(("limit_bytes", "rows"), [(4_096, 1), (64 << 20, MAX_ROWS)])
def test_records_respect_the_limit_of_stores(limit_bytes: int, rows: int) -> None:
    infos = [PartitionInfo("\udcff" * 255, "\udcff" * 250 + str(n), 0, 2**62) for n in range(2_500)]
    contents = [*packed_deletions(infos, 17, limit_bytes)]
    assert [len(parsed_deletions(each)) for each in contents[:-1]] == [rows] * (len(contents) - 1)
    assert max(map(len, contents)) <= limit_bytes
    assert sum(len(parsed_deletions(each)) for each in contents) == 2_500


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"topic": 7},
        {"topic": "__dafka.deletions"},
        {"topic": ""},
        {"topic": "a\0b"},
        {"topic": "\ud800"},
        {"topic": "x" * 256},
        {"at_us": -1},
        {"at_us": None},
        {"partitions": 7},
        {"partitions": [["B", 5]]},
        {"partitions": [["B", -5, 0, 0, 0]]},
        {"partitions": [["B", True, 0, 0, 0]]},
        {"partitions": [["B", 2**64, 0, 0, 0]]},
        {"partitions": [[7, 5, 0, 0, 0]]},
        {"partitions": [["\ud800", 5, 0, 0, 0]]},
    ],
)
def test_an_invalid_member_is_refused(change: dict[str, object]) -> None:
    right = {"v": 1, "topic": "t", "at_us": 1, "partitions": [["B", 5, 0, 0, 0]]}
    assert len(parsed_deletions(json.dumps(right).encode())) == 1
    with pytest.raises(ValueError, match="not a deletion"):
        parsed_deletions(json.dumps(right | change).encode())


@pytest.mark.parametrize("content", [b"", b"7", b"[]", b"\xff", b"{}", b"[" * 100_000])
def test_invalid_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a deletion"):
        parsed_deletions(content)


def test_a_deletion_spares_records_of_newer_lives() -> None:
    old, newer = Epoch(3, 1, 1, 0, 0), Epoch(8, 1, 1, 60, 9)
    deletion = Deletion(TP, 100, LIFE, 17)
    assert deletion.reaches(PartitionLives(200, (old,), NO_LIFE)) == 100
    assert deletion.reaches(PartitionLives(80, (old,), NO_LIFE)) == 80
    assert deletion.reaches(PartitionLives(200, (old, newer), NO_LIFE)) == 60
    assert deletion.reaches(PartitionLives(200, (), NO_LIFE)) == 100

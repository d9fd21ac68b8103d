"""Records that Produce accepts, and the errors of others."""

import struct
from typing import Any

import crc32c
import pytest

from dafka_core.model.envelope import closed
from dafka_core.model.records import UNKNOWN_US
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.partition_writer import (
    ProducedRecords,
    joined,
    produced_records,
    produced_together,
)
from dafka_kafka.producer_states import Sequenced
from tests.unit.kafka.records import batches

NEWEST = 8
LIMIT = 1_000
RECORDS_AT = 61
WHEN_MS = batches.START_MS


def batch(*values: bytes | None, **more: Any) -> bytes:
    return batches.batch(values, **more)


def message_set(magic: int, *values: bytes, codec: int = 0) -> bytes:
    return batches.messages_of(magic, values, codec, step_ms=1)


def with_attributes(octets: bytes, attributes: int) -> bytes:
    """Return the batch with other attributes and a matching CRC."""
    changed = bytearray(octets)
    struct.pack_into(">h", changed, 21, attributes)
    struct.pack_into(">I", changed, 17, crc32c.crc32c(changed[21:]))
    return bytes(changed)


def with_crc(octets: bytes) -> bytes:
    """Return a batch with matching length and CRC."""
    changed = bytearray(octets)
    struct.pack_into(">i", changed, 8, len(octets) - 12)
    return with_attributes(bytes(changed), struct.unpack_from(">h", octets, 21)[0])


def test_records_become_contents_and_times() -> None:
    found = produced_records(memoryview(batch(b"a", b"b")), NEWEST, LIMIT)
    assert written(found) == ([b"a", b"b"], [[1, WHEN_MS * 1000], [1, (WHEN_MS + 1) * 1000]])
    assert (found.latest_ms, found.producer_id, found.sequenced) == (WHEN_MS + 1, -1, None)
    octets = batch(None, b"v", key=b"k", producer=(9, 3, 70))
    found = produced_records(memoryview(octets), NEWEST, LIMIT)
    assert written(found)[0] == [closed(None, b"k"), closed(b"v", b"k")]
    assert (found.producer_id, found.sequenced) == (9, Sequenced(3, 70, 2))


@pytest.mark.parametrize("codec", [0, 1])
def test_old_message_sets_are_taken_of_old_requests(codec: int) -> None:
    octets = memoryview(message_set(1, b"a", b"b", codec=codec))
    found = produced_records(octets, 2, LIMIT)
    times = [[1, WHEN_MS * 1000], [1, (WHEN_MS + 1) * 1000]]
    assert written(found) == ([closed(b"a", b"k"), closed(b"b", b"k")], times)
    found = produced_records(memoryview(message_set(0, b"a", codec=codec)), 0, LIMIT)
    assert written(found) == ([closed(b"a", b"k")], None)
    both = memoryview(message_set(0, b"a", codec=1) + message_set(1, b"b", codec=1))
    found = produced_records(both, 1, LIMIT)
    times = [[1, UNKNOWN_US], [1, WHEN_MS * 1000]]
    assert written(found) == ([closed(b"a", b"k"), closed(b"b", b"k")], times)


REFUSED = {
    "cut off": (batch(b"a")[:-1], NEWEST, KafkaError.INVALID_RECORD),
    "one byte": (b"x", NEWEST, KafkaError.INVALID_RECORD),
    "changed": (batch(b"a").replace(b"a", b"b"), NEWEST, KafkaError.CORRUPT_MESSAGE),
    "two batches": (batch(b"a") + batch(b"b"), NEWEST, KafkaError.INVALID_RECORD),
    "a message set": (message_set(1, b"a"), 3, KafkaError.INVALID_RECORD),
    "a batch in an old request": (batch(b"a"), 2, KafkaError.INVALID_RECORD),
    "too large": (batch(bytes(LIMIT + 1)), NEWEST, KafkaError.MESSAGE_TOO_LARGE),
    "too large with its key": (batch(bytes(LIMIT), key=b"k"), NEWEST, KafkaError.MESSAGE_TOO_LARGE),
    "zstd before it was known": (
        batch(b"a" * 100, codec=4),
        6,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "a codec that is not known": (
        with_attributes(batch(b"a"), 5),
        NEWEST,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "append time": (with_attributes(batch(b"a"), 8), NEWEST, KafkaError.INVALID_TIMESTAMP),
    "control records": (with_attributes(batch(b"a"), 0x20), NEWEST, KafkaError.INVALID_RECORD),
    "a transaction's": (
        batch(b"a", transactional=True, producer=(1, 0, 0)),
        NEWEST,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "without a sequence": (batch(b"a", producer=(1, 0, -1)), NEWEST, KafkaError.INVALID_RECORD),
    "without an epoch": (batch(b"a", producer=(1, -1, 0)), NEWEST, KafkaError.INVALID_RECORD),
}


@pytest.mark.parametrize("case", REFUSED)
def test_records_that_are_refused(case: str) -> None:
    octets, version, error = REFUSED[case]
    with pytest.raises(RefusedError) as caught:
        produced_records(memoryview(octets), version, LIMIT)
    assert caught.value.code == error
    assert caught.value.why


def alone(octets: bytes, limit_bytes: int = LIMIT) -> object:
    try:
        found = produced_records(memoryview(octets), NEWEST, limit_bytes)
    except RefusedError as error:
        return str(error)
    return told(found)


def told(found: ProducedRecords | RefusedError) -> object:
    if isinstance(found, RefusedError):
        return str(found)
    return *written(found), found.latest_ms, found.producer_id, found.sequenced


def written(*parts: ProducedRecords) -> tuple[list[bytes], list[list[int]] | None]:
    """Return the contents and times that are written."""
    contents, times = joined(parts)
    return contents.to_list(), None if times is None else times.tolist()


def together(*batches: bytes, max_bytes: int = 1 << 30) -> list[object]:
    requests = [(memoryview(each), NEWEST) for each in batches]
    return [told(each) for each in produced_together(requests, LIMIT, max_bytes)]


def stamps(times: list[list[int]] | None) -> list[int]:
    """Return the timestamp of each record."""
    return [stamp for count, stamp in times or [] for _ in range(count)]


SOUND = [
    batch(b"a"),
    batch(b"b" * 200, b"", b"c", producer=(7, 1, 5)),
    batch(None, b"v", key=b"k"),
    batch(*[b"%d" % at for at in range(300)], codec=1),
    batch(*[bytes(900)] * 200),
]


def test_batches_are_decoded_together_as_each_alone() -> None:
    assert together(*SOUND) == [alone(each) for each in SOUND]
    assert together(*SOUND * 20) == [alone(each) for each in SOUND] * 20


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 1, 3], [2, 0, 1], [3], [1, 1]])
def test_parts_that_follow_each_other_are_joined_as_any_others(order: list[int]) -> None:
    requests = [(memoryview(each), NEWEST) for each in SOUND[:4]]
    parts = produced_together(requests, LIMIT, 1 << 30)
    chosen = [part for at in order if isinstance(part := parts[at], ProducedRecords)]
    assert len(chosen) == len(order)
    contents, times = written(*chosen)
    each_alone = [written(each) for each in chosen]
    assert contents == [value for values, _ in each_alone for value in values]
    assert stamps(times) == [stamp for _, alone in each_alone for stamp in stamps(alone)]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        batch(b"a")[:-1],
        batch(b"a") + batch(b"b"),
        batch(bytes(LIMIT + 1)),
        with_attributes(batch(b"a"), 1 << 5),
        with_crc(batch(b"abc")[:-4] + b"abc\1"),  # a missing header
        with_crc(batch(b"ab")[:-5] + b"\2\6ab\0"),  # a value that extends beyond it
        message_set(1, b"a"),
    ],
)
def test_what_is_wrong_with_one_concerns_no_other(wrong: bytes) -> None:
    sent = [SOUND[0], wrong, *SOUND[1:]]
    found = together(*sent)
    assert found == [alone(each) for each in sent]
    assert isinstance(found[1], str)


def test_a_record_that_ends_in_the_next_batch_is_no_record() -> None:
    """Concatenated, the bytes of both batches are two records."""
    first, second = batch(b"abc"), batch(b"abcd")
    moved = second[RECORDS_AT : RECORDS_AT + 1]
    longer, shorter = (
        with_crc(first + moved),
        with_crc(second[:RECORDS_AT] + second[RECORDS_AT + 1 :]),
    )
    found = together(longer, shorter)
    assert found == [alone(longer), alone(shorter)]
    assert all(isinstance(each, str) for each in found)


def test_no_further_batch_is_looked_at_when_there_is_enough() -> None:
    assert len(together(*SOUND, max_bytes=1)) == 1
    assert len(together(*SOUND, max_bytes=10_000)) == len(SOUND)
    assert len(together(*[SOUND[-1]] * 10, max_bytes=400_000)) == 3

"""The kinds of fields: valid values, their encoding, and malformed frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.config.node_options import LAYOUTS
from dafka_core.errors import ProtocolError
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import PartitionInfo
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import decode, encode
from dafka_core.protocol.fields import FrameReader, pack_text
from dafka_core.protocol.limits import (
    MAX_FETCH_COUNT,
    MAX_FETCH_PARTITIONS,
    MAX_HELLO_BYTES,
    MAX_REPLY_ENTRIES,
)
from tests.unit.protocol.costs import quickly_and_without_memory


@given(st.binary(max_size=255))
def test_any_bytes_survive_as_text(octets: bytes) -> None:
    text = text_of(octets)
    assert octets_of(text) == octets
    for length_size_bytes in (1, 4):
        packed = pack_text(text, length_size_bytes)
        assert packed == len(octets).to_bytes(length_size_bytes, "big") + octets
        frame = FrameReader(packed)
        assert frame.text(length_size_bytes) == text
        frame.finish()


def test_a_frame_is_read_to_its_end_and_no_further() -> None:
    frame = FrameReader(b"\1\2\3\2ab!")
    assert (frame.number(1), frame.number(2), frame.text()) == (1, 0x203, "ab")
    with pytest.raises(ProtocolError, match="has bytes after its last field"):
        frame.finish()
    for short, size_bytes in ((b"", 1), (b"abc", 4), (b"\0" * 7, 8)):
        for take in (FrameReader.take, FrameReader.number):
            with pytest.raises(ProtocolError, match="ends within a field"):
                take(FrameReader(short), size_bytes)
    # A false length allocates no memory.
    with quickly_and_without_memory(), pytest.raises(ProtocolError, match="ends within a field"):
        FrameReader(b"\xff\xff\xff\xffab").text(4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_are_clamped(layout: str) -> None:
    frames = encode(m.Fetch("P", "C", "t", 7, MAX_FETCH_COUNT), layout)
    for count in (MAX_FETCH_COUNT, MAX_FETCH_COUNT + 1, 2**31, 2**32 - 1):
        frames[-1] = frames[-1][:-4] + count.to_bytes(4, "big")
        assert decode(frames) == m.Fetch("P", "C", "t", 7, MAX_FETCH_COUNT)


@pytest.mark.parametrize(
    "start",
    [
        "57 53 00 01 01 43",
        "51 00 01 01 43 0000000000000001",
        "73 43 00 01 0000000000000001 01 53 00000000 00000001",
        "75 43 00 01 0000000000000001 01 53 00000000 00000001",
        "42 53 00 01 01 43",
    ],
)
@pytest.mark.parametrize(
    "count",
    [2**32 - 1, 2**31, MAX_HELLO_BYTES // 4, MAX_HELLO_BYTES // 4 + 1, MAX_REPLY_ENTRIES, 2],
)
@pytest.mark.parametrize("rest", ["", "00000001 74", "ffffffff 74", "00" * 16])
def test_false_counts_are_refused_without_cost(start: str, count: int, rest: str) -> None:
    frame = bytes.fromhex(start) + count.to_bytes(4, "big") + bytes.fromhex(rest)
    # Beyond the limits it is the announcement that is refused, not what comes after it.
    most = {"57": MAX_HELLO_BYTES // 4, "51": MAX_HELLO_BYTES // 4, "42": MAX_FETCH_PARTITIONS}.get(
        start[:2], MAX_REPLY_ENTRIES
    )
    why = f"the count of entries must be between 0 and {most}" if count >= 2**31 else None
    with quickly_and_without_memory(), pytest.raises(ProtocolError, match=why):
        decode([frame])


def test_largest_replies_are_not_refused() -> None:
    long = "x" * 255
    info = PartitionInfo(long, long, 0, 1)
    heads = m.HeadsReply(long, 1, long, 0, 1, (info,) * MAX_REPLY_ENTRIES)
    times = m.TimesReply(long, 1, long, 0, 1, ((1, 1),) * MAX_REPLY_ENTRIES)
    many = (info,) * MAX_FETCH_PARTITIONS
    fetch = m.FetchBatch(long, long, many)
    epochs = (None,) * MAX_FETCH_PARTITIONS
    content = bytes(8 * len(many)) + b"\1\0\0\0" * len(many) + bytes(4 * len(many))
    batches = m.DirectRecordBatches(long, many, epochs, MAX_FETCH_PARTITIONS, content)
    for layout in LAYOUTS:
        assert decode(encode(fetch, layout)) == fetch
        assert decode(encode(batches, layout)) == batches
        assert decode(encode(heads, layout)) == heads
        assert decode(encode(times, layout)) == times

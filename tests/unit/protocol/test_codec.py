"""The codec: both ways, in both layouts, and what it does with what is no message."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.config.node_options import C_LAYOUT, LAYOUTS
from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import EPOCH_BYTES, Epoch
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import PartitionInfo, TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import (
    decode,
    encode,
    encode_batch_prefix,
    pack_batch_numbers,
    parse_subscription,
    subscription,
    unpack_batch_numbers,
)
from dafka_core.protocol.fields import FrameReader, pack_text
from dafka_core.protocol.limits import (
    MAX_FETCH_COUNT,
    MAX_FETCH_PARTITIONS,
    MAX_HEADER_BYTES,
    MAX_HELLO_BYTES,
    MAX_REPLY_ENTRIES,
    MAX_SEQUENCE,
)
from tests.unit.protocol.costs import quickly_and_without_memory
from tests.unit.protocol.strategies import COMMANDS, EPOCHS, MESSAGES, names, packed
from tests.unit.protocol.vectors import RECORDED_VECTORS, VECTORS, Vector

COMMAND_IDS = {
    m.RecordMessage: b"M",
    m.DirectRecord: b"D",
    m.Fetch: b"F",
    m.Ack: b"K",
    m.Head: b"H",
    m.DirectHead: b"E",
    m.GetHeads: b"G",
    m.ConsumerHello: b"W",
    m.StoreHello: b"L",
    # Extensions.
    m.RecordBatchMessage: b"r",
    m.DirectRecordBatch: b"p",
    m.DirectRecordBatches: b"C",
    m.FetchBatch: b"B",
    m.RecordTooLarge: b"O",
    m.StoreEndpoints: b"N",
    m.StoresKnown: b"X",
    m.HeadsQuery: b"Q",
    m.TimesQuery: b"T",
    m.HeadsReply: b"s",
    m.TimesReply: b"u",
    m.EpochAck: b"I",
    m.HistoryQuery: b"V",
    m.HistoryReply: b"J",
}
SHORT_VECTORS = [v for v in VECTORS if v not in RECORDED_VECTORS]

every_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v.name)


def header_count(vector: Vector) -> int:
    return len(vector.frames) - isinstance(vector.message, m.AnyRecord | m.DirectRecordBatches)


def assert_refused_or_exact(frames: list[bytes], layout: str) -> None:
    """A decoded message must match the frames exactly."""
    try:
        message = decode(frames)
    except ProtocolError:
        return
    again = encode(message, layout)
    if again != frames:
        # Only a clamped count may differ, and it ends the header.
        assert isinstance(message, m.Fetch)
        assert message.count == MAX_FETCH_COUNT
        assert int.from_bytes(frames[-1][-4:], "big") > MAX_FETCH_COUNT
        assert again[-1][:-4] == frames[-1][:-4]
        assert again[:-1] == frames[:-1]


@every_vector
def test_a_message_and_its_frames(vector: Vector) -> None:
    assert decode(vector.frames) == decode(tuple(vector.frames)) == vector.message
    assert encode(vector.message, vector.layout) == vector.frames


def test_there_is_a_vector_of_every_command_in_every_layout() -> None:
    assert {type(v.message) for v in RECORDED_VECTORS} == set(list(COMMAND_IDS)[:9])
    assert set(COMMAND_IDS) == set(COMMANDS)
    for layout in LAYOUTS:
        assert {type(v.message) for v in VECTORS if v.layout == layout} == set(COMMAND_IDS)


@every_vector
def test_truncated_frames(vector: Vector) -> None:
    for i, frame in enumerate(vector.frames):
        for size_bytes in range(len(frame)):
            frames = [*vector.frames]
            frames[i] = frame[:size_bytes]
            # A topic frame and a content do not contain their length, so less of them is another
            # topic or content; a frame with fields cannot be shorter and remain valid.
            if i == header_count(vector) - 1:
                with pytest.raises(ProtocolError):
                    decode(frames)
            else:
                assert_refused_or_exact(frames, vector.layout)


@pytest.mark.parametrize("vector", SHORT_VECTORS, ids=lambda v: v.name)
def test_every_value_of_every_header_byte(vector: Vector) -> None:
    for i, frame in enumerate(vector.frames[: header_count(vector)]):
        for position in range(len(frame)):
            for octet in range(256):
                frames = [*vector.frames]
                frames[i] = frame[:position] + bytes([octet]) + frame[position + 1 :]
                assert_refused_or_exact(frames, vector.layout)


@every_vector
def test_missing_and_further_frames_and_bytes(vector: Vector) -> None:
    frames, last = vector.frames, header_count(vector) - 1
    wrong = [[*frames[:i], *frames[i + 1 :]] for i in range(len(frames))]
    for more in (b"", b"\0", b"M", b"\xaa\xa5M\x01"):
        wrong += [[*frames[:i], more, *frames[i:]] for i in range(len(frames) + 1)]
    for trailing in (b"\0", b"\1", bytes(8)):
        wrong.append([*frames[:last], frames[last] + trailing, *frames[last + 1 :]])
    for each in wrong:
        with pytest.raises(ProtocolError):
            decode(each)


HEAD = "01 01 50 01 74 0000000000000000"  # a head of topic t, from its version on


@pytest.mark.parametrize(
    ("why", "frames"),
    [
        ("the version is not 1", ["48 74 00 00" + HEAD[2:]]),
        ("the version is not 1", ["48 74", "aaa5 48 02" + HEAD[2:]]),
        ("the signature is not AA A5", ["48 74", "aaa0 48" + HEAD]),
        ("the signature is not AA A5", ["48 74", "48" + HEAD]),
        ("name different commands", ["48 74", "aaa5 4b" + HEAD]),
        ("unknown command identifier", ["5a 74 00" + HEAD]),
        ("unknown command identifier", ["3f 74", "aaa5 3f" + HEAD]),
        ("the topic and the subject differ", ["4d 6f 00" + HEAD, "76"]),
        ("the topic and the subject differ", ["4d 7474 00" + HEAD, "76"]),
        ("the topic and the subject differ", ["48 00" + HEAD]),
        ("the topic and the subject differ", ["4d 6f", "aaa5 4d" + HEAD, "76"]),
        ("the topic and the subject differ", ["48 747400", "aaa5 48" + HEAD]),
    ],
)
def test_an_error_names_what_is_wrong(why: str, frames: list[str]) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode([bytes.fromhex(frame) for frame in frames])


@pytest.mark.parametrize(
    "message",
    [
        m.HeadsQuery("C", 1, ()),
        m.TimesQuery("C", 1, "t", "P", 0, 1),
        m.HistoryQuery("C", 1, "t", "P"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_have_no_topic(message: m.Message, layout: str) -> None:
    frames = encode(message, layout)
    frames[0] = frames[0][:1] + b"t" + frames[0][1:]
    with pytest.raises(ProtocolError, match="this command has no topic"):
        decode(frames)


@pytest.mark.parametrize(("message", "id_"), COMMAND_IDS.items())
def test_subscriptions(message: type[m.Message], id_: bytes) -> None:
    assert subscription(message) == id_
    assert subscription(message, "tö\udcff") == id_ + "tö".encode() + b"\xff"
    for topic in ("", "tö\udcff"):
        frame = b"\x01" + subscription(message, topic)
        assert parse_subscription(frame) == (True, message, topic)
        assert parse_subscription(frame + b"\0") == (True, message, topic)
        assert parse_subscription(b"\0" + frame[1:]) == (False, message, topic)


@pytest.mark.parametrize("frame", [b"", b"\x01", b"\x01Z", b"\x01Zt", b"\0"])
def test_subscriptions_to_something_else(frame: bytes) -> None:
    assert parse_subscription(frame)[1] is None


@pytest.mark.parametrize("topic", [b"a" * 256, b"a\0b", b"t\0\x01\x02P1"])
@pytest.mark.parametrize("id_", COMMAND_IDS.values())
def test_subscriptions_to_a_topic_that_no_message_has(id_: bytes, topic: bytes) -> None:
    assert parse_subscription(b"\x01" + id_ + topic) == (True, None, "")
    assert parse_subscription(b"\0" + id_ + topic + b"\0") == (False, None, "")


def test_headers_are_limited() -> None:
    for frames in ([b"G" + bytes(MAX_HEADER_BYTES)], [b"W" + bytes(MAX_HELLO_BYTES)]):
        with pytest.raises(ProtocolError, match="a header frame has at most"):
            decode(frames)
        # With two header frames each of them is measured.
        with pytest.raises(ProtocolError, match="a header frame has at most"):
            decode([frames[0][:1], frames[0]])
    # The content is not: its limit is an option of the socket.
    record = m.RecordMessage("t", "P", 0, bytes(MAX_HELLO_BYTES + 1))
    assert decode(encode(record)) == record


@given(names(0), names(), names(), st.integers(0, MAX_SEQUENCE), st.binary(max_size=9))
@settings(deadline=None)
def test_prefix_and_numbers_are_the_encoded_header(
    requestor: str, topic: str, partition: str, sequence: int, value: bytes
) -> None:
    message: m.Message = m.RecordMessage(topic, partition, sequence, value)
    batch: m.Message = m.RecordBatchMessage(topic, partition, sequence, 1, packed([value]))
    if requestor:
        message = m.DirectRecord(requestor, topic, partition, sequence, value)
        batch = m.DirectRecordBatch(requestor, topic, partition, sequence, 1, packed([value]))
    of = requestor, TopicPartition(topic, partition)
    number = sequence.to_bytes(8, "big")
    numbers = number + (1).to_bytes(4, "big") + bytes(24 + EPOCH_BYTES + 4)
    assert [encode_batch_prefix(*of, packed=False) + number, value] == encode(message)
    assert [encode_batch_prefix(*of, packed=True) + numbers, packed([value])] == encode(batch)


@given(
    st.integers(0, 2**63),
    st.integers(0, 2**32 - 1),
    st.none()
    | st.builds(Transaction, st.integers(-1, 2**62), st.integers(0, 9), st.integers(1, 2**63)),
    st.none() | EPOCHS,
    st.integers(0, 2**32 - 1),
)
def test_the_numbers_of_a_header_survive(
    sequence: int, count: int, transaction: Transaction | None, epoch: Epoch | None, runs: int
) -> None:
    numbers = sequence, count, transaction, epoch, runs
    assert unpack_batch_numbers(pack_batch_numbers(*numbers)) == numbers


@settings(max_examples=500, deadline=None)
@given(MESSAGES, st.sampled_from(LAYOUTS))
def test_any_message_survives(message: m.Message, layout: str) -> None:
    arrived = decode(encode(message, layout))
    if isinstance(message, m.Ack) and layout == C_LAYOUT:
        message = replace(message, store="")
    assert arrived == message


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
    frames = encode(m.Fetch("C", "t", "P", 7, MAX_FETCH_COUNT), layout)
    for count in (MAX_FETCH_COUNT, MAX_FETCH_COUNT + 1, 2**31, 2**32 - 1):
        frames[-1] = frames[-1][:-4] + count.to_bytes(4, "big")
        assert decode(frames) == m.Fetch("C", "t", "P", 7, MAX_FETCH_COUNT)


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

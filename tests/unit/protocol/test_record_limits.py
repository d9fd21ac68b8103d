"""Peers announce the largest record they take, and are sent nothing larger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.config.node_options import MAX_RECORD_BYTES
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import PartitionLives, RecordBatch, TopicPartition
from dafka_core.protocol import record_limits
from dafka_core.protocol.consumer_role import ConsumerRole, ReaderRole
from dafka_core.protocol.limits import MAX_REPLY_BYTES, RECORD_OVERHEAD_BYTES
from dafka_core.protocol.messages import Fetch, Head, RecordTooLarge
from dafka_core.protocol.record_limits import (
    LEAST_BYTES,
    Announcement,
    RecordLimits,
    announcement,
    error_of,
    parse_announcement,
)
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.protocol.store_role import StoreRole

TP = TopicPartition("t", "P")
SMALL, LARGE = b"small", bytes(100)
LIMIT = 10
SIZES = (5, 100, 5, 5, 100, 100, 5)
MIXED = RecordBatch.of(TP, 7, [bytes(size) for size in SIZES])


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_limits, "LEAST_BYTES", 1)


def limits(*announced: bytes) -> RecordLimits:
    made = RecordLimits()
    for prefix in announced:
        made.apply(b"\1" + prefix)
    made.refresh()
    return made


def sent(kept: list[Outgoing]) -> list[tuple[int, int] | int]:
    """Ranges of records, and the offsets of what took the place of one."""
    found: list[tuple[int, int] | int] = []
    for each in kept:
        if isinstance(each, OutgoingBatch):
            found.append((each.batch.offset, each.batch.end))
        else:
            assert isinstance(each, RecordTooLarge | Head)
            found.append(each.sequence)
    return found


def test_an_announcement_comes_before_every_other_subscription() -> None:
    # From then on the peer sends: it must know the limit by then.
    own = announcement("store", "S", MAX_RECORD_BYTES)
    roles = (
        StoreRole("S", lambda tp: PartitionLives(0, (), NO_LIFE), sync_interval_s=1.0),
        ConsumerRole("C", "earliest"),
        ReaderRole("R"),
    )
    assert all(own < prefix for role in roles for prefix in role.subscriptions())


@given(
    st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=60),
    st.sampled_from(["store", "consumer", "producer"]),
    st.sampled_from(["", "host-7:4711", "é" * 64, "a\u200db"]),
)
def test_an_announcement_has_kind_node_limit_and_client(node: str, kind: str, client: str) -> None:
    found = parse_announcement(announcement(kind, node, LEAST_BYTES, client))
    assert found == Announcement(kind[0].upper(), node, LEAST_BYTES, client)


@pytest.mark.parametrize(
    "prefix",
    [
        b"A",
        b"AS\0node",
        b"AS\0node\0",
        b"AS\0node\0-1",
        b"AS\0node\x001e9",
        b"AS\0node\0" + b"9" * 4_000,
        b"AS\0\0%d" % LEAST_BYTES,
        b"AS\0" + b"n" * 256 + b"\0%d" % LEAST_BYTES,
        b"AS\0node\0%d" % (LEAST_BYTES - 1),
        b"AS\0node\0%d" % (MAX_RECORD_BYTES + 1),
        b"AS\0node\0%d\0" % LEAST_BYTES,
        "AS\0node\0\u0665300000".encode(),
        b"AP\0node\0%d\0%b" % (LEAST_BYTES, b"x" * 129),
        b"AP\0node\0%d\0a\nb" % LEAST_BYTES,
        b"AP\0node\0%d\0a\xff" % LEAST_BYTES,
        b"AP\0node\0%d\0a\0b" % LEAST_BYTES,
        "AP\0node\0%d\0a\u202eb".encode() % LEAST_BYTES,
    ],
)
def test_invalid_announcements_change_nothing(prefix: bytes) -> None:
    assert parse_announcement(prefix) is None
    assert limits(prefix).smallest_store is None


def test_the_smallest_limit_is_a_stores_or_the_nodes_own() -> None:
    small, large = LEAST_BYTES, LEAST_BYTES + 1
    assert limits().with_stores(small, "here") == (small, "here")
    made = limits(announcement("store", "S", large), announcement("consumer", "C", small))
    assert made.with_stores(large, "here") == (large, "here")
    assert made.with_stores(large + 1, "here") == (large, "store S")


def test_every_node_accepts_the_largest_reply() -> None:
    assert MAX_REPLY_BYTES - RECORD_OVERHEAD_BYTES == LEAST_BYTES


@given(st.binary(max_size=60))
def test_no_subscription_raises(frame: bytes) -> None:
    made = RecordLimits()
    made.apply(frame)
    made.apply(b"\1A" + frame)
    made.refresh()


@pytest.mark.usefixtures("_tiny")
def test_a_requestor_receives_an_error_for_each_record_above_its_limit() -> None:
    made = limits(announcement("consumer", "C", LIMIT))
    kept = made.kept(OutgoingBatch(MIXED, "C"))
    assert sent(kept) == [(7, 8), 8, (9, 11), 11, 12, (13, 14)]
    assert kept[1] == RecordTooLarge("C", *TP, 8, 100)
    # Another requestor takes them all.
    assert made.kept(OutgoingBatch(MIXED, "D")) == [OutgoingBatch(MIXED, "D")]


@pytest.mark.usefixtures("_tiny")
def test_a_record_above_one_peers_limit_is_replaced_by_the_head() -> None:
    made = limits(announcement("consumer", "C", LIMIT), announcement("store", "S", 1_000))
    kept = made.kept(OutgoingBatch(MIXED))
    assert sent(kept) == [(7, 8), 8, (9, 11), 11, 12, (13, 14)]
    assert kept[1] == Head(*TP, 8)


@pytest.mark.usefixtures("_tiny")
def test_a_record_of_exactly_the_limit_is_sent() -> None:
    made = limits(announcement("consumer", "C", 100))
    for requestor in ("", "C"):
        message = OutgoingBatch(MIXED, requestor)
        assert made.kept(message) == [message]


@pytest.mark.usefixtures("_tiny")
def test_a_limit_lasts_as_long_as_any_connection_announces_it() -> None:
    own = announcement("store", "S", LIMIT)
    made = limits(own, own, announcement("store", "T", 50), announcement("consumer", "C", 1))
    for expected in (Announcement("S", "S", LIMIT), Announcement("S", "T", 50)):
        made.apply(b"\0" + own)
        made.refresh()
        smallest = made.smallest_store
        assert smallest is not None
        if expected.node == "S":
            assert smallest == expected
    assert smallest == Announcement("S", "T", 50)
    for prefix in (announcement("store", "T", 50), own, own):  # more often than it came
        made.apply(b"\0" + prefix)
    made.refresh()
    assert made.smallest_store is None


def test_announcements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_limits, "MAX_PEERS", 3)
    made = limits(*(announcement("store", f"S{i}", LEAST_BYTES) for i in range(1_000)))
    assert len(made._announced) == 3


def too_large(offset: int, size_bytes: int, requestor: str) -> RecordTooLarge:
    return RecordTooLarge(requestor, *TP, offset, size_bytes)


def test_a_store_reports_once_which_record_blocks_a_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    role = StoreRole(
        "S", lambda tp: PartitionLives(0, (), NO_LIFE), sync_interval_s=1.0, limit_bytes=LIMIT
    )
    for size_bytes in (LIMIT, 100):  # nothing is known of the partition yet
        role.on_message(0.0, too_large(0, size_bytes, "S"), "")
    assert role.too_large_count == 0
    role.on_message(0.0, Head(*TP, 4), "")
    for message in (too_large(0, LIMIT, "S"), too_large(1, 100, "S"), too_large(0, 100, "T")):
        role.on_message(0.0, message, "")
    assert role.too_large_count == 0
    for now in (1.0, 9.0):
        role.on_message(now, too_large(0, 100, "S"), "")
    assert role.too_large_count == 1
    (line,) = caplog.messages
    assert str(error_of(too_large(0, 100, "S"), LIMIT, "store S")) in line
    # It keeps requesting: the record may be sent when another node's limit has been raised.
    assert [type(each) for each in role.on_tick(9.0)].count(Fetch) == 1

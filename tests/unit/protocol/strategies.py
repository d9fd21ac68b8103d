"""Made-up messages of every kind, for hypothesis."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from dafka_core.model.epochs import MAX_NUMBER, Epoch, EpochId, History
from dafka_core.model.records import NO_VERSION, KnownStore, PartitionInfo, Transaction
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_LOCATIONS, MAX_SEQUENCE
from dafka_core.protocol.messages import (
    Ack,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    DirectRecordBatches,
    EpochAck,
    Fetch,
    FetchBatch,
    GetHeads,
    Head,
    HeadsQuery,
    HeadsReply,
    HistoryQuery,
    HistoryReply,
    Message,
    RecordBatchMessage,
    RecordMessage,
    RecordTooLarge,
    StoreEndpoints,
    StoreHello,
    StoresKnown,
    TimesQuery,
    TimesReply,
)


def names(least: int = 1) -> st.SearchStrategy[str]:
    """Topics and addresses of ``least`` to 255 bytes, UTF-8 or not, without NUL."""
    octets = st.binary(min_size=least, max_size=255).map(lambda b: b.replace(b"\0", b"\1"))
    texts = st.text(min_size=least, max_size=63).map(lambda t: t.replace("\0", "x"))
    return texts | octets.map(lambda b: b.decode("utf-8", "surrogateescape"))


def packed(values: list[bytes], runs: list[tuple[int, int]] | None = None) -> bytes:
    """The content of a batch: runs of timestamps, the lengths of the records, then the records."""
    counts, stamps = zip(*runs, strict=True) if runs else ((), ())
    times = struct.pack(f"<{len(stamps)}q{len(counts)}I", *stamps, *counts)
    return times + struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def runs_of(count: int, stamps: list[int]) -> list[tuple[int, int]]:
    """Return the timestamps as runs; the last one has the remaining records."""
    single = [(1, stamp) for stamp in stamps[: count - 1]]
    return [*single, (count - len(single), stamps[-1])] if stamps else []


SEQUENCES = st.integers(0, MAX_SEQUENCE)
ENDS = st.integers(0, MAX_SEQUENCE + 1)
QUERIES = st.integers(0, 2**64 - 1)
PART_OF_PARTS = st.tuples(st.integers(0, 2**32 - 2), st.integers(0, 2**32 - 2)).map(
    lambda numbers: (min(numbers), max(numbers) + 1)
)
TOPICS = st.lists(names(), max_size=5).map(tuple)
VALUES = st.binary(max_size=50)
LIFE_IDS = st.integers(0, 2**64 - 1)
LIVES = st.builds(EpochId, st.integers(0, MAX_NUMBER), LIFE_IDS, st.integers(0, 255))
EPOCHS = st.builds(
    Epoch,
    st.integers(1, MAX_NUMBER),
    LIFE_IDS,
    st.integers(0, 255),
    SEQUENCES,
    st.integers(0, 2**64 - 1),
)
HEAD_ENTRIES = st.builds(
    lambda topic, partition, ends, life: PartitionInfo(
        topic, partition, min(ends), max(ends), life
    ),
    names(),
    names(),
    st.tuples(ENDS, ENDS),
    LIVES,
)
TIME_ENTRIES = st.tuples(SEQUENCES, SEQUENCES)
VERSIONS = st.integers(NO_VERSION, MAX_SEQUENCE)
MARGINS = st.none() | st.tuples(VERSIONS, st.integers(0, 9), st.integers(0, 9))
"""A transaction's version, and how many of its records are before and behind those of a batch."""


def transaction_around(
    sequence: int, count: int, margins: tuple[int, int, int] | None
) -> Transaction | None:
    """A transaction that has these records."""
    if margins is None:
        return None
    version, before, behind = margins
    end = min(sequence + count + behind, MAX_SEQUENCE + 1)
    return Transaction(version, max(sequence - before, 0), end)


def history_of(epochs: list[Epoch]) -> History:
    """Return the epochs in the order of their lives, with ascending starts, each once."""
    lives = sorted({epoch.life for epoch in epochs})
    starts = sorted({epoch.start for epoch in epochs})
    parents = [epoch.parent for epoch in epochs]
    return tuple(
        Epoch(*life, start, parent)
        for life, start, parent in zip(lives, starts, parents, strict=False)
    )


RECORD_BATCHES = st.builds(
    lambda topic, partition, sequence, values, margins, epoch, stamps: RecordBatchMessage(
        topic,
        partition,
        sequence,
        len(values),
        packed(values, runs_of(len(values), stamps)),
        transaction_around(sequence, len(values), margins),
        epoch and epoch._replace(start=min(epoch.start, sequence)),
        len(runs_of(len(values), stamps)),
    ),
    names(),
    names(),
    st.integers(0, MAX_SEQUENCE - 4),
    st.lists(VALUES, min_size=1, max_size=5),
    MARGINS,
    st.none() | EPOCHS,
    st.lists(st.integers(0, 2**63 - 1), max_size=6),
)
DIRECT_BATCHES = st.builds(
    lambda requestor, batch: DirectRecordBatch(
        requestor,
        batch.tp.topic,
        batch.tp.partition,
        batch.sequence,
        batch.count,
        batch.value,
        batch.transaction,
        batch.epoch,
        batch.runs,
    ),
    names(),
    RECORD_BATCHES,
)
KNOWN = st.builds(
    KnownStore,
    names(),
    st.sampled_from(("", "tcp://h:1", "tcp://[::1]:65535")),
    SEQUENCES,
    st.booleans(),
)
HEADS_REPLIES = st.builds(
    lambda requestor, query, store, part, entries: HeadsReply(
        requestor, query, store, part[0], part[1], tuple(entries)
    ),
    names(),
    QUERIES,
    names(),
    PART_OF_PARTS,
    st.lists(HEAD_ENTRIES, max_size=5),
)
TIMES_REPLIES = st.builds(
    lambda requestor, query, store, part, entries: TimesReply(
        requestor, query, store, part[0], part[1], tuple(entries)
    ),
    names(),
    QUERIES,
    names(),
    PART_OF_PARTS,
    st.lists(TIME_ENTRIES, max_size=5),
)
RANGES = st.lists(
    st.builds(
        lambda topic, partition, start, count: PartitionInfo(
            topic, partition, start, start + count
        ),
        names(),
        names(),
        st.integers(0, MAX_SEQUENCE - 4),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=4,
).map(tuple)
BATCHES_OF_MANY = st.builds(
    lambda requestor, entries, epoch, value, stamp: DirectRecordBatches(
        requestor,
        entries,
        tuple(epoch if epoch and epoch.start <= each.earliest else None for each in entries),
        len(entries) if stamp else 0,
        packed(
            [value] * sum(each.end - each.earliest for each in entries),
            [(each.end - each.earliest, stamp) for each in entries] if stamp else [],
        ),
    ),
    names(),
    RANGES,
    st.none() | EPOCHS,
    VALUES,
    st.integers(0, 2**63 - 1),
)
LOCATIONS = st.lists(
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40),
    min_size=1,
    max_size=MAX_LOCATIONS,
).map(tuple)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(RecordMessage, names(), names(), SEQUENCES, VALUES),
    st.builds(DirectRecord, names(), names(), names(), SEQUENCES, VALUES),
    st.builds(Fetch, names(), names(), names(), SEQUENCES, st.integers(0, MAX_FETCH_COUNT)),
    st.builds(Ack, names(), names(), SEQUENCES, names(0)),
    st.builds(Head, names(), names(), SEQUENCES),
    st.builds(DirectHead, names(), names(), names(), SEQUENCES),
    st.builds(GetHeads, names(0), names()),
    st.builds(ConsumerHello, names(0), names(), TOPICS),
    st.builds(StoreHello, names(0), names()),
    st.builds(HeadsQuery, names(), QUERIES, TOPICS),
    st.builds(TimesQuery, names(), QUERIES, names(), names(), SEQUENCES, ENDS),
    RECORD_BATCHES,
    DIRECT_BATCHES,
    HEADS_REPLIES,
    TIMES_REPLIES,
    BATCHES_OF_MANY,
    st.builds(FetchBatch, names(), names(), RANGES),
    st.builds(EpochAck, names(), names(), SEQUENCES, names(), LIVES),
    st.builds(HistoryQuery, names(), QUERIES, names(), names(), LIVES),
    st.builds(
        HistoryReply,
        names(),
        QUERIES,
        names(),
        names(),
        names(),
        ENDS,
        LIVES,
        st.lists(EPOCHS, max_size=5).map(history_of),
        st.lists(names(), max_size=3).map(tuple),
    ),
    st.builds(StoreEndpoints, names(), names(), LOCATIONS),
    st.builds(StoresKnown, names(), names(), st.lists(KNOWN, max_size=3).map(tuple)),
    st.builds(RecordTooLarge, names(), names(), names(), SEQUENCES, SEQUENCES),
)

"""Random messages of every kind, for hypothesis."""

import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from dafka_core.model.epochs import MAX_NUMBER, Epoch, EpochId, History
from dafka_core.model.records import NO_VERSION, KnownStore, PartitionInfo, Transaction
from dafka_core.protocol import fields as f
from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_LOCATIONS, MAX_SEQUENCE


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


def history_of(epochs: list[Epoch]) -> History:
    """Return the epochs in the order of their lives, with ascending starts, each once."""
    lives = sorted({epoch.life for epoch in epochs})
    starts = sorted({epoch.start for epoch in epochs})
    return tuple(
        Epoch(*life, start, epoch.parent)
        for life, start, epoch in zip(lives, starts, epochs, strict=False)
    )


def tuples(strategy: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=least, max_size=5).map(tuple)


SEQUENCES = st.integers(0, MAX_SEQUENCE)
ENDS = st.integers(0, MAX_SEQUENCE + 1)
VALUES = st.binary(max_size=50)
UNSIGNED_32, UNSIGNED_64 = st.integers(0, 2**32 - 2), st.integers(0, 2**64 - 1)
LIVES = st.builds(EpochId, st.integers(0, MAX_NUMBER), UNSIGNED_64, st.integers(0, 255))
EPOCHS = st.builds(
    Epoch, st.integers(1, MAX_NUMBER), UNSIGNED_64, st.integers(0, 255), SEQUENCES, UNSIGNED_64
)
HEADS = st.builds(
    lambda topic, partition, ends, life: PartitionInfo(
        topic, partition, min(ends), max(ends), life
    ),
    names(),
    names(),
    st.tuples(ENDS, ENDS),
    LIVES,
)
RANGES = st.builds(
    lambda topic, partition, start, count: PartitionInfo(topic, partition, start, start + count),
    names(),
    names(),
    st.integers(0, MAX_SEQUENCE - 4),
    st.integers(1, 4),
)
ENDPOINTS = st.sampled_from(("", "tcp://h:1", "tcp://[::1]:65535"))
LOCATIONS = st.lists(
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40),
    min_size=1,
    max_size=MAX_LOCATIONS,
)
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    f.Topic: names(),
    f.AnyTopic: names(0),
    f.Address: names(),
    f.AnyAddress: names(0),
    f.Offset: SEQUENCES,
    f.End: ENDS,
    f.Number: UNSIGNED_32,
    f.RecordSize: SEQUENCES,
    f.QueryId: UNSIGNED_64,
    f.FetchCount: st.integers(0, MAX_FETCH_COUNT),
    f.Life: LIVES,
    f.Epochs: st.lists(EPOCHS, max_size=5).map(history_of),
    f.MaybeTransaction: st.none(),
    f.Stores: tuples(names()),
    f.KnownStores: tuples(st.builds(KnownStore, names(), ENDPOINTS, SEQUENCES, st.booleans())),
    f.Topics: tuples(names()),
    f.Locations: LOCATIONS.map(tuple),
    f.Heads: tuples(HEADS),
    f.Ranges: tuples(RANGES, 1),
    f.Times: tuples(st.tuples(SEQUENCES, SEQUENCES)),
}
BY_KIND = {hint.__metadata__[0]: strategy for hint, strategy in KINDS.items()}


def any_of(
    kind: type[m.Message], make: Callable[..., m.Message] | None = None, **others: Any
) -> st.SearchStrategy[Any]:
    """Return messages of one kind with random fields, made by ``make``."""
    return st.builds(
        make or kind,
        **{name: BY_KIND[each] for name, each in kind.kinds.items() if name not in others},
        **others,
    )


def reply_of(kind: type[m.HeadsReply | m.TimesReply]) -> st.SearchStrategy[Any]:
    """Return replies with a valid part and number of parts."""

    def make(part: int, parts: int, **others: Any) -> m.Message:
        return kind(part=min(part, parts), parts=max(part, parts) + 1, **others)

    return any_of(kind, make)


def record_batch(
    topic: str,
    partition: str,
    sequence: int,
    values: list[bytes],
    margins: tuple[int, int, int] | None,
    epoch: Epoch | None,
    stamps: list[int],
) -> m.RecordBatchMessage:
    """Return a batch within its epoch and transaction.

    ``margins`` are a transaction's version, and the number of its records before and after those of
    the batch.
    """
    transaction, runs = None, runs_of(len(values), stamps)
    if margins is not None:
        version, before, after = margins
        end = min(sequence + len(values) + after, MAX_SEQUENCE + 1)
        transaction = Transaction(version, max(sequence - before, 0), end)
    epoch = epoch and epoch._replace(start=min(epoch.start, sequence))
    content = len(values), packed(values, runs), transaction, epoch, len(runs)
    return m.RecordBatchMessage(topic, partition, sequence, *content)


RECORD_BATCHES = st.builds(
    record_batch,
    names(),
    names(),
    st.integers(0, MAX_SEQUENCE - 4),
    st.lists(VALUES, min_size=1, max_size=5),
    st.none()
    | st.tuples(st.integers(NO_VERSION, MAX_SEQUENCE), st.integers(0, 9), st.integers(0, 9)),
    st.none() | EPOCHS,
    st.lists(st.integers(0, 2**63 - 1), max_size=6),
)
DIRECT_BATCHES = st.builds(
    lambda requestor, batch: m.DirectRecordBatch(
        requestor, *(getattr(batch, field.name) for field in fields(batch))
    ),
    names(),
    RECORD_BATCHES,
)


def batches_of_many(
    requestor: str,
    entries: tuple[PartitionInfo, ...],
    epoch: Epoch | None,
    value: bytes,
    stamp: int,
) -> m.DirectRecordBatches:
    counts = [each.end - each.earliest for each in entries]
    epochs = [epoch if epoch and epoch.start <= each.earliest else None for each in entries]
    runs = [(count, stamp) for count in counts] if stamp else []
    content = packed([value] * sum(counts), runs)
    return m.DirectRecordBatches(requestor, entries, tuple(epochs), len(runs), content)


OTHERS: dict[type[m.Message], st.SearchStrategy[Any]] = {
    m.RecordMessage: any_of(m.RecordMessage, value=VALUES),
    m.DirectRecord: any_of(m.DirectRecord, value=VALUES),
    m.RecordBatchMessage: RECORD_BATCHES,
    m.DirectRecordBatch: DIRECT_BATCHES,
    m.DirectRecordBatches: st.builds(
        batches_of_many,
        names(),
        tuples(RANGES, 1),
        st.none() | EPOCHS,
        VALUES,
        st.integers(0, 2**63 - 1),
    ),
    m.HeadsReply: reply_of(m.HeadsReply),
    m.TimesReply: reply_of(m.TimesReply),
}
COMMANDS: list[type[m.Message]] = [
    each
    for each in vars(m).values()
    if isinstance(each, type) and issubclass(each, m.Message) and not each.__subclasses__()
]
MESSAGES: st.SearchStrategy[m.Message] = st.one_of(
    *(OTHERS[each] if each in OTHERS else any_of(each) for each in COMMANDS)
)

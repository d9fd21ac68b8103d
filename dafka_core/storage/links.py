"""Links: digests of a partition's records, each of which includes the previous one.

A block's checksum detects a faulty disk.  It does not detect an attacker who writes another record
into the file and computes the checksum again.  So a store keeps, beside each partition's records, a
chain of SHA-256 digests.  They cover records, not blocks: merging and compressing preserve them.

    link        the records from ``start`` to ``end``: digests of their lengths and bytes, with the
                partition's names, and of their times; and the digest of all that and of the
                previous link
    full        of a link: the next record's offset is a multiple of ``LINK_RECORDS``, or it has
                ``LINK_BYTES``.  So the full links of two stores have the same bounds, wherever each
                began to keep the partition
    open        the last link if it is not full: replaced when there are more records

Times have a digest of their own: each store stamps records that arrive without.

They are in the table ``meta``:

    "link ", partition id, start  ->  end, bytes, life, digests of records, times and chain

``life`` identifies the history of the records (``epochs.py``).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from dafka_core.model.epochs import History, digest, prefix
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage.block import LONG, OFFSET
from dafka_core.storage.rows import LAST_OFFSET, Table, partition_key

LINK_RECORDS: Final = 16_384
LINK_BYTES: Final = 16 << 20
"""The size limit of a link: it is read again when the open one grows, and reported when a record
was changed.  A link takes 150 bytes."""

GENESIS: Final = bytes(32)  # the predecessor of a partition's first link

_PREFIX: Final = b"link "
_KEY: Final = struct.Struct(">QQ")
_FACTS: Final = struct.Struct("<QQQQ")
_LINK: Final = struct.Struct("<QQQ32s32s32s")


class Link(NamedTuple):
    """A store's digest of the records from ``start`` to ``end`` (exclusive)."""

    start: int
    end: int
    size_bytes: int
    life: int
    records: bytes
    times: bytes
    chain: bytes

    @property
    def is_full(self) -> bool:
        """Return True if it is never replaced."""
        return self.end % LINK_RECORDS == 0 or self.size_bytes >= LINK_BYTES

    def follows(self, chain: bytes) -> bool:
        """Return True if it is unchanged, after the link with this ``chain``."""
        return self.chain == _chained(chain, self[:-1])


def life_at(history: History, end: int) -> int:
    """Return the identifier of the history of the records before an offset."""
    return digest(prefix(history, end))


class LinkDigest:
    """Computes a link of the records from ``start`` on, from batches of any size."""

    def __init__(self, tp: TopicPartition, start: int, chain: bytes) -> None:
        self.start = self.end = start
        self.size_bytes = 0
        self._names, self._chain = partition_key(tp), chain
        self._lengths, self._data, self._times = (hashlib.sha256() for _ in range(3))

    @property
    def is_full(self) -> bool:
        """See ``Link.is_full``."""
        at_multiple = self.start < self.end and self.end % LINK_RECORDS == 0
        return at_multiple or self.size_bytes >= LINK_BYTES

    def reach(self, batch: RecordBatch) -> int:
        """Return the offset up to which the records of the next batch belong to it."""
        by_bytes = batch.values.fitting(0, LINK_BYTES - self.size_bytes - 1) + 1
        return self.end + min(by_bytes, batch.count, LINK_RECORDS - self.end % LINK_RECORDS)

    def add(self, batch: RecordBatch) -> None:
        """Add the next records."""
        assert batch.offset == self.end
        assert batch.times is not None
        offsets, data = batch.values.columns()
        self._lengths.update(np.diff(offsets).astype(OFFSET).data)
        self._data.update(data)  # releases the interpreter lock
        self._times.update(np.repeat(batch.times[:, 1], batch.times[:, 0]).astype(LONG).data)
        self.end, self.size_bytes = batch.end, self.size_bytes + len(data)

    def link(self, life: int) -> Link:
        """Return the link of the records added so far."""
        where = _KEY.pack(self.start, self.end)
        parts = self._names, where, self._lengths.digest(), self._data.digest()
        records, times = hashlib.sha256(b"".join(parts)).digest(), self._times.digest()
        facts = self.start, self.end, self.size_bytes, life, records, times
        return Link(*facts, _chained(self._chain, facts))


def _chained(chain: bytes, facts: tuple[int, int, int, int, bytes, bytes]) -> bytes:
    *numbers, records, times = facts
    return hashlib.sha256(chain + _FACTS.pack(*numbers) + records + times).digest()


class Links:
    """The links of all partitions, in one transaction of LMDB."""

    def __init__(self, meta: Table) -> None:
        self._meta = meta

    def last(self, partition_id: int, before: int = LAST_OFFSET) -> Link | None:
        """Return a partition's last link that begins before an offset."""
        cursor = self._meta.cursor()
        found = cursor.set_range(_key(partition_id, before))
        if not (cursor.prev() if found else cursor.last()):
            return None
        key = bytes(cursor.key())
        return _parsed(key, cursor.value()) if key.startswith(_prefix(partition_id)) else None

    def starting(self, partition_id: int, start: int) -> Iterator[Link]:
        """Yield those that begin at or after an offset, in order."""
        for key, value in self._meta.scan(_prefix(partition_id), _key(partition_id, start)):
            yield _parsed(key, value)

    def put(self, partition_id: int, link: Link) -> None:
        """Write a link, replacing one that begins there."""
        start, *rest = link
        self._meta.put(_key(partition_id, start), _LINK.pack(*rest))

    def cut(self, partition_id: int, end: int) -> None:
        """Delete the links of records after an offset, which will be replaced."""
        while (link := self.last(partition_id)) and max(link.end, link.start + 1) > end:
            self._meta.delete(_key(partition_id, link.start))

    def trim(self, partition_id: int, earliest: int) -> None:
        """Delete those of trimmed records, except the last: the next one continues it."""
        last = self.last(partition_id, earliest)
        while last and (link := self.last(partition_id, last.start)):
            self._meta.delete(_key(partition_id, link.start))


def _key(partition_id: int, start: int) -> bytes:
    return _PREFIX + _KEY.pack(partition_id, start)


def _prefix(partition_id: int) -> bytes:
    return _key(partition_id, 0)[: len(_PREFIX) + _KEY.size // 2]


def _parsed(key: bytes, value: memoryview) -> Link:
    start = _KEY.unpack(key[len(_PREFIX) :])[1]
    if len(value) != _LINK.size:  # it continues none, and a check reports it
        return Link(start, start, 0, 0, b"", b"", b"")
    return Link(start, *_LINK.unpack(value))

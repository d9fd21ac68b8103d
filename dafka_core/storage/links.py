"""Links: digests of a partition's records, each of which holds the one before it.

A block's checksum finds a disk that errs.  It does not find somebody who writes another record into
the file and computes the checksum anew.  So a store keeps, beside each partition's records, a chain
of SHA-256 digests.  They are of records and not of blocks: merging and compressing leave them true.

    link        the records from ``start`` up to ``end``: digests of their lengths and octets, with
                the partition's names, and of their times; and the digest of all that and of the
                link before
    full        of a link: the next record's offset is a multiple of ``LINK_RECORDS``, or it has
                ``LINK_BYTES``.  So the full links of two stores begin and end alike, wherever
                each began to keep the partition
    open        the last link where it is not full: made anew when there are more records

Times have a digest of their own: of records that come without, each store stamps its own.

They lie in the table ``meta``:

    "link ", partition id, start  ->  end, bytes, life, digests of records, times and chain

``life`` stands for the history of the records (``epochs.py``).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from dafka_core.model.epochs import History, before, digest
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage.block import LONG, OFFSET
from dafka_core.storage.rows import LAST_OFFSET, partition_key
from dafka_core.storage.transaction import CountedTransaction

if TYPE_CHECKING:
    import lmdb

LINK_RECORDS: Final = 16_384
LINK_BYTES: Final = 16 << 20
"""What a link is of at most: so much is read anew when the open one grows, and so much is named
when a record was changed.  A link takes 150 octets."""

GENESIS: Final = bytes(32)
"""What the first link of a partition has in the place of the one before."""

_PREFIX: Final = b"link "
_KEY: Final = struct.Struct(">QQ")
_ID: Final = slice(len(_PREFIX), len(_PREFIX) + _KEY.size // 2)
_FACTS: Final = struct.Struct("<QQQQ")
_LINK: Final = struct.Struct("<QQQ32s32s32s")


class Link(NamedTuple):
    """What a store has noted of the records from ``start`` up to ``end`` (exclusive)."""

    start: int
    end: int
    size_bytes: int
    life: int
    records: bytes
    times: bytes
    chain: bytes

    @property
    def is_full(self) -> bool:
        """Whether it is never made anew."""
        return self.end % LINK_RECORDS == 0 or self.size_bytes >= LINK_BYTES

    def follows(self, chain: bytes) -> bool:
        """Whether it is as it was made, after the link with this ``chain``."""
        return self.chain == _chained(chain, *self[:-1])


def life_at(history: History, end: int) -> int:
    """What stands for the history of the records before an offset."""
    return digest(before(history, end))


class LinkDigest:
    """Makes a link of the records from ``start`` on, which come in whatever batches they lie in."""

    def __init__(self, tp: TopicPartition, start: int, chain: bytes) -> None:
        self.start = self.end = start
        self.size_bytes = 0
        self._names, self._chain = partition_key(tp), chain
        self._lengths, self._data, self._times = (hashlib.sha256() for _ in range(3))

    @property
    def is_full(self) -> bool:
        """See ``Link.is_full``."""
        return self.size_bytes >= LINK_BYTES or (self.start < self.end and not self._until_multiple)

    @property
    def _until_multiple(self) -> int:
        return -self.end % LINK_RECORDS

    def reach(self, batch: RecordBatch) -> int:
        """Up to which offset the records of a batch that comes next belong to it."""
        by_bytes = batch.values.fitting(0, LINK_BYTES - self.size_bytes - 1) + 1
        return self.end + min(by_bytes, batch.count, self._until_multiple or LINK_RECORDS)

    def add(self, batch: RecordBatch) -> None:
        """Adds the next records."""
        assert batch.offset == self.end
        assert batch.times is not None
        offsets, data = batch.values.columns()
        self._lengths.update(np.diff(offsets).astype(OFFSET).data)
        self._data.update(data)  # which lets other threads run
        self._times.update(np.repeat(batch.times[:, 1], batch.times[:, 0]).astype(LONG).data)
        self.end, self.size_bytes = batch.end, self.size_bytes + len(data)

    def link(self, life: int) -> Link:
        """The link of what was added up to now."""
        where = _KEY.pack(self.start, self.end)
        parts = self._names, where, self._lengths.digest(), self._data.digest()
        records, times = hashlib.sha256(b"".join(parts)).digest(), self._times.digest()
        facts = self.start, self.end, self.size_bytes, life, records, times
        return Link(*facts, _chained(self._chain, *facts))


def _chained(
    chain: bytes, start: int, end: int, size_bytes: int, life: int, records: bytes, times: bytes
) -> bytes:
    facts = _FACTS.pack(start, end, size_bytes, life)
    return hashlib.sha256(chain + facts + records + times).digest()


class Links:
    """The links of all partitions, in one transaction of LMDB."""

    def __init__(self, txn: CountedTransaction, meta: lmdb._Database) -> None:
        self._txn = txn
        self._meta = meta

    def before(self, partition_id: int, start: int) -> Link | None:
        """A partition's last link that begins before an offset."""
        cursor = self._txn.cursor(self._meta)
        found = cursor.set_range(_key(partition_id, start))
        if not (cursor.prev() if found else cursor.last()):
            return None
        return _parsed(partition_id, bytes(cursor.key()), cursor.value())

    def last(self, partition_id: int) -> Link | None:
        """A partition's last link."""
        return self.before(partition_id, LAST_OFFSET)

    def starting(self, partition_id: int, start: int) -> Iterator[Link]:
        """Those that begin at an offset or behind it, in order."""
        begin = _key(partition_id, start)
        for key, value in self._txn.scan(self._meta, _PREFIX + begin[_ID], begin):
            found = _parsed(partition_id, key, value)
            assert found is not None
            yield found

    def put(self, partition_id: int, link: Link) -> None:
        """Writes a link, in the place of one that begins there."""
        start, *rest = link
        self._txn.put(_key(partition_id, start), _LINK.pack(*rest), db=self._meta)

    def cut(self, partition_id: int, end: int) -> None:
        """Deletes the links of records behind an offset: these are others from now on."""
        while (link := self.last(partition_id)) and max(link.end, link.start + 1) > end:
            self._txn.delete(_key(partition_id, link.start), db=self._meta)

    def trim(self, partition_id: int, earliest: int) -> None:
        """Deletes those of records that are given up, but for the last: the next one follows it."""
        last = self.before(partition_id, earliest)
        while last and (link := self.before(partition_id, last.start)):
            self._txn.delete(_key(partition_id, link.start), db=self._meta)


def _key(partition_id: int, start: int) -> bytes:
    return _PREFIX + _KEY.pack(partition_id, start)


def _parsed(partition_id: int, key: bytes, value: memoryview) -> Link | None:
    """The link of an entry; None if it is not the partition's."""
    if not key.startswith(_PREFIX + _key(partition_id, 0)[_ID]):
        return None
    start = _KEY.unpack(key[len(_PREFIX) :])[1]
    if len(value) != _LINK.size:  # it follows none, and a check says so
        return Link(start, start, 0, 0, b"", b"", b"")
    return Link(start, *_LINK.unpack(value))

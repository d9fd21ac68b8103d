"""The log at one moment, read in place: blocks are views of the file as it is mapped."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from dafka_core.closing import ProcessBound
from dafka_core.errors import ClosedError
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage.block import ALIGNMENT, Block
from dafka_core.storage.environment import Environment, Pin
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.storage_errors import translated
from dafka_core.storage.tables import FoundBlock

_LIBC = ctypes.CDLL(None)


class Snapshot(ProcessBound):
    """What a log held when the snapshot was taken; see ``Log.snapshot``.

    Later appends are not seen, and merging and trimming take nothing away.  Blocks are not
    copied, unless it is asked for: arrays and buffers of the batches lie in the mapped file.  They
    stay valid as long as anything refers to them, also after ``close`` and after the log's own
    ``close``.  Until then the store cannot use again the space of what it merges or trims, so let
    go of them soon.

    Any number of threads may use it.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._lock = threading.Lock()
        self._pin: Pin | None = env.pin()

    def partitions(self, topic: str | None = None) -> list[PartitionInfo]:
        """What is held of every partition, or of every one of a topic; in order of their names."""
        with self._reading() as pin:
            return pin.tables.infos(topic)

    def info(self, tp: TopicPartition) -> PartitionInfo | None:
        """What is held of a partition; None when it is not known."""
        with self._reading() as pin:
            return pin.tables.info(tp)

    def read(
        self, tp: TopicPartition, start: int, end: int, *, copy: bool = False
    ) -> Iterator[RecordBatch]:
        """The records from ``start`` up to ``end`` (exclusive) that are held, in order, no gap.

        One batch per block, each looked up and checked when it is asked for.  The first one
        begins above ``start`` only when the records before it have been trimmed.  With ``copy``
        a batch keeps nothing of the snapshot.

        Raises:
            ClosedError: the snapshot is closed, also between two batches.
            StoreError: a block is damaged (topic, partition and offset are named).
        """
        with self._reading() as pin:
            row = pin.tables.visible_row(tp)
        if row is None:
            return
        offset, end = max(start, row.earliest), min(end, row.end)
        found: list[FoundBlock] = []
        while offset < end:
            first, block = self._next_block(tp, row, offset, found, copy=copy)
            batch = RecordBatch(tp, first, block.values, times=block.times)
            yield batch.between(offset, min(batch.end, end))
            offset = batch.end

    def close(self) -> None:
        """Ends reading; what has been handed out stays valid.  A second call does nothing."""
        with self._lock:
            self._pin = None

    def _next_block(
        self,
        tp: TopicPartition,
        row: PartitionRow,
        offset: int,
        found: list[FoundBlock],
        *,
        copy: bool,
    ) -> tuple[int, Block]:
        """The first of the blocks found, which are looked for if there is none left."""
        with self._reading() as pin:
            found += [] if found else pin.tables.blocks_of(tp, row, offset)
            block = found.pop(0)

        def in_place(packed: memoryview) -> Block:
            return Block.parse(_in_place(packed, pin, once=self._env.read_only))

        return block.first, pin.tables.read_block(tp, block, Block.copied if copy else in_place)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Pin]:
        with self._lock, translated(self._env.directory):
            if self._pin is None:
                raise ClosedError("snapshot")
            yield self._pin


class _Region:
    """Bytes of the map, for numpy; whatever numpy makes of them refers to the pin, through this.

    With ``once`` the system is told, when this goes, that the bytes are not read again.  Until then
    it counts each page that was read as the reader's resident memory, although it keeps the page
    for all processes.
    """

    __slots__ = ("__array_interface__", "_leaves", "pin")

    def __init__(self, address: int, size_bytes: int, pin: Pin, *, once: bool) -> None:
        self.pin = pin
        self._leaves = (address, size_bytes) if once else None
        self.__array_interface__: dict[str, Any] = {
            "data": (address, True),  # read-only
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        # Before the pin goes: without it the file may not be mapped any more.
        if self._leaves is not None:
            _leave_pages(*self._leaves)


def _in_place(packed: memoryview, pin: Pin, *, once: bool) -> memoryview | bytes:
    """The block's bytes, which keep the pin; ``once`` says that they are not read again."""
    address = int(np.frombuffer(packed, np.uint8).__array_interface__["data"][0])
    if address % ALIGNMENT:
        # LMDB puts a block below a page beside others, where its numbers lie anyhow. Arrow wants
        # them aligned, and a copy of so little is nothing.
        return bytes(packed)
    return np.asarray(_Region(address, len(packed), pin, once=once)).data


def _leave_pages(address: int, size_bytes: int) -> None:
    """Says that these bytes will not be read again soon; a read all the same finds them."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first:
        # An error means that the system does not know the advice, and it is only advice.
        _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)

"""The blocks read last, so that a reader taking a block in small parts checks it once."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dafka_core.storage.block import Block
from dafka_core.storage.block_builder import MAX_BLOCK_BYTES

CACHE_BYTES = 4 * MAX_BLOCK_BYTES
"""Room for a few readers, each inside a block of its own."""

LEAST_BYTES = 16 << 10
"""A smaller block is read and checked sooner than it is found, and takes several times its size: a
reader of very many partitions would fill memory with such."""


class BlockCache:
    """Blocks by key, at most ``CACHE_BYTES`` of them; the one used longest ago leaves first.

    A cached block never becomes wrong: under its key come only blocks that have the same records
    and more of them, since appending and merging both only add at the end; a key says how often
    records were set aside before.  Whether it is still there is asked of the table.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._size_bytes = 0

    def get(self, key: bytes) -> Block | None:
        """The block put under the key last, if it is still there."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: bytes, block: Block) -> None:
        """Keeps the block, unless it is small, or larger than the whole cache."""
        if not LEAST_BYTES <= block.size_bytes <= CACHE_BYTES:
            return
        with self._lock:
            replaced = self._blocks.pop(key, None)
            if replaced is not None:
                self._size_bytes -= replaced.size_bytes
            self._blocks[key] = block
            self._size_bytes += block.size_bytes
            while self._size_bytes > CACHE_BYTES:
                _, dropped = self._blocks.popitem(last=False)
                self._size_bytes -= dropped.size_bytes

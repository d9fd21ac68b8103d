"""Compresses the cold blocks of a log, one at a time, beside appends and merging.

A block is cold when its newest record is old.  So neither new records nor anything on its way to
the disk is compressed.  Small blocks are left to merging.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from dafka_core.config.topic_rules import NONE, CompressionRule, codec_of
from dafka_core.errors import StoreError
from dafka_core.model.records import TopicPartition
from dafka_core.storage.block import NUMBERS, PLAIN, Block, compressed, header_of, plain_size
from dafka_core.storage.entry_writer import SMALL_BLOCK_BYTES
from dafka_core.storage.environment import Environment
from dafka_core.storage.tables import Tables

SCAN_INTERVAL_S: Final = 30.0  # interval between two scans of all partitions

MOST_BYTES: Final = 64 << 20
"""A larger block has one very large record, and stays uncompressed: compression takes memory."""


class _Cold(NamedTuple):
    """A cold block; ``packed`` is None if it stays uncompressed."""

    records: int
    head: bytes
    plain_bytes: int
    packed: memoryview | None


class BlockCompressor:
    """Compresses by ``rules``, ``after_s`` seconds after a block's last record was written.

    For one thread, which calls ``step`` repeatedly.  It has compressed ``blocks`` blocks, of
    ``before_bytes`` to ``after_bytes``.
    """

    def __init__(
        self,
        env: Environment,
        rules: Sequence[CompressionRule],
        after_s: float,
        now_us: Callable[[], int],
    ) -> None:
        self.rules = rules
        self.blocks = self.before_bytes = self.after_bytes = 0
        self._env = env
        self._after_us = int(after_s * 1_000_000)
        self._now_us = now_us
        self._waiting: deque[tuple[TopicPartition, int]] = deque()
        self._scanned_s = float("-inf")
        # Blocks scanned and left uncompressed, by partition id; noted on disk later, if at all.
        self._marks: dict[int, int] = {}

    def step(self) -> bool:
        """Compress one block, or search for one; return False if idle.

        Raises StoreError for a damaged block, which is skipped from then on, or a failing disk.
        """
        if not any(rule.codec != NONE for rule in self.rules):
            return False
        if not self._waiting:
            if time.monotonic() - self._scanned_s < SCAN_INTERVAL_S:
                return False
            self._scanned_s = time.monotonic()
            self._scan()
            return bool(self._waiting)
        tp, mark = self._waiting.popleft()
        end = self._compress(tp, mark)
        if end is not None:
            self._waiting.appendleft((tp, end))
        return True

    def _scan(self) -> None:
        with self._env.reading() as tables:
            for row in tables.all_rows():
                if row.end and codec_of(row.tp.topic, self.rules) != NONE:
                    mark = max(tables.cold.get(row.id), self._marks.get(row.id, 0))
                    if mark < row.end:
                        self._waiting.append((row.tp, mark))

    def _compress(self, tp: TopicPartition, mark: int) -> int | None:
        """Examine the partition's next block; return its end, or None if it has no cold one."""
        number = NUMBERS.get(codec_of(tp.topic, self.rules), PLAIN)
        with self._env.reading() as tables:
            row = tables.visible_row(tp)
            if row is None:
                return None
            start = max(mark, row.earliest)
            found = next(tables.blocks_reaching(row.id, start, row.end), None)
            try:
                read = partial(self._cold, number)
                cold = None if found is None else tables.read_block(tp, found, read)
            except StoreError:
                assert found is not None
                self._marks[row.id] = next(tables.firsts(row.id, found.first + 1), row.end)
                raise
            noted = tables.cold.get(row.id)
        if cold is None or found is None:
            if mark > noted:  # after uncompressed ones
                self._env.write(lambda tables: tables.cold.put(row.id, mark))
            return None
        first, end = found.first, found.first + cold.records
        if cold.packed is None:
            self._marks[row.id] = end
            return end
        packed = cold.packed

        def write(tables: Tables) -> bool:
            done = tables.swap_blocks(row.id, {first: cold.head}, packed)
            if done:
                tables.cold.put(row.id, end)
            return done

        if not self._env.write(write):
            return mark  # it has changed meanwhile
        self._env.compressed[tp] = end
        self.blocks += 1
        self.before_bytes += cold.plain_bytes
        self.after_bytes += len(packed)
        return end

    def _cold(self, number: int, packed: memoryview) -> _Cold | None:
        """Return the block, if it is cold, compressed if that is worthwhile."""
        head, size_bytes = header_of(packed), plain_size(packed)
        if head.newest_us > self._now_us() - self._after_us:
            return None
        if head.codec == PLAIN and SMALL_BLOCK_BYTES <= size_bytes <= MOST_BYTES:
            unique = Block.parse(packed).head
            return _Cold(head.records, unique, size_bytes, compressed(packed, number))
        return _Cold(head.records, b"", size_bytes, None)

"""Merging small blocks into one worth reading, a step at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dafka_core.storage import rows
from dafka_core.storage.block import Block
from dafka_core.storage.block_builder import MAX_BLOCK_BYTES, merge
from dafka_core.storage.block_writer import swap_blocks
from dafka_core.storage.environment import Environment
from dafka_core.storage.merge_planner import MergeCandidate, MergePlan, MergePlanner
from dafka_core.storage.storage_errors import damaged_block
from dafka_core.storage.tables import name_of, staged_from

if TYPE_CHECKING:
    from dafka_core.storage.environment import Txn

SCAN_BLOCKS = 4096
"""Blocks looked at in a step of the search that follows opening: a few milliseconds."""


class BlockMerger:
    """Merges what ``notes`` tell of, and, to begin with, looks for what they do not know yet.

    A block is read, checked and assembled outside the write transaction, so that appends go on
    meanwhile.  The write transaction then takes out the blocks and puts in the one made of them,
    if they are still the same: whoever reads sees either, and so does whoever opens the log after
    a kill.
    """

    def __init__(self, env: Environment, notes: MergePlanner) -> None:
        self._env = env
        self._notes = notes
        self._lock = threading.Lock()
        self._scanned: bytes | None = b""
        self._buffer = bytearray()

    def step(self) -> bool:
        """Does a little; False when there was nothing to do.

        Raises:
            ClosedError: the log is closed.
            StoreError: a block is damaged (it is left alone from then on), or the disk cannot
                take it.
        """
        with self._lock:
            plan = self._notes.plan()
            if plan is None:
                return self._scan()
            self._merge(plan)
            return True

    def _merge(self, plan: MergePlan) -> None:
        block_keys = [rows.BLOCK.pack(plan.partition_id, block.first) for block in plan.blocks]
        if not self._buffer:
            self._buffer = bytearray(MAX_BLOCK_BYTES)
        with self._env.reading() as txn:
            blocks = self._read(txn, plan, block_keys)
            if blocks is None:
                return
            heads = [block.head for block in blocks]
            merged = merge(blocks, self._buffer)
            count = sum(block.count for block in blocks)
            blocks.clear()  # they are valid inside the transaction only

        def swap(txn: Txn) -> bool:
            return swap_blocks(self._env, txn, block_keys, heads, merged)

        # When they have changed meanwhile, the next step sees how.
        if self._env.write(swap):
            self._notes.drop(plan.partition_id, plan.blocks)
            self._notes.add(
                plan.partition_id, MergeCandidate(plan.blocks[0].first, count, len(merged))
            )

    def _read(self, txn: Txn, plan: MergePlan, block_keys: Sequence[bytes]) -> list[Block] | None:
        """The blocks as the plan has them; None, and better notes, if they are otherwise."""
        blocks, as_planned = [], True
        for noted, key in zip(plan.blocks, block_keys, strict=True):
            packed = txn.get(key, db=self._env.blocks)
            found = None
            if packed is not None:
                try:
                    block = Block.parse(packed)
                except ValueError as error:
                    self._notes.drop(plan.partition_id, [noted])
                    names = name_of(self._env, txn, plan.partition_id)
                    raise damaged_block(
                        self._env.directory, names, noted.first, str(error)
                    ) from error
                blocks.append(block)
                found = MergeCandidate(noted.first, block.count, len(packed))
            if found != noted:
                as_planned = False
                self._notes.drop(plan.partition_id, [noted])
                if found is not None:
                    self._notes.add(plan.partition_id, found)
        return blocks if as_planned else None

    def _scan(self) -> bool:
        """Looks for small blocks that were there when the log was opened; False when through.

        The last block of a partition is not noted: the next append does that, or extends it.
        What is staged is noted when it is committed, and stays as it is until then.
        """
        if self._scanned is None:
            return False
        before: tuple[int, int, int] | None = None
        staged = 0
        with self._env.reading() as txn:
            cursor = txn.cursor(self._env.blocks)
            cursor.set_range(self._scanned)
            key = None
            for seen, (key, packed) in enumerate(cursor.iternext()):
                partition_id, first = rows.BLOCK.unpack(key)
                if before is None or before[0] != partition_id:
                    staged = staged_from(self._env, txn, partition_id)
                elif first < staged:
                    block = MergeCandidate(before[1], first - before[1], before[2])
                    self._notes.add(partition_id, block, known=False)
                if seen == SCAN_BLOCKS:
                    break
                before = partition_id, first, len(packed)
            else:
                key = None
            self._scanned = None if key is None else bytes(key)
        return True

"""Blocks for the tests."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_core.storage.block_builder import build_blocks


def pack(values: Sequence[bytes], timestamp_us: int) -> bytearray:
    """The values as one block, all written at ``timestamp_us``."""
    (built,) = build_blocks(values, timestamp_us)
    return bytearray(built.packed)

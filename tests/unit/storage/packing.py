"""Blocks for the tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from dafka_core.model.timestamps import stamped_once
from dafka_core.model.values import Longs
from dafka_core.storage.block import build_blocks

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
TIMES_US = st.integers(-(2**63), 2**63 - 1)


def pack(values: Sequence[bytes], timestamp_us: int) -> bytearray:
    """The values as one block, all written at ``timestamp_us``."""
    ((_, packed),) = build_blocks(values, stamped_once(len(values), timestamp_us), timestamp_us)
    return bytearray(packed)


def each_time(times: Longs | None) -> list[int]:
    """When each of the records was written."""
    assert times is not None
    told: list[int] = np.repeat(times[:, 1], times[:, 0]).tolist()
    return told

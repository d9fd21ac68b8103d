"""Blocks that are kept in memory are what the log has."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.errors import StoreError
from dafka_core.storage import Log, block
from dafka_core.storage.rows import BLOCK_KEY
from tests.integration.storage.damage import change, three_blocks
from tests.integration.storage.processes import TP as OF_BLOCKS
from tests.integration.storage.test_log import TP, large, put, values_of


def test_a_block_that_has_grown_since_it_was_read_is_read_again(store: Log) -> None:
    for number in range(20):
        put(store, [b"%d" % number])
        expected = [b"%d" % n for n in range(number + 1)]
        assert values_of(store.read(TP, 0, 99)) == expected
        assert values_of(store.read(TP, number, 99)) == expected[-1:]


def test_reading_more_than_is_kept_in_memory(store: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "CACHE_BYTES", 250_000)
    for first in range(0, 1000, 100):
        put(store, large(100, first))
    put(store, [b"x" * 300_000])
    for _ in range(2):
        found = values_of(store.read(TP, 0, 2000))
        assert found == [*large(1000), b"x" * 300_000]


OWN = BLOCK_KEY.pack(0, 100)


@pytest.mark.parametrize(
    ("other", "starts"),
    [
        *((BLOCK_KEY.pack(0, first), (0, 95, 120, 180)) for first in (90, 101, 110)),
        (OWN[:-3], (0,)),
    ],
)
def test_a_block_under_another_key_is_refused(
    tmp_path: Path, other: bytes, starts: tuple[int, ...]
) -> None:
    """Its checksum covers its content, not its place."""
    values = three_blocks(tmp_path)
    with Log(tmp_path) as log, log.snapshot() as tables:
        blocks = {bytes(key): bytes(block) for key, block in tables.entries(2)}
    change(tmp_path, b"blocks", OWN, None)
    change(tmp_path, b"blocks", other, blocks[OWN])
    with Log(tmp_path) as log, log.snapshot() as snapshot:
        for start in starts:
            for read in (log.read, snapshot.read):
                with pytest.raises(StoreError, match="cannot be read"):
                    list(read(OF_BLOCKS, start, 300))
        assert values_of(log.read(OF_BLOCKS, 200, 300)) == values[200:]

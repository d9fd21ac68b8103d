"""Blocks that are kept in memory are what the log has."""

from __future__ import annotations

import pytest

from dafka_core.storage import Log, block_reader
from tests.integration.storage.test_log import TP, large, put, values_of


def test_a_block_that_has_grown_since_it_was_read_is_read_again(store: Log) -> None:
    for number in range(20):
        put(store, [b"%d" % number])
        expected = [b"%d" % n for n in range(number + 1)]
        assert values_of(store.read(TP, 0, 99)) == expected
        assert values_of(store.read(TP, number, 99)) == expected[-1:]


def test_reading_more_than_is_kept_in_memory(store: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_reader, "CACHE_BYTES", 250_000)
    for first in range(0, 1000, 100):
        put(store, large(100, first))
    put(store, [b"x" * 300_000])
    for _ in range(2):
        found = values_of(store.read(TP, 0, 2000))
        assert found == [*large(1000), b"x" * 300_000]

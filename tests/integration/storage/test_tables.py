"""Blocks as directories have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.records import RecordBatch
from dafka_core.storage import Log, block_builder
from tests.integration.storage.processes import TP


def test_larger_blocks_of_earlier_versions_are_read_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%07d" % number for number in range(200_000)]
    with monkeypatch.context() as patch, Log(tmp_path) as store:
        patch.setattr(block_builder, "MAX_BLOCK_RECORDS", 1 << 30)
        patch.setattr(block_builder, "MAX_BLOCK_BYTES", 32 << 20)
        store.append([RecordBatch.of(TP, 0, values)])
        store.append([RecordBatch.of(TP, 200_000, values[:9_000])])
    with Log(tmp_path) as store:
        store.append([RecordBatch.of(TP, 209_000, values[:25_000])])
        while store.merge_step():
            pass
        with store.snapshot() as snapshot:
            batches = list(snapshot.read(TP, 0, 300_000))
        assert [batch.count for batch in batches] == [200_000, 34_000]
        assert [value for batch in batches for value in batch.values] == (
            values + values[:9_000] + values[:25_000]
        )
        assert store.read(TP, 125_000, 125_001)[0].values == [values[125_000]]

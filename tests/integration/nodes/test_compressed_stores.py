"""Stores that compress: every way of reading returns the same records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, Producer, Store
from dafka_core.errors import ConfigError
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.storage import block_compressor
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S

Consume = Callable[..., Consumer]
Produce = Callable[..., Producer]

SIZES: dict[str, Any] = {"max_records": 10_000, "max_bytes": 1 << 20}


def test_all_ways_of_reading_see_the_same_records(
    tower: str,
    produce: Produce,
    consume: Consume,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_compressor, "SCAN_INTERVAL_S", 0.1)
    values = [b"%d " % number * 100 for number in range(4_000)]
    options: dict[str, Any] = {"tower": tower, "compress": "other=none *=zstd"}
    with Store(tmp_path / "a", **options, compress_after_s=0) as store:
        producer = produce("t")
        for start in range(0, len(values), 1_000):
            producer.publish_many(values[start : start + 1_000])
            producer.flush(PATIENCE_S)
        wait_until(lambda: store.compressor.blocks, "some are compressed")
        (info,) = store.log.partitions()
        wait_until(lambda: store.log.statistics(info.tp)[5] < 500_000, "most are")  # type: ignore[index]
        location = StoreLocation(store.address, store.locations)
        with StoreClient(location) as client:
            read = client.read(info.tp, 0, info.end, times=True, timeout_s=PATIENCE_S, **SIZES)
            assert [value for batch in read for value in batch.values] == values
            logs = LocalLogs()
            local = logs.open(client.describe(timeout_s=PATIENCE_S))
            assert local is not None
            read = local.records(client, GetRequest((RecordRange(*info.tp, 0, info.end),)))
            assert [value for batch in read for value in batch.values] == values
            (facts,) = client.facts("t", timeout_s=PATIENCE_S)
            assert facts.bytes < 500_000
            logs.close()
        records = iter(consume("t", start="earliest"))
        assert [next(records).value for _ in values] == values
        with Store(tmp_path / "b", tower=tower) as other:
            wait_until(lambda: other.log.partitions() == [info], "the other store has all")
            batches = other.log.read(info.tp, 0, info.end)
            assert [value for batch in batches for value in batch.values] == values


def test_an_invalid_rule_is_refused(tower: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"option 'compress' = 't=gzip': must be PATTERN=zstd"):
        Store(tmp_path / "a", tower=tower, compress="t=gzip")

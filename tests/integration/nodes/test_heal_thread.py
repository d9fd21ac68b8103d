"""The thread that replaces damaged records, beside other damage."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from dafka_core.errors import StoreError
from dafka_core.model.epochs import Epoch
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.maintenance import HealThread
from dafka_core.storage import Log
from dafka_core.storage.rows import partition_key
from dafka_core.testing import wait_until
from tests.integration.storage.damage import change

FIRST, SECOND = (TopicPartition("t", name) for name in ("1", "2"))
VALUE = b"a value of both " * 100


def test_an_unreadable_history_keeps_no_other_partition_from_its_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = Epoch(1, 7, 0, 0, 0)
    with Log(tmp_path) as log:
        for tp in (FIRST, SECOND):
            for epoch in (life, Epoch(2, 8, 0, 1, life.digest)):
                log.append([replace(RecordBatch.of(tp, epoch.start, [VALUE]), epoch=epoch)])
    key = b"lives of " + xxhash.xxh3_128_digest(partition_key(FIRST))
    change(tmp_path, b"meta", key, bytes(50))
    data = tmp_path / "data.mdb"
    data.write_bytes(data.read_bytes().replace(VALUE, VALUE.upper()))
    with Log(tmp_path) as log, closing(HealThread(log, list)) as thread:
        log.healer.damaged.add(FIRST)
        with pytest.raises(StoreError, match="cannot be read"):
            log.read(SECOND, 0, 1)
        wait_until(lambda: f"{SECOND}: damaged records 0 to 0 are not replaced" in caplog.text)
        assert log.healer.damaged == {FIRST, SECOND}
        assert thread.failed_count == 1

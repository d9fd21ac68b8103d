"""A log of three blocks, and rows changed behind the log's back."""

from __future__ import annotations

from pathlib import Path

import lmdb

from dafka_core.records import RecordBatch
from dafka_core.storage import Log
from tests.integration.storage import appender
from tests.integration.storage.processes import TP


def three_blocks(directory: Path) -> list[bytes]:
    values = [appender.value(number).ljust(1000, b".") for number in range(300)]
    with Log(directory) as store:
        for first in range(0, 300, 100):
            store.append([RecordBatch.of(TP, first, values[first : first + 100])])
    return values


def change(directory: Path, table: bytes, key: bytes, value: bytes | None) -> None:
    """Changes a row behind the log's back."""
    with lmdb.Environment(str(directory), max_dbs=3) as env:
        opened = env.open_db(table, create=False)
        with env.begin(write=True, db=opened) as txn:
            if value is None:
                assert txn.delete(key)
            else:
                txn.put(key, value)

"""A transaction counts at least as many bytes as the file grows by."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from dafka_core.storage.transaction import CountedTransaction


@pytest.mark.parametrize(
    ("count", "size_bytes"), [(1, 1), (1_000, 100), (300, 5_000), (3, 1 << 20)]
)
def test_no_less_is_counted_than_is_written(tmp_path: Path, count: int, size_bytes: int) -> None:
    with lmdb.Environment(str(tmp_path), map_size=1 << 30, max_dbs=1) as env:
        table = env.open_db(b"table")
        before = env.info()["last_pgno"]
        with env.begin(write=True, buffers=True) as txn:
            counted = CountedTransaction(txn, tmp_path)
            for number in range(count):
                counted.put(b"%d" % number, bytes(size_bytes), db=table)
        grown_bytes = (env.info()["last_pgno"] - before) * env.stat()["psize"]
        assert count * size_bytes <= grown_bytes <= counted.written_bytes

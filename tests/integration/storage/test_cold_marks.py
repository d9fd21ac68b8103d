"""How far a partition was looked at, and the format of the log."""

from __future__ import annotations

from pathlib import Path

from dafka_core.storage.cold_marks import FORMAT, FORMAT_AT_FIRST, ColdMarks
from dafka_core.storage.environment import DEFAULT_MAP_BYTES, Environment
from dafka_core.storage.tables import Tables
from tests.integration.storage.damage import change


def test_marks_are_kept_and_damaged_ones_are_forgotten(tmp_path: Path) -> None:
    def put(tables: Tables) -> ColdMarks:
        assert tables.cold.of(7) == 0
        tables.cold.put(7, 100, compressed=False)
        assert tables.cold.log_format == FORMAT_AT_FIRST
        tables.cold.put(8, 200, compressed=True)
        return tables.cold

    env = Environment(tmp_path, map_size_bytes=DEFAULT_MAP_BYTES)
    env.write(put)
    env.close()
    change(tmp_path, b"meta", b"cold of " + (8).to_bytes(8, "big"), b"x" * 16)
    env = Environment(tmp_path, map_size_bytes=DEFAULT_MAP_BYTES)
    with env.reading() as tables:
        assert (tables.cold.of(7), tables.cold.of(8)) == (100, 0)
        assert tables.cold.log_format == FORMAT
    env.close()

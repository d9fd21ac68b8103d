"""Files of an archive that follow each other are one source."""

from __future__ import annotations

from pathlib import Path

from dafka_core.epochs import NO_LIFE
from dafka_core.records import PartitionInfo
from dafka_spark.source.archive_source import archive_sources, sources_now
from dafka_spark.source.range_planner import OffsetRange
from tests.integration.archive.records import A, B, archived


def test_a_source_for_each_run_of_files(tmp_path: Path) -> None:
    archived(tmp_path, A, 30)
    archived(tmp_path, A, 60, start=40)
    found = sources_now(str(tmp_path), A, 0, 100)
    assert [each.known for each in found] == [range(30), range(40, 60)]
    assert [each.known for each in sources_now(str(tmp_path), A, 25, 40)] == [range(24, 30)]
    assert sources_now(str(tmp_path), B, 0, 100) == archive_sources(str(tmp_path), B, []) == []
    assert found[1].life_before(60) == NO_LIFE
    assert found[0].name == f"the archive at {tmp_path}"
    [first, second] = found[1].read(OffsetRange(*A, 45, 50))
    assert (first.offset, first.end, second.end) == (45, 48, 50)


def test_it_says_what_there_is(tmp_path: Path) -> None:
    archived(tmp_path, A, 30)
    [source] = sources_now(str(tmp_path), A, 0, 30)
    assert source.heads(A.topic) == [PartitionInfo(*A, 0, 30)]
    assert source.heads("other") == []

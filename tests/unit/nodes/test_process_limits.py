"""The memory limits of a process's control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.nodes.process_limits import ENOUGH_BYTES, memory_limit, warn_of_low_memory

MIB = 1 << 20


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    directory = tmp_path / "cgroup"
    for name, limit in {
        "memory.max": "",
        "app/memory.max": f"{512 * MIB}",
        "app/store/memory.max": "max",
        "app/box/memory.max": f"{128 * MIB}",
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    return directory


@pytest.mark.parametrize(
    ("own", "limit"),
    [
        ("0::/app/store", 512 * MIB),  # that of the group above it
        ("0::/", None),
        ("0::/elsewhere/app", None),
        ("4:memory:/app/store\n0::/app/box", 128 * MIB),  # not of the first version
        ("", None),
    ],
)
def test_the_lowest_limit_counts(tmp_path: Path, groups: Path, own: str, limit: int | None) -> None:
    (tmp_path / "own").write_text(own)
    assert memory_limit(tmp_path / "own", groups) == limit


def test_a_process_without_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "own", tmp_path) is None


@pytest.mark.parametrize(
    ("limit", "is_logged"), [(None, False), (ENOUGH_BYTES, False), (300 * MIB, True)]
)
def test_a_store_with_little_memory_logs_a_warning(
    limit: int | None, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_low_memory(limit)
    assert ("may use 300 MiB of memory" in caplog.text) is is_logged

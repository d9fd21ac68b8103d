"""The kernel's memory limits of a process, in both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.nodes.process_limits import ENOUGH_BYTES, memory_limit, warn_of_low_memory

MIB = 1 << 20
NONE_OF_VERSION_1 = "9223372036854771712"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    directory = tmp_path / "cgroup"
    for name, limit in {
        "memory.max": "",
        "app/memory.max": f"{512 * MIB}",
        "app/store/memory.max": "max",
        "memory/memory.limit_in_bytes": NONE_OF_VERSION_1,
        "memory/box/memory.limit_in_bytes": f"{128 * MIB}",
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
        ("12:cpu,cpuacct:/app\n4:memory:/box", 128 * MIB),
        ("4:memory:/docker/1234", int(NONE_OF_VERSION_1)),  # only the topmost is seen here
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

"""The memory limits of a process's control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.nodes.process_limits import ENOUGH_BYTES, warn_of_low_memory

MIB = 1 << 20


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    directory = tmp_path / "cgroup"
    for name, limit in {
        "memory.max": "",
        "app/memory.max": f"{512 * MIB}",
        "app/store/memory.max": "max",
        "app/box/memory.max": f"{128 * MIB}",
        "enough/memory.max": f"{ENOUGH_BYTES}",
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    return directory


@pytest.mark.parametrize(
    ("own", "limit_mib"),
    [
        ("0::/app/store", 512),  # that of the group above it
        ("0::/", None),
        ("0::/enough", None),
        ("0::/elsewhere/app", None),
        ("4:memory:/app/store\n0::/app/box", 128),  # not of the first version
        ("", None),
    ],
)
def test_a_store_with_little_memory_logs_a_warning(
    tmp_path: Path, groups: Path, own: str, limit_mib: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "own").write_text(own)
    warn_of_low_memory(tmp_path / "own", groups)
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == (limit_mib is not None)
    assert all(f"may use {limit_mib} MiB of memory" in line for line in said)


def test_a_process_without_groups_has_no_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_low_memory(tmp_path / "own", tmp_path)
    assert not caplog.records

"""Forked children: what they inherit refuses to work, and is left to the parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from dafka_core import Store
from dafka_core.testing import wait_until
from tests.integration.nodes.content import stored
from tests.integration.nodes.peers import PATIENCE_S

ROOT = Path(__file__).parents[3]


def started(tower: str, directory: Path, which: str) -> subprocess.Popen[str]:
    """The program, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.nodes.forks", tower, str(directory), which],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def said(tower: str, directory: Path, which: str) -> list[str]:
    """Return the lines of a program, which must exit with 0."""
    with started(tower, directory, which) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S * 3)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def test_inherited_nodes_refuse_to_work(tower: str, store: Store, tmp_path: Path) -> None:
    lines = said(tower, tmp_path / "others", "uses")
    kinds = ["producer"] * 3 + ["Producer"] * 2 + ["consumer"] * 5 + ["reader"]
    kinds += ["dafka-store", "dafka-tower", "store's log", "LocalLogs"]
    assert lines == [f"refused {kind}" for kind in kinds]
    wait_until(lambda: len(store.log.partitions("t")) == 2)
    held = [stored(store, "t", info.partition) for info in store.log.partitions("t")]
    assert sorted(held) == [[b"0", b"1", b"2"], [b"own"]]


def test_a_child_does_not_wait_for_a_lock_of_its_parents_threads(
    tower: str, tmp_path: Path
) -> None:
    assert said(tower, tmp_path, "waits") == ["refused producer"]


def test_children_of_multiprocessing(tower: str, store: Store, tmp_path: Path) -> None:
    lines = said(tower, tmp_path / "others", "multiprocess")
    assert lines[0] == "refused producer"
    assert lines[1].startswith("a Producer cannot be pickled")
    assert sorted(info.end for info in store.log.partitions("t")) == [1, 1, 1]


def test_a_child_holds_nothing_when_its_parent_is_gone(tower: str, tmp_path: Path) -> None:
    with started(tower, tmp_path, "holds") as process:
        try:
            assert process.stdout is not None
            child, hub = process.stdout.readline().split()
            process.kill()
            process.wait(PATIENCE_S)
            os.kill(int(child), 0)  # lives
            with Store(tmp_path / "store", tower=tower):
                pass
            host, _, port = hub.split(":")

            def is_gone() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex((host, int(port))) != 0

            wait_until(is_gone, "the parent's cluster to end")
        finally:
            process.kill()
            os.kill(int(child), signal.SIGKILL)

"""Forked children: what they inherit refuses to work, and is left to the parent."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, Producer, Reader, Store, Tower
from dafka_core.nodes.node import Node
from dafka_core.testing import wait_until
from tests.integration.nodes.content import stored
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S

ROOT = Path(__file__).parents[3]


def started(tower: str, directory: Path, which: str) -> subprocess.Popen[str]:
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


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("dafka")}


def drop(
    nodes: list[Any], before: set[threading.Thread], collect: Callable[[], object] = list
) -> None:
    """Lets go of nodes, and waits for the end of their threads."""
    nodes.clear()

    def is_over() -> bool:
        collect()  # again and again: a round of the loop may just hold the node
        return not threads() - before  # those of other tests may end meanwhile

    wait_until(is_over, "the node's threads to end")


@pytest.mark.parametrize(
    "make",
    [
        lambda tower, _: Tower(**ANY_PORTS),
        lambda tower, _: Producer("t", tower=tower),
        lambda tower, _: Consumer(tower=tower),
        lambda tower, _: Reader(tower=tower),
        lambda tower, directory: Store(directory, tower=tower),
    ],
)
def test_a_dropped_node_is_closed(
    tower: str, tmp_path: Path, make: Callable[[str, Path], Node]
) -> None:
    before = threads()
    nodes = [make(tower, tmp_path)]
    kind, gone = type(nodes[0]).__name__, weakref.ref(nodes[0])
    assert threads() - before
    with pytest.warns(ResourceWarning, match=f"unclosed {kind}: use 'with', or close"):
        drop(nodes, before)  # no cycle keeps it until garbage is collected
    wait_until(lambda: gone() is None, "the node to be collected")
    with make(tower, tmp_path):
        pass  # also the store's directory is free again


def test_a_node_in_a_cycle_is_closed(tower: str, store: Store) -> None:
    before = threads()
    producer = Producer("t", tower=tower)
    address, nodes = producer.address, [producer]
    producer.publish_many([b"0", b"1"])
    producer.itself = producer  # type: ignore[attr-defined]
    del producer
    with pytest.warns(ResourceWarning, match="unclosed Producer"):
        drop(nodes, before, gc.collect)
    assert stored(store, "t", address) == [b"0", b"1"]


def test_a_closed_node_is_dropped_in_silence(tower: str) -> None:
    with Consumer(tower=tower) as consumer:
        gone = weakref.ref(consumer)
    del consumer
    assert gone() is None


def test_lost_records_of_a_dropped_producer_are_logged(
    tower: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = threading.Event()  # this process's end shall not fail for it
    monkeypatch.setattr("dafka_core.nodes.node._lost", lost)
    before = threads()
    producer = Producer("t", tower=tower, close_timeout_s=0.1)
    address, nodes = producer.address, [producer]
    producer.publish_many([b"0", b"1"])
    del producer
    with pytest.warns(ResourceWarning):
        drop(nodes, before)
    wait_until(lambda: caplog.messages)
    [message] = caplog.messages
    assert message.startswith(f"topic 't', partition {address}: 2 records are not acknowledged")
    wait_until(lost.is_set)


def test_a_failed_constructor_gives_no_warning(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no_such_option"):
        Store(tmp_path, no_such_option=1)

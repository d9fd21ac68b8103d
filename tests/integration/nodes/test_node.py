"""Nodes that the application drops without closing them."""

from __future__ import annotations

import gc
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
from tests.integration.nodes.peers import ANY_PORTS


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

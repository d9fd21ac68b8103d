"""A look is complete, or says who is missing from it."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Producer, Reader, Store
from dafka_core.errors import InvalidRequestError
from dafka_core.nodes.store_identity import restore
from dafka_core.protocol import timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import ConsumerHello, DirectRecord, StoresKnown
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S as MOST_S
from tests.integration.nodes.peers import RawPeer

Read = Callable[..., Reader]

QUICK: dict[str, Any] = {"beacon_interval_ms": 50, "peer_expiry_ms": 500}


def test_a_node_that_never_connects_costs_its_patience_once_and_is_named(
    read: Read, store: Store, raw: Callable[..., RawPeer], caplog: pytest.LogCaptureFixture
) -> None:
    silent = raw()  # it subscribes to nothing that is its own: it might be a store
    silent.wait_until_met(store.address)
    with caplog.at_level(logging.WARNING, "dafka.reader"):
        reader = read()
        begun_s = time.monotonic()
        assert reader.partitions(timeout_s=MOST_S) == []
        assert time.monotonic() - begun_s >= timing.STORE_TIMEOUT_S - 0.5
        wait_until(lambda: silent.address in caplog.text, "a word on who is missing")
    caplog.clear()
    reader.partitions(timeout_s=MOST_S)
    assert caplog.text == ""


def test_nodes_that_are_no_stores_are_not_waited_for(
    read: Read, tower: str, store: Store, raw: Callable[..., RawPeer]
) -> None:
    c_node = raw()
    c_node.subscribe(subscription(DirectRecord, c_node.address))
    c_node.wait_until_met(store.address)
    with Producer("t", tower=tower):
        directory = read()._role.directory
        wait_until(lambda: directory.stores, "the store")
        wait_until(lambda: not directory.discovery.waits(time.monotonic()), "who they are")
    assert not directory.discovery.outcomes


def test_stores_keep_whom_they_have_met_and_tell_requestors(
    tower: str, open_nodes: ExitStack, tmp_path: Path, raw: Callable[..., RawPeer]
) -> None:
    first = open_nodes.enter_context(Store(tmp_path / "1", tower=tower, **QUICK))
    requestor = raw()
    requestor.subscribe(subscription(StoresKnown, requestor.address))
    (told,) = requestor.wait_for(StoresKnown)
    assert (told.store, told.entries) == (first.address, ())
    begun_us = time.time_ns() // 1000
    with Store(tmp_path / "2", tower=tower, **QUICK) as second:
        wait_until(first.log.met, "the other store on the disk")
    (met,) = first.log.met()
    assert (met.store, met.endpoint[:6]) == (second.address, "tcp://")
    assert met.heard_us >= begun_us
    # When it is lost that is written down, and both still know each other after a start.
    wait_until(lambda: first.log.met()[0].heard_us > met.heard_us, "the time of its loss")
    first.close()
    again = open_nodes.enter_context(Store(tmp_path / "1", tower=tower))
    other = raw()
    other.subscribe(subscription(StoresKnown, other.address))
    other.wait_until_subscribed(subscription(ConsumerHello, again.address))
    (told,) = other.wait_for(StoresKnown)[:1]
    assert [(each.store, each.endpoint) for each in told.entries] == [(met.store, met.endpoint)]


def forgets(store: Store, other: str) -> bool:
    """Has a store forget another one; False where that one is there."""
    try:
        store.append_queue.forget(other).result(MOST_S)
    except InvalidRequestError:
        return False
    return True


def test_two_stores_that_know_each_other_are_both_started_again(
    tower: str, read: Read, tmp_path: Path
) -> None:
    names = ("1", "2")
    with ExitStack() as nodes:
        first, second = (nodes.enter_context(Store(tmp_path / n, tower=tower)) for n in names)
        wait_until(lambda: first.log.met() and second.log.met(), "both on both disks")
    with ExitStack() as nodes:
        for name in names:
            nodes.enter_context(Store(tmp_path / name, tower=tower))
        reader = read()
        assert reader.missing_stores(timeout_s=MOST_S) == []
        assert set(reader.stores()) == {first.address, second.address}


def test_a_copy_of_a_directory_is_a_store_that_the_others_know(
    tower: str, read: Read, tmp_path: Path, open_nodes: ExitStack
) -> None:
    with Store(tmp_path / "1", tower=tower) as original:
        pass
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    copy_address = restore(tmp_path / "2")
    original = Store(tmp_path / "1", tower=tower, **QUICK)
    with original, Store(tmp_path / "2", tower=tower, **QUICK) as copy:
        assert copy.address == copy_address
        reader = read(**QUICK)
        assert reader.missing_stores(timeout_s=MOST_S) == []
        wait_until(copy.log.met, "the original on the copy's disk")
        original.close()
        wait_until(lambda: reader.missing_stores(timeout_s=MOST_S), "its absence")
        (missing,) = reader.missing_stores(timeout_s=MOST_S)
        assert missing.store == original.address
        wait_until(lambda: forgets(copy, original.address), "the copy to have lost it, too")
        assert reader.missing_stores(timeout_s=MOST_S) == []
        with Store(tmp_path / "1", tower=tower) as again:
            wait_until(lambda: [each.store for each in copy.log.met()] == [again.address])
            assert not forgets(copy, again.address)

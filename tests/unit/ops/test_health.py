"""A node's problems are reported while they last, by severity."""

import time
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dafka_core.errors import StoreError
from dafka_core.nodes.node import Node
from dafka_core.nodes.store_loop import LOW_BYTES, SLOW_S, Disk, DiskWatch
from dafka_core.ops import health
from dafka_core.ops.findings import Finding, Severity
from dafka_core.ops.health import FULL_BYTES, HANGS_S, SILENT_S, STUCK_S


class FakeStore:
    """The inputs of ``health`` for a store; each test changes one of them."""

    kind = "store"
    is_open = True

    def __init__(self, directory: Path) -> None:
        now = time.monotonic()
        self.heard_at = {"h:1:2": now}
        self.towers = SimpleNamespace(heard_at=self.heard_at, away_s=SILENT_S)
        self.peers = SimpleNamespace(
            tower_found=True, towers=self.towers, table=["peer"], beacon_due=now + 1.0
        )
        self.mesh = SimpleNamespace(kind="store", failure=None, peers=self.peers)
        self.disk_watch = DiskWatch(directory)
        self.flight: Any = None
        self.error: Exception | None = None
        self.doubt = ""
        clock = SimpleNamespace(doubt=lambda: self.doubt)
        healer = SimpleNamespace(damaged=set())
        self.log = SimpleNamespace(check_in_place=self._check, clock=clock, healer=healer)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def findings(self) -> list[Finding]:
        return [*health.of_node(cast("Node", self))]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    monkeypatch.setattr(Disk, "of", lambda directory: Disk(100 * LOW_BYTES, 50 * LOW_BYTES))
    return FakeStore(tmp_path)


def judged(store: FakeStore) -> tuple[bool, bool, list[str]]:
    """Return liveness, readiness, and the problems."""
    found = store.findings()
    bad = [str(each) for each in found if each.severity is not Severity.OK]
    return health.is_alive(found), health.is_ready(found), bad


def test_a_store_that_is_well_has_nothing_to_complain_of(store: FakeStore) -> None:
    assert judged(store) == (True, True, [])


@pytest.mark.parametrize(
    ("fact", "change", "alive", "ready", "why"),
    [
        ("peers.tower_found", lambda _: False, True, False, "no tower responds at h:1:2"),
        (
            "heard_at",
            lambda heard_at: heard_at.update({"h:1:2": heard_at["h:1:2"] - SILENT_S - 1}),
            True,
            True,
            "tower h:1:2 has sent nothing for 16 s",
        ),
        (
            "peers.beacon_due",
            lambda due: due - HANGS_S - 2,
            False,
            False,
            "loop has been hanging for 31 s",
        ),
        ("mesh.failure", lambda _: StoreError("d", "it is gone"), False, False, "it is gone"),
        ("is_open", lambda _: False, False, False, "the store is closed; start it again"),
        ("error", lambda _: StoreError("d", "it was removed"), True, False, "it was removed"),
        ("doubt", lambda _: "it is ahead", True, True, "it deletes nothing by age: it is ahead"),
        ("log.healer.damaged", lambda damaged: damaged.add("t/p"), True, True, "in 1 partition"),
        (
            "flight",
            lambda _: SimpleNamespace(closing=SimpleNamespace(is_set=lambda: True)),
            True,
            False,
            "its Flight service has stopped",
        ),
    ],
)
def test_one_fact_that_is_wrong_is_reported(
    store: FakeStore, fact: str, change: Any, alive: bool, ready: bool, why: str
) -> None:
    *path, name = fact.split(".")
    owner = reduce(getattr, path, cast("Any", store))
    changed = change(getattr(owner, name))
    if changed is not None:  # else it has changed what is there
        setattr(owner, name, changed)
    is_alive, is_ready, (said,) = judged(store)
    assert (is_alive, is_ready) == (alive, ready)
    assert why in said


@pytest.mark.parametrize(("since_s", "ready"), [(SLOW_S, True), (STUCK_S + 1, False)])
def test_a_write_that_does_not_end_is_said_while_it_lasts(
    store: FakeStore, since_s: float, ready: bool
) -> None:
    store.disk_watch.begun_at = time.monotonic() - since_s
    assert judged(store)[:2] == (True, ready)
    if not ready:
        assert "has taken 11 s so far" in judged(store)[2][0]


def test_a_disk_that_was_slow_is_a_warning_for_a_minute(store: FakeStore) -> None:
    store.disk_watch.slow_at = time.monotonic() - 30.0
    alive, ready, (why,) = judged(store)
    assert (alive, ready) == (True, True)
    assert "took more than 1 s" in why
    store.disk_watch.slow_at -= 60.0
    assert judged(store)[2] == []


@pytest.mark.parametrize(
    ("free_bytes", "ready", "says"),
    [
        (FULL_BYTES - 1, False, "the disk is full"),
        (FULL_BYTES, True, "the disk is nearly full"),
        (2 * LOW_BYTES, True, ""),
    ],
)
def test_a_disk_is_nearly_full_before_it_is_full(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, free_bytes: int, ready: bool, says: str
) -> None:
    monkeypatch.setattr(Disk, "of", lambda directory: Disk(100 * LOW_BYTES, free_bytes))
    alive, is_ready, bad = judged(store)
    assert (alive, is_ready) == (True, ready)
    assert [says in each for each in bad] == [True] * bool(says)


def test_a_log_that_writes_no_more_ends_its_store(store: FakeStore) -> None:
    store.disk_watch.fail(StoreError("d", "No space left on device"))
    alive, ready, (why,) = judged(store)
    assert (alive, ready) == (False, False)
    assert "No space left on device" in why

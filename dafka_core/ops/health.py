"""Health and readiness of nodes, as findings like those of ``dafka doctor``.

The checks never block: they also run when a node or its disk hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from dafka_core.errors import DafkaError
from dafka_core.nodes.store_loop import SLOW_S, Disk
from dafka_core.ops.checks import clock_doubt, damage
from dafka_core.ops.findings import LIFE, Finding, ok, problem, problems, warning
from dafka_core.ops.store_extension import ExtensionNode
from dafka_core.security.throttles import REPEAT_AFTER_S

if TYPE_CHECKING:
    from dafka_core.nodes.mesh import Mesh
    from dafka_core.nodes.node import Node
    from dafka_core.nodes.producer import Producer
    from dafka_core.nodes.store import Store
    from dafka_core.nodes.tower import Tower

HANGS_S: Final = 30.0
"""A loop with an iteration overdue by this time hangs. A store with a million partitions has
iterations of some seconds."""

SILENT_S: Final = 15.0
"""A tower that sends nothing for this time is away; it returns beacons each second."""

STUCK_S: Final = 10.0  # a write that takes longer is reported while it lasts: producers wait for it

FULL_BYTES: Final = 64 << 20
"""A disk with less free space counts as full: it is the size of the largest write."""


def of_node(node: Node) -> Iterator[Finding]:
    """Check a node of any kind."""
    if not node.is_open:
        yield problem(LIFE, f"the {node.kind} is closed", "start it again")
        return
    if isinstance(node, ExtensionNode):
        yield from node.findings()
    else:
        yield from _CHECKS[node.kind](node)


def is_alive(findings: list[Finding]) -> bool:
    """Return True unless a restart would cure a problem."""
    return all(each.about != LIFE for each in problems(findings))


def is_ready(findings: list[Finding]) -> bool:
    """Return True if there is no problem."""
    return not problems(findings)


def overdue_s(mesh: Mesh) -> float:
    """Return the time by which a node's loop is overdue; it runs at least once per beacon."""
    return max(time.monotonic() - mesh.peers.beacon_due, 0.0)


def _of_mesh(mesh: Mesh) -> Iterator[Finding]:
    if mesh.failure is not None:
        why = f"the {mesh.kind} has ended with an error: {mesh.failure}"
        yield problem(LIFE, why, "remove the cause, then restart it", lasts=True)
        return
    late_s = overdue_s(mesh)
    if late_s > HANGS_S:
        yield problem(LIFE, f"its loop has been hanging for {late_s:.0f} s", "restart it")
    if not mesh.peers.tower_found:
        towers = ", ".join(mesh.peers.towers.heard_at)
        yield problem("tower", f"no tower responds at {towers}", "check that a tower runs there")
        return
    now = time.monotonic()
    heard_at = mesh.peers.towers.heard_at
    limit_s = max(SILENT_S, mesh.peers.towers.away_s)
    silent = [tower for tower, at in heard_at.items() if at and now - at > limit_s]
    for tower in silent:
        why = f"tower {tower} has sent nothing for {now - heard_at[tower]:.0f} s"
        yield warning("tower", why, "connected nodes continue; new ones are not discovered")
    if not silent:
        yield ok("tower", f"the tower responds; {len(mesh.peers.table)} peers")


def _of_store(store: Store) -> Iterator[Finding]:
    yield from _of_mesh(store.mesh)
    yield from _of_disk(store)
    if why := store.log.clock.doubt():
        yield clock_doubt("this store", why)
    if count := len(store.log.healer.damaged):
        yield damage("this store", count)
    if store.flight is not None and store.flight.closing.is_set():
        yield problem("flight", "its Flight service has stopped", "restart it")


def _of_disk(store: Store) -> Iterator[Finding]:
    watch = store.disk_watch
    directory = watch.directory
    if watch.failure is not None:
        yield problem(LIFE, f"writing has stopped: {watch.failure}", "check its disk")
        return
    if watch.full is not None:
        yield problem("disk", watch.full.why, "until then the store accepts no records")
        return
    try:
        store.log.check_in_place()
        disk = Disk.of(directory)
    except (DafkaError, OSError) as error:
        yield problem("disk", f"the log cannot be used: {error}", "check its disk")
        return
    now, begun_at = time.monotonic(), watch.begun_at
    if begun_at is not None and now - begun_at > STUCK_S:
        why = f"a write to the disk of {directory} has taken {now - begun_at:.0f} s so far"
        yield problem("disk", why, "check the disk for errors; nothing is acknowledged meanwhile")
    elif watch.slow_at is not None and now - watch.slow_at < REPEAT_AFTER_S:
        why = f"in the last minute a write to the disk of {directory} took more than {SLOW_S:g} s"
        yield warning("disk", why, "find other programs that use the disk: producers wait for it")
    free = f"{disk.free_bytes} of {disk.size_bytes} bytes are free below {directory}"
    if disk.free_bytes < FULL_BYTES:
        yield problem(
            "disk",
            f"the disk is full: {free}",
            "free some space: the store accepts no records when none is left",
        )
    elif disk.is_low:
        yield warning("disk", f"the disk is nearly full: {free}", "free some, or set a retention")
    else:
        yield ok("disk", free)


def _of_producer(producer: Producer) -> Iterator[Finding]:
    yield from _of_mesh(producer.mesh)
    if producer.role.fenced_by is not None:
        why = f"another producer has taken over partition {producer.address}"
        yield problem("fenced", why, "stop this producer: only one may write", lasts=True)


def _of_tower(tower: Tower) -> Iterator[Finding]:
    if tower.relay.failure is not None:
        yield problem(
            LIFE, f"the tower has ended with an error: {tower.relay.failure}", "restart it"
        )
    else:
        yield ok("tower", f"{tower.relay.discovered.count()} nodes use the tower at {tower.tower}")


_CHECKS: Final[Mapping[str, Callable[[Any], Iterator[Finding]]]] = {
    "store": _of_store,
    "producer": _of_producer,
    "consumer": lambda consumer: _of_mesh(consumer.mesh),
    "tower": _of_tower,
}

"""Faults of machines and connections; those of messages are in ``network.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dafka_core.model.epochs import divergence
from dafka_core.model.records import TopicPartition
from tests.simulation.disk import Disk
from tests.simulation.hosts import ConsumerHost, Host, StoreHost
from tests.simulation.network import Fate

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Faults:
    """Kills, separates, stalls, by chance and until ``end``."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.until_s = cluster.shape.faults_s  # when the last fault ends
        self._ended = False
        shape = cluster.shape
        self._every(shape.partition_every_s, self._partition)
        self._every(shape.cut_every_s, self._cut)
        self._every(shape.crash_every_s, self._crash)
        self._every(shape.stall_every_s, self._stall)
        self._every(shape.tower_every_s, self._tower)
        self._every(shape.trim_every_s, self._trim)
        self._every(shape.another_every_s, self._another)
        self._every(shape.replaced_every_s, self._replace)

    def end(self) -> None:
        """All that was broken works from now on."""
        self._ended = True
        network = self.cluster.network
        network.faulty = False
        network.blocks.clear()
        for tower in network.towers:
            if tower not in network.towers_up:
                network.tower_back(tower)
        for host in self.cluster.hosts:
            host.start()
            if isinstance(host, StoreHost):
                host.heal_disk()
            if isinstance(host, ConsumerHost):
                host.paused_until = 0.0
            if host.mesh is not None and host.mesh.stalled_until > self.world.now:
                host.mesh.stalled_until = self.world.now
                host.mesh.wake(self.world.now)

    def _every(self, mean_s: float, happen: Callable[[], None]) -> None:
        if not mean_s:
            return

        def act() -> None:
            if not self._ended:
                happen()
                self._every(mean_s, happen)

        self.world.after(self.world.random.expovariate(1 / mean_s), act)

    def _host(self) -> Host:
        return self.world.random.choice(self.cluster.hosts)

    def _crash(self) -> None:
        host = self._host()
        if not host.up:
            return
        self.world.fault(f"crash of a {host.name.split('-')[0]}", host.name)
        host.crash()
        down_s = self.world.random.choice((0.01, 0.5, 5.0)) * self.world.between(0.5, 1.5)
        self.world.after(down_s, host.start)

    def _cut(self) -> None:
        links = self.cluster.network.links()
        if links:
            link = self.world.random.choice(links)
            half_open_s = self.world.random.choice((0, 0, 0.3, 3.0))
            self.world.fault("connection cut", link.subscriber.name, f"to {link.publisher.name}")
            self.cluster.network.cut(link, half_open_s)

    def _partition(self) -> None:
        """Some cannot reach others, in one direction or in both."""
        chance = self.world.random
        names = [host.name for host in self.cluster.hosts] + [*self.cluster.network.towers]
        side = [name for name in names if chance.random() < 0.5] or [chance.choice(names)]
        others = [name for name in names if name not in side]
        both = chance.random() < 0.5
        fate: Fate = "lost" if chance.random() < 0.5 else "held"
        until_s = self.world.now + chance.choice((0.3, 2.0, 8.0)) * self.world.between(0.5, 1.5)
        kind = "partition" if both else "one-way partition"
        self.world.fault(kind, "world", f"{side} from {others}, {fate}, until {until_s:.1f}")
        for one in side:
            for other in others:
                self.cluster.network.blocks[one, other] = (until_s, fate)
                if both:
                    self.cluster.network.blocks[other, one] = (until_s, fate)

    def _stall(self) -> None:
        """A machine is busy, a disk slow, or an application does not read."""
        host = self._host()
        stall_s = self.world.random.choice((0.2, 2.0)) * self.world.between(0.5, 1.5)
        if isinstance(host, StoreHost) and self.world.chance(0.5):
            self.world.fault("slow disk", host.name)
            host.slow_disk(stall_s)
        elif isinstance(host, ConsumerHost) and self.world.chance(0.5):
            self.world.fault("consumer does not read", host.name)
            host.paused_until = self.world.now + 2 * stall_s
        elif host.mesh is not None:
            self.world.fault("stall", host.name)
            host.mesh.stalled_until = self.world.now + stall_s

    def _trim(self) -> None:
        """Stores trim records that each of them has: at each store, or only at some."""
        disks = [store.disk for store in self.cluster.stores]
        if self.cluster.shape.retains and self.world.chance(0.5):
            self._trim_beyond(disks)
            return
        ends = {tp: _common_end(disks, tp) for tp in disks[0].ends()}
        found = [tp for tp, end in ends.items() if end]
        if not found:
            return
        tp = self.world.random.choice(found)
        before = self.world.random.randint(1, ends[tp])
        for disk in disks:
            if self.world.chance(0.8):
                disk.trim(tp, before)
                self.world.fault("trimmed", disk.name, f"{tp.topic} {tp.partition[:4]} to {before}")

    def _trim_beyond(self, disks: list[Disk]) -> None:
        """Stores give up what others lack, which may be away, or not have come yet."""
        disk = self.world.random.choice(disks)
        for tp, end in disk.ends().items():
            before = self.world.random.randint(1, end)
            for each in disks:
                if each is disk or self.world.chance(0.8):
                    each.trim(tp, min(before, each.end(tp)))
            self.world.fault("trimmed", "world", f"{tp.topic} {tp.partition[:4]} to {before}")

    def _another(self) -> None:
        """Start a producer while its earlier life still runs."""
        host = self.world.random.choice(self.cluster.producers)
        if host.up and not host.gone:
            self.world.fault("producer started twice", host.name)
            host.start_another()

    def _replace(self) -> None:
        """Copy a store's disk, or lose and restore it, if other stores have its records."""
        chance, stores = self.world.random, self.cluster.stores
        store = chance.choice(stores)
        if chance.random() < 0.4:
            store.keep_backup()
        elif not _is_elsewhere(store, stores):
            return
        elif len(stores) > max(self.cluster.shape.acks, 2) and chance.random() < 0.3:
            self.world.fault("store gone for good", store.name)
            store.leave()
        else:
            wiped, renamed = chance.random() < 0.3, chance.random() < 0.5
            self.world.fault("store wiped" if wiped else "store put back", store.name)
            store.put_back(wiped=wiped, renamed=renamed)
            self.world.after(chance.choice((0.1, 3.0)), store.start)

    def _tower(self) -> None:
        network = self.cluster.network
        up = [*network.towers_up]
        if not up:
            return
        tower = up[0] if len(up) == 1 else self.world.random.choice(up)
        self.world.fault("tower killed", tower)
        network.tower_down(tower)

        def back() -> None:
            if tower not in network.towers_up:
                network.tower_back(tower)

        self.world.after(self.world.between(0.1, 6), back)


def _common_end(disks: list[Disk], tp: TopicPartition) -> int:
    """Up to where all have the same records, of the same lives: no other history wins there."""
    end = min(disk.end(tp) for disk in disks)
    histories = [disk.lives(tp).history for disk in disks]
    parted = [divergence(histories[0], other) for other in histories[1:]]
    return min([end, *(start for start in parted if start is not None)])


def _is_elsewhere(store: StoreHost, stores: list[StoreHost]) -> bool:
    """Return True if other stores have each record of one store's disk, and it knows of them.

    A store that was renamed and is still off is known to none: a producer may begin without it.
    """

    def has(disk: Disk, tp: TopicPartition, end: int) -> bool:
        return disk.records(tp, end) == store.disk.records(tp, end)

    others = [each for each in stores if each is not store]
    disks = [each.disk for each in others if each.up or each.address in store.disk.met]
    return all(any(has(disk, *item) for disk in disks) for item in store.disk.ends().items())

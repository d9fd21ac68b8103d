"""Table 7: a consumer stops reading while a producer continues.

One consumer's process is stopped (SIGSTOP); the output of another one is not read, so that it can't
deliver. A third one continues. The memory of all nodes is watched, and when the two read again,
they must get everything, once.
"""

import time
from typing import NamedTuple

from tests.chaos.harness import Chaos, ChaosError, Round, Worker
from tests.chaos.nodes import Node, Steady, TowerSite, memory_mb

ROUNDS = 3
SHORT_ROUNDS = 1

STOP_S = 60.0
SHORT_STOP_S = 4.0

TOPIC = "slow"
LOOK_S = 0.1

LIMIT_MB = 400.0
"""Memory limit of a node: an idle one has about 60 MB, a producer keeps up to 256 MB until they are
acknowledged, a consumer 64 MB for its application."""


class Load(NamedTuple):
    """A producer's input: records of a size at a time, and the pause between."""

    records: int
    size_bytes: int
    pause_s: float


LOADS = (Load(500, 100, 0.05), Load(50, 20_000, 0.1), Load(40, 2_000, 0.01))
"""10,000 small records a second; 10 MB a second in large ones; 8 MB a second in many messages."""


class Memory(Worker):
    def __init__(self, nodes: dict[str, Node]) -> None:
        super().__init__("the memory's watch")
        self.most_mb = dict.fromkeys(nodes, 0.0)
        self._nodes = nodes

    def _work(self) -> None:
        while not self._done.wait(LOOK_S):
            for name, node in self._nodes.items():
                self.most_mb[name] = max(self.most_mb[name], memory_mb(node.pid))


class TableRound(Round):
    def run(self) -> None:
        load = LOADS[self.number % len(LOADS)]
        stop_s = SHORT_STOP_S if self.chaos.short else STOP_S
        site = TowerSite(self.directory, self.stack)
        store = site.store()
        store.ready()
        names = ("going", "stopped", "unread")
        listeners = going, stopped, unread = [site.listener(TOPIC, name) for name in names]
        feeder = site.feeder(TOPIC)
        steady = Steady(feeder, "value", load.records, load.pause_s, load.size_bytes)
        for listener in listeners:
            listener.wait_for(load.records)

        nodes: dict[str, Node] = {"tower": site.tower_node, "store": store, "producer": feeder}
        nodes |= {"consumer": going, "stopped consumer": stopped, "unread consumer": unread}
        memory = Memory(nodes)
        self.stack.callback(memory.stop)
        memory.start()
        stopped.pause()
        unread.stop_reading()
        self.chaos.fault("consumer stopped")
        self.chaos.fault("consumer not read from")
        reached = len(going.lines)
        time.sleep(stop_s * self.chance.uniform(1, 1.1))
        if len(going.lines) < reached + load.records * stop_s:
            raise ChaosError(f"the consumer that goes on got {len(going.lines) - reached} records")
        stopped.resume()
        unread.read_on()
        values = steady.fed()
        for listener in listeners:
            listener.wait_for(len(values))
        memory.finish()
        self.chaos.outcome.records += len(values)
        for name, listener in zip(names, listeners, strict=True):
            self.chaos.compare(f"the consumer {name}", values, listener.values())
        _check_memory(self.chaos, memory.most_mb, load)


def _check_memory(chaos: Chaos, most_mb: dict[str, float], load: Load) -> None:
    for name, most in most_mb.items():
        chaos.most(f"{name}, MB", round(most, 1))
    beyond = {name: most for name, most in most_mb.items() if most > LIMIT_MB}
    if beyond:
        raise ChaosError(f"with {load} these had more than {LIMIT_MB:g} MB: {beyond}")

"""Table 7: a consumer stops reading while a producer continues.

One consumer's process is stopped (SIGSTOP); the output of another one is not read, so that it can't
deliver. A third one continues. The memory of all nodes is watched, and when the two read again,
they must get everything, once.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tests.chaos.harness import Chaos, ChaosError
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


class Memory:
    """The nodes' largest memory, sampled during the context."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.most_mb = dict.fromkeys(nodes, 0.0)
        self._nodes = nodes
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            for name, node in self._nodes.items():
                self.most_mb[name] = max(self.most_mb[name], memory_mb(node.pid))


def run(chaos: Chaos, rounds: int) -> None:
    """Run the rounds, a minute each."""
    stop_s = SHORT_STOP_S if chaos.short else STOP_S
    for number in range(chaos.first, chaos.first + rounds):
        with chaos.round(number) as directory, contextlib.ExitStack() as stack:
            load = LOADS[number % len(LOADS)]
            _round(chaos, chaos.chance(number), directory, stack, load, stop_s)


def _round(
    chaos: Chaos,
    chance: random.Random,
    directory: Path,
    stack: contextlib.ExitStack,
    load: Load,
    stop_s: float,
) -> None:
    site = TowerSite(directory, stack)
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
    with Memory(nodes) as memory:
        stopped.pause()
        unread.stop_reading()
        chaos.fault("consumer stopped")
        chaos.fault("consumer not read from")
        reached = len(going.lines)
        time.sleep(stop_s * chance.uniform(1, 1.1))
        if len(going.lines) < reached + load.records * stop_s:
            raise ChaosError(f"the consumer that goes on got {len(going.lines) - reached} records")
        stopped.resume()
        unread.read_on()
        values = steady.stop()
        for listener in listeners:
            listener.wait_for(len(values))
    chaos.outcome.records += len(values)
    for name, listener in zip(names, listeners, strict=True):
        chaos.compare(f"the consumer {name}", values, listener.values())
    _check_memory(chaos, memory.most_mb, load)


def _check_memory(chaos: Chaos, most_mb: dict[str, float], load: Load) -> None:
    for name, most in most_mb.items():
        chaos.most(f"{name}, MB", round(most, 1))
    beyond = {name: most for name, most in most_mb.items() if most > LIMIT_MB}
    if beyond:
        raise ChaosError(f"with {load} these had more than {LIMIT_MB:g} MB: {beyond}")

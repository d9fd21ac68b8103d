"""Table 4: the tower is killed and returns on the same ports, while all nodes keep running.

Two producers, two stores and a consumer continue meanwhile. A store that is killed while the tower
is away returns before it, and finds it later. Afterwards new nodes must join: a consumer from the
first record on, and a producer whose records the old consumer gets.
"""

import time
from functools import partial
from pathlib import Path

from tests.chaos.disks import has_on_disk, values_on_disk
from tests.chaos.harness import Chaos, Round, wait_until
from tests.chaos.nodes import Listener, Node, Steady, TowerSite

ROUNDS = 20
SHORT_ROUNDS = 1

TOPIC = "towers"

AWAY_S = (0.0, 7.0)
SHORT_AWAY_S = (0.0, 2.0)
"""Silent peers expire after 4 s: some towers are away for longer, some shorter."""


class TableRound(Round):
    def run(self) -> None:
        self._site = TowerSite(self.directory, self.stack)
        stores = [self._store(index) for index in (0, 1)]
        for store in stores:
            store.ready()
        old = self._site.listener(TOPIC, "old")
        feeders = [self._site.feeder(TOPIC, f"feeder{n}") for n in (1, 2)]
        steady = [Steady(each, f"value{n}", 50, 0.02) for n, each in enumerate(feeders)]
        old.wait_for(100)

        for _ in range(self.chance.randint(1, 2)):
            time.sleep(self.chance.uniform(0, 1))
            self._site.tower_node.kill()
            self.chaos.fault("tower killed")
            if self.chance.random() < 0.4:
                time.sleep(self.chance.uniform(0, 1))
                stores[1].kill()
                self.chaos.fault("store killed while the tower is away")
                stores[1] = self._store(1)
            reached = len(old.lines)
            time.sleep(self.chance.uniform(*(SHORT_AWAY_S if self.chaos.short else AWAY_S)))
            wait_until(partial(_is_beyond, old, reached), "records flow without a tower")
            self._site.restart_tower()
        self._end(stores, old, steady)

    def _end(self, stores: list[Node], old: Listener, steady: list[Steady]) -> None:
        stores[1].ready()
        late = self._site.feeder(TOPIC, "late")
        late.feed([f"late-{n}" for n in range(500)])
        values = [value for each in steady for value in each.fed()]
        late.finish()
        values += late.fed
        self.chaos.outcome.records += len(values)
        new = self._site.listener(TOPIC, "new")
        for listener in (old, new):
            listener.wait_for(len(values))
        self.chaos.compare("the old consumer", values, old.values())
        self.chaos.compare("the new consumer", values, new.values())
        check_stores(self.chaos, stores, self.directory, values)

    def _store(self, index: int) -> Node:
        return self._site.store(f"store{index}", "--sync-interval-ms", "1000", "--wait-for-tower")


def check_stores(chaos: Chaos, stores: list[Node], directory: Path, values: list[str]) -> None:
    """Check that every store has everything once, as soon as it has caught up.

    The stores in ``directory`` are killed for it.
    """
    directories = [directory / f"store{index}" for index in range(len(stores))]
    for index, kept in enumerate(
        directories
    ):  # before any is killed, so that others can copy from it
        all_there = partial(has_on_disk, kept, len(values))
        wait_until(all_there, f"store {index} has all {len(values)} records")
    for index, (store, kept) in enumerate(zip(stores, directories, strict=True)):
        store.kill()
        on_disk = [value for found in values_on_disk(kept).values() for value in found]
        chaos.compare(f"store {index}", values, [value.decode() for value in on_disk])


def _is_beyond(listener: Listener, count: int) -> bool:
    return len(listener.lines) > count

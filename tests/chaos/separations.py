"""Table 5: machines are separated and joined again.

Each of two machines has a store, a producer and a consumer. Separated, each continues with its own;
joined, both stores and both consumers must get everything, once.
"""

import time
from collections.abc import Sequence

from tests.chaos.harness import ChaosError, Round, wait_until
from tests.chaos.networks import MACHINES, Namespaces, namespaces_work
from tests.chaos.nodes import Listener, Site, Steady
from tests.chaos.relays import Relays
from tests.chaos.tower_kills import check_stores

ROUNDS = 20
SHORT_ROUNDS = 1

TOPIC = "separations"

APART_S = (0.1, 14.0)
SHORT_APART_S = (0.1, 2.0)
"""Silent peers expire after 4 s, and stuck connections after 10 s: some separations are longer,
some shorter."""


SETTLE_S = 1.0  # silence of this length means that nothing is in flight between the machines

SETTLE_TIMEOUT_S = 30.0


def _from(listener: Listener, machine: int) -> int:
    """Return how many records of a machine's producer a consumer has."""
    mark = f'"machine{machine}-'.encode()
    return sum(mark in line for line in list(listener.lines))


class TableRound(Round):
    def run(self) -> None:
        networks: list[type[Namespaces | Relays]] = [Relays]
        if namespaces_work():
            networks.insert(0, Namespaces)
        kind = networks[self.number % len(networks)]
        self._network = kind(self.stack, self.directory / "tower.log")
        sites = [self._site(machine) for machine in range(MACHINES)]
        stores = [
            site.store(f"store{machine}", "--sync-interval-ms", "1000")
            for machine, site in enumerate(sites)
        ]
        for store in stores:
            store.ready()
        listeners = [site.listener(TOPIC, f"consumer{n}") for n, site in enumerate(sites)]
        feeders = [site.feeder(TOPIC, f"feeder{n}") for n, site in enumerate(sites)]
        steady = [Steady(each, f"machine{n}", 50, 0.02) for n, each in enumerate(feeders)]
        for listener in listeners:
            listener.wait_for(200)
        for _ in range(self.chance.randint(1, 2)):
            time.sleep(self.chance.uniform(0, 0.5))
            self._separate(listeners)
        values = [value for each in steady for value in each.fed()]
        self.chaos.outcome.records += len(values)
        for machine, listener in enumerate(listeners):
            listener.wait_for(len(values))
            self.chaos.compare(f"the consumer of machine {machine}", values, listener.values())
        check_stores(self.chaos, stores, self.directory, values)

    def _separate(self, listeners: Sequence[Listener]) -> None:
        kind = self.chance.choice(list(self._network.cuts))
        self._network.cut(kind)
        self.chaos.fault(f"separated, {kind}")
        self._settle(listeners)
        reached, others = self._seen(listeners)
        time.sleep(self.chance.uniform(*(SHORT_APART_S if self.chaos.short else APART_S)))
        for machine, listener in enumerate(listeners):
            wait_until(
                lambda each=listener, m=machine: len(each.lines) > reached[m],  # type: ignore[misc]
                f"machine {machine} goes on alone",
            )
        if others != self._seen(listeners)[1]:
            raise ChaosError(f"{kind}: the machines are not separated")
        self._network.join()

    def _settle(self, listeners: Sequence[Listener]) -> None:
        """Wait until records in flight at the separation have arrived.

        Consumers must also have progressed: on a busy machine they may pause as long.
        """
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        seen, others = self._seen(listeners)
        while time.monotonic() < deadline:
            time.sleep(SETTLE_S)
            before, (seen, now) = seen, self._seen(listeners)
            if now == others and all(new > old for old, new in zip(before, seen, strict=True)):
                return
            others = now

    def _seen(self, listeners: Sequence[Listener]) -> tuple[list[int], list[int]]:
        """Return the consumers' records: of all, and of the other machine's producer."""
        others = [_from(listener, 1 - n) for n, listener in enumerate(listeners)]
        return [len(listener.lines) for listener in listeners], others

    def _site(self, machine: int) -> Site:
        network = self._network
        options = ("--host", network.host(machine))
        tower, prefix = network.tower(machine), network.prefix(machine)
        return Site(self.directory, self.stack, tower, prefix, options)

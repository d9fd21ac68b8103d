"""Table 9: Spark standalone and Dafka on several hosts, some of which fail; batch and streaming.

The query of table 2 runs on a cluster of eight hosts: Spark's master, two workers and a driver, two
stores and two towers. Hosts lose power or cable, and their processes are killed; one may be far
away, and Spark's hosts may refuse connections. In the end a batch query copies the topic, while a
host fails.
"""

import sys
import time
from collections.abc import Callable

from tests.chaos.harness import Round, wait_until
from tests.chaos.nodes import Feeder
from tests.chaos.queries import END_S, Driver, Plan, check_topic, expected, value
from tests.chaos.query_kills import EXECUTOR, WORKER
from tests.chaos.spark_hosts import (
    DRIVER,
    LET_IN,
    MASTER,
    QUICK,
    STORES,
    TOWERS,
    WORKERS,
    SparkHosts,
)

ROUNDS = 5
SHORT_ROUNDS = 1

SOURCE, SINK, COPY = "numbers", "counts", "copied"
EACH = 600
SHORT_EACH = 300
BATCHES = 2
"""Records fed before a fault and again after it, and batches that read them."""

FAULTS = 6
AWAY_S = (0.2, 12.0)
"""Longer and shorter than a mesh's peer timeout."""
SHORT_AWAY_S = (0.2, 2.0)
FAR_S = (0.01, 0.1)
"""One way."""

Heal = Callable[[], None]


class TableRound(Round):
    def run(self) -> None:
        site = SparkHosts(self.stack, self.directory)
        if site.hosts is None:
            print("no namespaces (unshare -rnm): nothing happens to cables", file=sys.stderr)
        else:
            self._lay_cables(site)
        site.start()
        feeder = site.at(MASTER).feeder(SOURCE)
        self._each = SHORT_EACH if self.chaos.short else EACH
        log = self.directory / "driver.log"
        driver = Driver(self.stack, self._plan(site), log, site.prefix(DRIVER))
        self._feed(feeder)
        driver.wait_batch(-1)
        self._stream(site, driver, feeder)
        self._copy(site, driver)
        answer = driver.finish()
        self.chaos.most("restarts of the driver", driver.restarts)
        feeder.finish()
        self._check(site, feeder, answer)

    def _lay_cables(self, site: SparkHosts) -> None:
        assert site.hosts is not None
        far = self.chance.choice((None, *STORES, *WORKERS, DRIVER))
        delay_s = round(self.chance.uniform(*FAR_S), 3)
        alone = self.chance.random() < 0.5
        for host in (*STORES, *WORKERS, DRIVER):
            let_in = LET_IN if alone and host not in STORES else ""
            if host == far or let_in:
                site.hosts.link(host, delay_s if host == far else 0.0, let_in)
        self.chaos.add("hosts far away", far is not None)
        self.chaos.add("clusters whose Spark nobody is let in to", alone)

    def _plan(self, site: SparkHosts) -> Plan:
        # A task in a new Python knows nothing of the cluster, as after a minute without work.
        new_pythons = self.chaos.short or self.chance.random() < 0.5
        self.chaos.add("queries with a new Python for each task", new_pythons)
        return Plan(
            site.master,
            site.tower,
            SOURCE,
            SINK,
            str(self.directory),
            self._each // (1 if self.chaos.short else BATCHES),
            {},
            site.host(DRIVER),
            QUICK | {"spark.python.worker.reuse": str(not new_pythons).lower()},
            COPY,
        )

    def _feed(self, feeder: Feeder) -> None:
        start = len(feeder.fed)
        feeder.feed([value(number) for number in range(start, start + self._each)])

    def _stream(self, site: SparkHosts, driver: Driver, feeder: Feeder) -> None:
        faults = [self._towers, self._store, self._worker, self._driver, self._executor]
        if self.chaos.short:
            chosen = [self._towers, self._store]
        else:
            chosen = [self._towers, *(self.chance.choice(faults) for _ in range(FAULTS - 1))]
        for fault in chosen:
            self._feed(feeder)
            time.sleep(self.chance.uniform(0, 2))
            heal = fault(site, driver)
            reached = driver.batch
            self._feed(feeder)
            driver.wait_batch(reached)
            heal()

    def _copy(self, site: SparkHosts, driver: Driver) -> None:
        driver.end()
        wait_until(
            lambda: driver.is_copying or not driver.running,
            lambda: f"the batch query begins: {driver.tail()}",
            END_S,
        )
        time.sleep(self.chance.uniform(0, 3))
        fault = self._store if self.chaos.short else self.chance.choice((self._store, self._worker))
        fault(site, driver)()

    def _check(self, site: SparkHosts, feeder: Feeder, answer: dict[str, int]) -> None:
        fed = {feeder.partition(): feeder.fed}
        wanted = expected(self.directory / "checkpoint", SOURCE, fed)
        check_topic(self.chaos, site.at(MASTER), SINK, wanted, answer)
        self.chaos.outcome.records += len(feeder.fed)
        copied = site.at(MASTER).listener(COPY, "copied")
        copied.wait_for(len(feeder.fed))
        self.chaos.compare("the copied topic", feeder.fed, copied.values(1))

    # -- faults: each is undone once the query has made progress ---------------------------------

    def _towers(self, site: SparkHosts, driver: Driver) -> Heal:
        """Keep both towers away until the query has made progress."""
        heals = [self._fail(site, tower) for tower in TOWERS]
        self.chaos.fault("both towers away")

        def heal() -> None:
            for each in heals:
                each()

        return heal

    def _store(self, site: SparkHosts, driver: Driver) -> Heal:
        return self._for_a_while(site, self.chance.choice(STORES), "a store's host")

    def _worker(self, site: SparkHosts, driver: Driver) -> Heal:
        return self._for_a_while(site, self.chance.choice(WORKERS), "a worker's host")

    def _executor(self, site: SparkHosts, driver: Driver) -> Heal:
        program = self.chance.choice((EXECUTOR, WORKER))
        heal = site.kill(self.chance.choice(WORKERS), program)
        self.chaos.fault(f"{program} killed")
        return heal

    def _driver(self, site: SparkHosts, driver: Driver) -> Heal:
        driver.kill_driver()
        self.chaos.fault("driver killed")
        return lambda: None

    def _for_a_while(self, site: SparkHosts, host: int, what: str) -> Heal:
        heal = self._fail(site, host, what)
        time.sleep(self.chance.uniform(*(SHORT_AWAY_S if self.chaos.short else AWAY_S)))
        heal()
        return lambda: None

    def _fail(self, site: SparkHosts, host: int, what: str = "") -> Heal:
        kinds: list[tuple[str, Callable[[int], Heal]]] = [("killed", site.kill)]
        if site.hosts is not None:
            kinds += [("without power", site.power_off), ("without its cable", site.cut)]
        how, fail = self.chance.choice(kinds)
        if what:
            self.chaos.fault(f"{what} {how}")
        return fail(host)

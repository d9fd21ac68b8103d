"""Table 10: a pipeline of two queries whose processes are killed.

The first query counts records by key, with RocksDB state, from topic to topic; the second one saves
the second topic as Parquet files. Each has a driver and an executor of its own, and there are two
stores. In each step records are fed, and meanwhile an executor, a Python worker, a driver or a
store is killed; a store returns on its directory. In the end the topic between, and the files, have
each batch's rows once, as a batch query computes them.
"""

import json
import time
from collections import Counter

from dafka_core.audit import PROVED, SAME
from tests.chaos.harness import PATIENCE_S, ChaosError, Round
from tests.chaos.nodes import Feeder, Node, TowerSite
from tests.chaos.queries import Driver, Plan, check, check_topic, expected
from tests.chaos.query_job import SAVED
from tests.chaos.query_kills import feed, kill

ROUNDS = 5
SHORT_ROUNDS = 0
"""Two drivers and their executors take most of a minute to start and stop."""

MASTER = "local-cluster[1,2,512]"
SOURCE, MIDDLE = "numbers", "counts"
FAULTS = 8
EACH = 1_200
BATCH_RECORDS = 400
STORES = 2
STORE_ODDS = 0.3
AWAY_S = (0.0, 6.0)
"""How long a store is away: longer than it takes to notice."""

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


class TableRound(Round):
    def run(self) -> None:
        self._site = TowerSite(self.directory, self.stack)
        self._stores = [self._store(number) for number in range(STORES)]
        feeder = self._site.feeder(SOURCE)
        saved = str(self.directory / "saved")
        counting = self._driver("counting", SOURCE, MIDDLE, "processed")
        saving = self._driver("saving", MIDDLE, saved, SAVED)
        self._step(feeder, (counting, saving))
        for _ in range(FAULTS):
            self._step(feeder, (counting, saving), fails=True)
        answer, found = counting.finish(), saving.finish()
        restarts = counting.restarts + saving.restarts
        self.chaos.most("restarts of the drivers", restarts)
        feeder.finish()
        self._check({feeder.partition(): feeder.fed}, answer, found)

    def _store(self, number: int) -> Node:
        store = self._site.store(f"store{number}")
        store.ready()
        return store

    def _driver(self, name: str, source: str, sink: str, query: str) -> Driver:
        plan = Plan(
            MASTER,
            self._site.tower,
            source,
            sink,
            str(self.directory / name),
            BATCH_RECORDS,
            {"audit": "true"},
            settings=ROCKSDB,
            query=query,
        )
        return Driver(self.stack, plan, self.directory / f"{name}.log")

    def _step(self, feeder: Feeder, drivers: tuple[Driver, Driver], *, fails: bool = False) -> None:
        """Feed records, and wait until both queries have made progress."""
        reached = [driver.batch for driver in drivers]
        for driver in drivers:
            if not driver.running:
                driver.start()
        feed(feeder, EACH)
        if fails:
            time.sleep(self.chance.uniform(0, 2))
            self._fail(drivers)
        for driver, batch in zip(drivers, reached, strict=True):
            driver.wait_batch(batch)

    def _fail(self, drivers: tuple[Driver, Driver]) -> None:
        if self.chance.random() < STORE_ODDS:
            number = self.chance.randrange(STORES)
            self._stores[number].kill()
            time.sleep(self.chance.uniform(*AWAY_S))
            self._stores[number] = self._store(number)
            self.chaos.fault("store killed")
            return
        at = self.chance.randrange(len(drivers))
        self.chaos.fault(f"{('counting', 'saving')[at]}: {kill(self.chance, drivers[at])}")

    def _check(
        self, fed: dict[str, list[str]], answer: dict[str, int], found: dict[str, int]
    ) -> None:
        wanted = expected(self.directory / "counting" / "checkpoint", SOURCE, fed)
        self.chaos.outcome.records += len(wanted)
        check_topic(self.chaos, self._site, MIDDLE, wanted, answer)
        saved = list(Counter(found).elements())
        check(self.chaos, "the Parquet files", wanted, saved, answer)
        self._verify(len(wanted))

    def _verify(self, rows: int) -> None:
        """Check the first query's output batch by batch, by its checkpoint."""
        path = str(self.directory / "counting" / "checkpoint")
        given = ["--tower", self._site.tower, "--json", "--timeout-s", str(PATIENCE_S)]
        node = Node("checkpoint", ["verify", path, *given], self.directory / "verify.log")
        with node:
            code = node.end()
        batches = [json.loads(line) for line in node.lines]
        wrong = [each for each in batches if (each["state"], each["source"]) != (PROVED, SAME)]
        if code or wrong or sum(each["rows"] for each in batches) != rows:
            raise ChaosError(f"verify ended with {code}: {wrong[:3]}; {node.said[-500:]}")

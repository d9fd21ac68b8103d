"""Table 3: one of two stores is killed for good; reading, writing and exactly-once continue.

A query copies counts from topic to topic with ``acks`` of all reachable stores. Halfway one of the
stores ends for good, perhaps the one that the query wrote to.
"""

import time

from tests.chaos.harness import Round
from tests.chaos.nodes import Feeder, Site, TowerSite
from tests.chaos.queries import Driver, Plan, check_topic, expected, value

ROUNDS = 10
SHORT_ROUNDS = 1

MASTER = "local[2,8]"
SOURCE, SINK = "numbers", "counts"
RECORDS = 4_000
SHORT_RECORDS = 1_200
BATCH_RECORDS = 400


class TableRound(Round):
    def run(self) -> None:
        site = TowerSite(self.directory, self.stack)
        stores = [site.store(f"store{n}") for n in (0, 1)]
        for store in stores:
            store.ready()
        # Both have it: with ``acks`` 1, records of one store are lost with it.
        count = SHORT_RECORDS if self.chaos.short else RECORDS
        before = _fed(site, "before", range(count), "--acks", "2")
        before.finish()
        options = {"acks": "all"}
        plan = Plan(MASTER, site.tower, SOURCE, SINK, str(self.directory), BATCH_RECORDS, options)
        driver = Driver(self.stack, plan, self.directory / "driver.log")
        driver.wait_batch(self.chance.randint(-1, 1))
        time.sleep(self.chance.uniform(0, 0.7))
        stores[self.chance.randrange(2)].kill()
        self.chaos.fault("store killed for good")
        after = _fed(site, "after", range(count, 2 * count))
        after.finish()
        reached = driver.batch
        driver.wait_batch(reached)
        answer = driver.finish()
        self.chaos.most("restarts of the driver", driver.restarts)
        records = {feeder.partition(): feeder.fed for feeder in (before, after)}
        wanted = expected(self.directory / "checkpoint", SOURCE, records)
        check_topic(self.chaos, site, SINK, wanted, answer)
        listener = site.listener(SOURCE, "source")
        listener.wait_for(2 * count)
        self.chaos.compare("the source's topic", before.fed + after.fed, listener.values())


def _fed(site: Site, name: str, numbers: range, *options: str) -> Feeder:
    feeder = site.feeder(SOURCE, name, *options)
    feeder.feed([value(number) for number in numbers])
    return feeder

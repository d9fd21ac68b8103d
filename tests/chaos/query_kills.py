"""Table 2: executors, Python workers and the driver are killed while a stateful query runs.

The query counts records by key and writes each batch's new counts to another topic, exactly once.
Each round feeds records, kills something, and waits for the next batch. The checkpoint has each
batch's records, and so its expected rows. An executor may also be stopped while the driver is
killed, and continue beside the next driver.
"""

import contextlib
import os
import random
import signal
import threading
import time

from tests.chaos.harness import Round
from tests.chaos.nodes import Feeder, TowerSite
from tests.chaos.queries import Driver, Plan, Process, check_topic, expected, value

ROUNDS = 50
SHORT_ROUNDS = 2

MASTER = "local-cluster[2,1,512]"
SHORT_MASTER = "local-cluster[1,2,512]"
SOURCE, SINK = "numbers", "counts"
ROUND_RECORDS = 1_500
BATCH_RECORDS = 500

WORKER = "spark.daemon pyspark."
EXECUTOR = "CoarseGrainedExecutorBackend"

KINDS = ("executor", "python worker", "driver", "zombie executor")
WEIGHTS = (3, 4, 2, 1)


class TableRound(Round):
    series = 25  # rounds with one query

    def run(self) -> None:
        chaos = self.chaos
        site = TowerSite(self.directory, self.stack)
        site.store().ready()
        feeder = site.feeder(SOURCE)
        master, kept = SHORT_MASTER if chaos.short else MASTER, str(self.directory)
        plan = Plan(master, site.tower, SOURCE, SINK, kept, BATCH_RECORDS, {"acks": "1"})
        driver = Driver(self.stack, plan, self.directory / "driver.log")
        each = BATCH_RECORDS if chaos.short else ROUND_RECORDS
        feed(feeder, each)
        driver.wait_batch(-1)
        for number in range(self.number, self.number + self.count):
            chance = chaos.chance(number)
            reached = driver.batch
            feed(feeder, each)
            time.sleep(chance.uniform(0, 2))
            chaos.fault(kill(chance, driver))
            driver.wait_batch(reached)
        answer = driver.finish()
        chaos.most("restarts of the driver", driver.restarts)
        feeder.finish()
        records = {feeder.partition(): feeder.fed}
        wanted = expected(self.directory / "checkpoint", SOURCE, records)
        check_topic(chaos, site, SINK, wanted, answer)


def feed(feeder: Feeder, count: int) -> None:
    start = len(feeder.fed)
    feeder.feed([value(number) for number in range(start, start + count)])


def kill(chance: random.Random, driver: Driver) -> str:
    """Kill something; return its name."""
    (kind,) = chance.choices(KINDS, WEIGHTS)
    processes = driver.below()
    executors = [each for each in processes if EXECUTOR in each.command]
    workers = [each for each in processes if WORKER in each.command]
    if kind == "python worker" and workers:
        victim = chance.choice(workers)
        driver.kill([victim.pid])
        return _kind_of(victim, {each.pid: each for each in processes})
    if kind == "executor" and executors:
        driver.kill([chance.choice(executors).pid])
        return "executor killed"
    if kind == "zombie executor" and executors:
        zombie = chance.choice(executors).pid
        os.kill(zombie, signal.SIGSTOP)
        time.sleep(chance.uniform(0, 0.5))
        driver.kill_driver()
        _wake_later(zombie, chance.uniform(3, 12))
        return "driver killed, an executor stopped until the next one runs"
    driver.kill_driver()
    return "driver killed"


def _kind_of(victim: Process, processes: dict[int, Process]) -> str:
    above: Process | None = victim
    while above is not None and EXECUTOR not in above.command:
        above = processes.get(above.parent)
    return "python worker killed" if above is not None else "python worker of the driver killed"


def _wake_later(pid: int, after_s: float) -> None:
    def wake() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    timer = threading.Timer(after_s, wake)
    timer.daemon = True
    timer.start()

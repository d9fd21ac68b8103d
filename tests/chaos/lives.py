"""Table 8: producers of one address, in sequence and at once; stores that lose their past.

A producer is killed, stopped or left running while another one with its address starts, all with
wrong clocks; a store is wiped, restored from a copy, or copied. In the end, what any of them knew
to be acknowledged must be at its offset in both stores, with one timestamp; a fenced producer must
know it, and a copied store must not run.
"""

import json
import shutil
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from dafka_core.model.records import TopicPartition
from tests.chaos.disks import has_on_disk, times_on_disk, values_on_disk
from tests.chaos.harness import PATIENCE_S, ChaosError, Round, wait_until
from tests.chaos.life_job import FENCED, value
from tests.chaos.nodes import Node, TowerSite, start_store

ROUNDS = 50
SHORT_ROUNDS = 1

TOPIC = "lives"
ACKS = 2
SKEW_S = 25.0
"""Differences of a producer's clock from those of the stores."""

ADDED = 35  # records acknowledged between two faults


class _Life(Node):
    """A publishing program, and its output."""

    def __init__(self, directory: Path, tower: str, address: str, name: str, skew_s: float) -> None:
        arguments = [tower, TOPIC, address, str(ACKS), str(skew_s)]
        log = directory / f"{name}.log"
        super().__init__(name, arguments, log, module="tests.chaos.life_job")

    def told(self, fact: str) -> list[Any]:
        """Return its reports of one kind."""
        # The last line of a killed program may be partial.
        facts = [json.loads(line) for line in list(self.lines) if line.endswith(b"\n")]
        return [each[fact] for each in facts if fact in each]

    @property
    def acknowledged(self) -> dict[int, str]:
        """Return the values that it knows to be acknowledged, by offset."""
        ranges = self.told("acknowledged")
        return {at: value(self.what, at) for start, end in ranges for at in range(start, end)}

    def check_end(self, expected: int) -> None:
        """Wait until it has ended properly; end its input if it still publishes."""
        assert self.process.stdin is not None
        if expected == 0:
            self.process.stdin.close()
        code = self.end()
        if code != expected:
            raise ChaosError(f"producer {self.what} ended with {code}, not {expected}")


class TableRound(Round):
    def run(self) -> None:
        self._address = uuid.uuid4().hex.upper()
        self._lives: list[_Life] = []
        self._site = TowerSite(self.directory, self.stack)
        self._stores = [self._store(index) for index in (0, 1)]
        self._names = [str(store.ready()["address"]) for store in self._stores]
        self._begin()
        self._keep_backup()
        self._wait_for_more()
        producers = [self._second_life, self._killed, self._stopped]
        faults = [*producers, self._wiped, self._put_back, self._copied]
        for _ in range(2 if self.chaos.short else self.chance.randint(2, 4)):
            self.chance.choice(faults)()
            self._wait_for_more()
        self._lives[-1].check_end(0)
        self._check()

    # -- faults
    # ------------------------------------------------------------------------------------

    def _second_life(self) -> None:
        self.chaos.fault("producer started twice")
        old = self._lives[-1]
        self._begin()
        old.check_end(FENCED)

    def _killed(self) -> None:
        self.chaos.fault("producer killed")
        self._lives[-1].kill()
        self._begin()

    def _stopped(self) -> None:
        self.chaos.fault("producer stopped, and goes on beside the next one")
        old = self._lives[-1]
        old.pause()
        self._begin()
        old.resume()
        old.check_end(FENCED)

    def _wiped(self) -> None:
        self.chaos.fault("store wiped")
        index = self.chance.randrange(2)
        self._stores[index].kill()
        shutil.rmtree(self._kept(index))
        self._come_back(index)

    def _put_back(self) -> None:
        self.chaos.fault("store put back")
        self._stores[1].kill()
        shutil.rmtree(self._kept(1))
        shutil.copytree(self.directory / "backup", self._kept(1))
        self._dafka("restore", str(self._kept(1)))
        self._come_back(1)

    def _copied(self) -> None:
        self.chaos.fault("copy of a store started")
        index = self.chance.randrange(2)
        copy = self.directory / f"copy{len(list(self.directory.glob('copy*')))}"
        self._stores[index].kill()
        shutil.copytree(self._kept(index), copy, ignore=shutil.ignore_patterns("*.sock"))
        self._stores[index] = self._store(index)
        self._stores[index].ready()
        log = self.directory / f"{copy.name}.log"
        with start_store(copy, self._site.tower, log) as started:
            if started.wait_started() or not started.end() or "restore" not in started.said:
                raise ChaosError(f"a copy of a store runs, or does not say why not: {started.said}")

    # -- cluster
    # -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start another life, and wait for its first acknowledgements."""
        name, skew_s = f"life{len(self._lives)}", self.chance.uniform(-SKEW_S, SKEW_S)
        life = _Life(self.directory, self._site.tower, self._address, name, skew_s)
        self._lives.append(self.stack.enter_context(life))
        self._wait_for_more()

    def _wait_for_more(self) -> None:
        life = self._lives[-1]
        target = len(life.acknowledged) + ADDED
        wait_until(
            lambda: len(life.acknowledged) >= target,
            lambda: f"{life.what}, which says {life.told('waits')[-1:]}, has {target} acknowledged",
        )

    def _keep_backup(self) -> None:
        self._stores[1].kill()
        sockets = shutil.ignore_patterns("*.sock")
        shutil.copytree(self._kept(1), self.directory / "backup", ignore=sockets)
        self._stores[1] = self._store(1)
        self._stores[1].ready()

    def _come_back(self, index: int) -> None:
        """Start a store under a new name, after the other one has forgotten the old name."""
        other = 1 - index
        self._stores[other].kill()
        self._dafka("forget", str(self._kept(other)), self._names[index])
        for each in (other, index):
            self._stores[each] = self._store(each)
            self._names[each] = str(self._stores[each].ready()["address"])

    def _dafka(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "dafka_core.cli", "store", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
        if done.returncode:
            raise ChaosError(f"{arguments}: {done.stderr.decode()[-300:]}")

    def _kept(self, index: int) -> Path:
        return self.directory / f"store{index}"

    def _store(self, index: int) -> Node:
        return self._site.store(f"store{index}", "--sync-interval-ms", "1000")

    # -- final checks
    # ------------------------------------------------------------------------------

    def _check(self) -> None:
        required = {at: said for life in self._lives for at, said in life.acknowledged.items()}
        listener = self._site.listener(TOPIC)
        for index in (0, 1):
            all_there = partial(has_on_disk, self._kept(index), len(required))
            wait_until(all_there, f"store {index} has all {len(required)} records")
        listener.wait_for(len(required))
        read = listener.values()
        self.chaos.outcome.records += len(read)
        times: list[list[int]] = []
        for index, store in enumerate(self._stores):
            store.kill()
            (found,) = values_on_disk(self._kept(index)).values()
            texts = [each.decode() for each in found]
            there = list(enumerate(texts))  # unacknowledged records may exist, too
            self.chaos.compare(f"store {index}", required.items(), there, there)
            self.chaos.compare(f"store {index} and a consumer", texts, read)
            tp = TopicPartition(TOPIC, self._address)
            times.append(times_on_disk(self._kept(index), tp)[: len(required)])
        ahead_us = max(times[0]) - (time.time() + SKEW_S) * 1e6
        if times[0] != times[1] or ahead_us > 0:
            raise ChaosError(f"the timestamps differ or are {ahead_us} us ahead: {times}")

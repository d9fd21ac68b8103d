"""Defects of the partition registry, each of which seeds of the simulation find."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from dafka_kafka.partition_registry import ACKNOWLEDGED, LeaseState, RegistryLease
from dafka_kafka.registry_table import RegistryTable


class CommitsAtOnce(RegistryLease):
    """The commit record is written with the changes, before a majority has them."""

    def _assign(self) -> None:
        super()._assign()
        if not self._is_unchanged:
            self._commit()


class OwnStoreIsEnough(RegistryLease):
    """The changes are committed when this gateway's store has them."""

    def _event(self) -> str | None:
        event, producer = super()._event(), self.producer
        if event or not producer or self.state is not LeaseState.WRITING:
            return event
        has_all = self._log.has(producer.role.epoch.life, producer.next_offset)
        return ACKNOWLEDGED if has_all else None


class CompletesAtOnce(RegistryLease):
    """The client is told of success before a majority has the changes."""

    def _assign(self) -> None:
        super()._assign()
        for proposal in self._written:
            proposal.complete()


class WritesTheOldPlanAgain(RegistryLease):
    """After another gateway has become the producer, the planned records are written again."""

    _old: list[bytes] | None = None

    def _assign(self) -> None:
        if self._old is None:
            super()._assign()
            return
        while self._proposals:
            self._written.append(self._proposals.popleft())
        assert self.producer is not None
        self.producer.publish_many(self._old)
        self._old, self._is_unchanged = None, False

    def _retry(self) -> None:
        if self._written and self.state is LeaseState.WRITING and self._planned:
            self._old = self._planned
        super()._retry()

    _planned: list[bytes] | None = None

    def _publish(self, records: Any) -> None:
        self._planned = [each.packed() for each in records if each.topic]
        super()._publish(records)


class PlansOnACopy(RegistryLease):
    """The table of the first lease is used for later ones, too."""

    _table: RegistryTable | None = None

    def _assign(self) -> None:
        assert self.producer is not None
        end, log = self.producer.role.acknowledged, self._log
        if self._table is None:
            self._table = deepcopy(log.read(end))
        self._table.applied = end
        vars(log)["read"] = lambda committed=0: self._table
        try:
            super()._assign()
        finally:
            del vars(log)["read"]


COMMON: Final = 40
RARE: Final = 300
"""A change of the protocol changes what happens with a seed, so no single one is named."""

DEFECTS: Mapping[str, tuple[type[RegistryLease], int]] = {
    "the commit record comes with the changes": (CommitsAtOnce, RARE),
    "the gateway's own store is enough": (OwnStoreIsEnough, RARE),
    "success is reported before the commit": (CompletesAtOnce, COMMON),
    "an old plan is written again": (WritesTheOldPlanAgain, COMMON),
    "a plan is made on an old table": (PlansOnACopy, COMMON),
}
"""By name: the lease, and the number of seeds of which one finds it.

Defects of the table and of the log are found by their own tests.
"""

"""Partitions of which a store lacks records that all others have given up.

A store that was away for longer than the others keep records, or that is new, asks for what nobody
has any more.  It goes on where the others begin to have records, as a consumer does (option
``on_data_loss``); what it has from before is set aside, since a partition has no holes.

It takes nothing for given up because others are silent.  A store must say that it begins behind
what this one lacks, nobody may have sent that for a while, and the history of who says so must be
as new as this store's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from dafka_core.epochs import before, last_life
from dafka_core.log_entries import GoOn
from dafka_core.protocol.histories import TOLD
from dafka_core.protocol.known_stores import KnownStores
from dafka_core.protocol.loss_detector import AWAY_S
from dafka_core.protocol.messages import HistoryQuery, HistoryReply
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_partition import StorePartition
from dafka_core.records import PartitionInfo, TopicPartition

UNANSWERED_S: Final = 10.0
"""For so long nobody has sent the records: some asking in vain.  ``AWAY_S`` while a store that is
known is away, since it may have them."""

ASK_S: Final = 1.0
"""How often it asks for the histories of partitions that have waited for so long."""


class TrimmedElsewhere:
    """What other stores have said of such partitions."""

    def __init__(self, known: KnownStores) -> None:
        self._known = known
        self._earliest: dict[TopicPartition, dict[str, int]] = {}
        self._due = 0.0

    def on_held(self, partition: StorePartition, store: str, info: PartitionInfo) -> None:
        """Another store says what it holds."""
        next_offset, said = partition.fetcher.next_offset, self._earliest.get(info.tp)
        if next_offset < info.earliest:
            self._earliest.setdefault(info.tp, {})[store] = info.earliest
        elif said is not None and next_offset < info.end:
            said[store] = info.earliest  # it has what is next
        elif said is not None:
            said.pop(store, None)

    def on_tick(
        self, now: float, partitions: Mapping[TopicPartition, StorePartition]
    ) -> list[Outgoing]:
        """Asks for the history of what has been waited for long enough."""
        if not self._earliest or now < self._due:
            return []
        self._due = now + ASK_S
        asked: list[Outgoing] = []
        for tp, said in [*self._earliest.items()]:
            partition = partitions[tp]
            next_offset = partition.fetcher.next_offset
            if next_offset >= max(said.values(), default=0):
                del self._earliest[tp]
            elif self._waited(now, partition, ()):
                asked.append(HistoryQuery(self._known.store, TOLD, *tp))
        return asked

    def deadline(self) -> float | None:
        """When to look again."""
        return self._due if self._earliest else None

    def on_history(self, now: float, partition: StorePartition, reply: HistoryReply) -> GoOn | None:
        """Has the partition go on where the others begin; None if it waits still."""
        here = self._known.here
        said = {name: at for name, at in self._earliest.get(reply.tp, {}).items() if name in here}
        if not said or not self._waited(now, partition, reply.stores):
            return None
        start = min(said.values())
        is_newer = last_life(reply.history) >= last_life(partition.history)
        if said.get(reply.store) != start or start <= partition.fetcher.next_offset or not is_newer:
            return None
        del self._earliest[reply.tp]
        history = before(reply.history, start)
        partition.go_on(start, history)
        last = reply.transaction
        return GoOn(reply.tp, start, history, last if last and last.end <= start else None)

    def _waited(self, now: float, partition: StorePartition, known: Collection[str]) -> bool:
        """Whether nobody has sent the next record for long enough; others know more stores."""
        away = {*self._known.names, *known} - self._known.here - {self._known.store}
        wait_s = AWAY_S if away else UNANSWERED_S
        is_busy = partition.commits or partition.asides
        return not is_busy and partition.fetcher.unanswered_s(now) >= wait_s

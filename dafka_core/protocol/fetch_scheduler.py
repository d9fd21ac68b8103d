"""The order in which a role fetches its partitions, and the peers it asks.

A role may miss records of any number of partitions.  It fetches some at a time; the others wait for
their turn.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from math import inf
from typing import Final

from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.protocol import timing
from dafka_core.protocol.limits import MAX_FETCH_PARTITIONS, FairQueue
from dafka_core.protocol.messages import Fetch, FetchBatch
from dafka_core.protocol.partition_fetcher import FetchState, PartitionFetcher, ReorderBudget
from dafka_core.protocol.role import Outgoing
from dafka_core.security.permissions import PREFIX_DIGITS

# Partitions of one role.  Any peer can name new ones; at some 1 KB each, this many fit into a
# node's memory.
MAX_PARTITIONS: Final = 1_000_000
# Partitions that one role fetches at a time; the others wait for their turn.  A store answers this
# many small FETCHes within the first timeout, and its queue holds those of several requestors
# (``store_requests.MAX_PENDING_REQUESTS``).
MAX_UNDER_WAY: Final = 1_000


class FetchScheduler:
    """Tracks which partitions of a role miss records, and when to request them again.

    Heads may be forged for any number of partitions, so it visits all fetchers only when one of
    them is due.  RFC 46: a consumer or store "SHALL send the FETCH command if it detects it missed
    a record".

    Partitions wait for their turn by owner: any peer that may write a topic may announce records of
    any number of partitions.  Without keys each partition is its own owner.
    """

    def __init__(self, requestor: str) -> None:
        self.budget = ReorderBudget()
        self._requestor = requestor
        self._under_way: dict[TopicPartition, PartitionFetcher] = {}
        self._waiting = FairQueue[TopicPartition, PartitionFetcher]()  # for their turn
        self._due = inf  # when to visit those under way

    def __len__(self) -> int:
        return len(self._under_way) + len(self._waiting)

    def fetch(self, now: float, fetcher: PartitionFetcher, room: bool = True) -> list[Outgoing]:
        """Return requests for one partition after a change."""
        offsets = self._claim(now, fetcher, room)
        return [Fetch.of(self._requestor, fetcher.tp, *offsets)] if offsets else []

    def on_head(
        self, now: float, fetcher: PartitionFetcher, end: int, *, direct: bool, room: bool = True
    ) -> list[Outgoing]:
        """Return requests after a peer's announcement of a head; ``direct``: to this node alone."""
        fetcher.raise_head(end)
        if direct:
            fetcher.retry_unanswered()  # its sender receives our messages, and we receive its
        return self.fetch(now, fetcher, room)

    def on_store_head(self, fetcher: PartitionFetcher, end: int, store: str) -> None:
        """Queue a partition that a store of ours has up to ``end``."""
        fetcher.raise_head(end)
        fetcher.source = store
        if fetcher.next_offset < end and fetcher.tp not in self._under_way:
            self.enqueue(fetcher)

    def fetch_due(self, now: float) -> list[Outgoing]:
        """Return the requests that are due, those to one store in as few messages as possible."""
        messages: list[Outgoing] = []
        of_stores = defaultdict[str, list[PartitionInfo]](list)

        def fetch(fetcher: PartitionFetcher, *, in_turn: bool = False) -> None:
            in_vain = fetcher.unanswered_since is not None
            offsets = self._claim(now, fetcher, in_turn=in_turn)
            if offsets is None:
                return
            if not fetcher.source:
                messages.append(Fetch.of(self._requestor, fetcher.tp, *offsets))
                return
            of_stores[fetcher.source].append(PartitionInfo(*fetcher.tp, *offsets))
            if in_vain:
                fetcher.source = ""  # requested once more, then from any node

        if now >= self._due:
            self._due = inf
            for fetcher in [*self._under_way.values()]:
                fetch(fetcher)
        for _ in range(MAX_UNDER_WAY - len(self._under_way)):
            if (next_one := self._waiting.take()) is None:
                break
            fetch(next_one, in_turn=True)
        for store, wanted in of_stores.items():
            for start in range(0, len(wanted), MAX_FETCH_PARTITIONS):
                part = tuple(wanted[start : start + MAX_FETCH_PARTITIONS])
                messages.append(FetchBatch(store, self._requestor, part))
        return messages

    def enqueue(self, fetcher: PartitionFetcher) -> None:
        """Visit the partition in its turn in ``fetch_due``."""
        self._under_way.pop(fetcher.tp, None)
        self._waiting.put(_owner(fetcher.tp), fetcher.tp, fetcher)

    def retry_unanswered(self, partition: str) -> None:
        """Retry: a peer that has a partition, or (empty) any of them, can receive FETCHes now."""
        for fetcher in self._under_way.values():
            if partition in ("", fetcher.tp.partition):
                fetcher.retry_unanswered()
                self._due = 0.0

    def unanswered(self, now: float, longer_than_s: float) -> list[PartitionFetcher]:
        """Return fetchers that have requested their next record in vain for longer than this."""
        fetchers = chain(self._under_way.values(), self._waiting)
        return [each for each in fetchers if each.unanswered_s(now) >= longer_than_s]

    def extend_waits(self, paused_s: float) -> None:
        """Extend all waits by a time in which nothing was requested."""
        for each in chain(self._under_way.values(), self._waiting):
            if each.unanswered_since is not None:
                each.unanswered_since += paused_s

    def forget(self, tp: TopicPartition) -> None:
        """Drop a partition that is complete or cancelled."""
        self._under_way.pop(tp, None)
        self._waiting.remove(_owner(tp), tp)

    def deadline(self) -> float:
        """Return when to call ``fetch_due`` next."""
        if self._waiting and len(self._under_way) < MAX_UNDER_WAY:
            return 0.0  # at once
        return self._due if self._under_way else inf

    def _claim(
        self, now: float, fetcher: PartitionFetcher, room: bool = True, *, in_turn: bool = False
    ) -> tuple[int, int] | None:
        """Return the offsets to request now, if any; ``in_turn`` ignores ``MAX_UNDER_WAY``."""
        tp, state = fetcher.tp, fetcher.state(now, room)
        if state is FetchState.UP_TO_DATE:
            self.forget(tp)
            return None
        if state is FetchState.NO_ROOM or (not in_turn and self._must_wait(now, fetcher, state)):
            self.enqueue(fetcher)
            self._due = min(self._due, now + timing.FETCH_RETRY_S)
            return None
        self._waiting.remove(_owner(tp), tp)
        self._under_way[tp] = fetcher
        offsets = fetcher.claim(now, state)
        turn_s = timing.FETCH_RETRY_S if self._waiting else inf
        self._due = min(self._due, fetcher.deadline(), now + turn_s)
        return offsets

    def _must_wait(self, now: float, fetcher: PartitionFetcher, state: FetchState) -> bool:
        """Return True if it is the turn of other partitions."""
        if fetcher.tp not in self._under_way:
            return len(self) >= MAX_UNDER_WAY  # a new one queues behind those that wait
        # Perhaps no node has it.  It is -inf if a consumer waits for lost records (``_lose``).
        unanswered_s = abs(fetcher.unanswered_s(now))
        is_due = state is not FetchState.FETCHING or unanswered_s >= timing.FETCH_RETRY_S
        return is_due and unanswered_s > 0 and len(self) > MAX_UNDER_WAY


def _owner(tp: TopicPartition) -> str:
    return tp.partition[:PREFIX_DIGITS]

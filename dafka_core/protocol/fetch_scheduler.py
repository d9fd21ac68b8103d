"""The order in which a role fetches its partitions, and the peers it asks.

A role may miss something in any number of partitions.  It asks for some at a time; the others wait
for their turn.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, islice
from math import inf
from typing import Final

from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.protocol import partition_states as states
from dafka_core.protocol.limits import MAX_FETCH_PARTITIONS
from dafka_core.protocol.messages import Fetch, FetchBatch
from dafka_core.protocol.partition_fetcher import PartitionFetcher, ReorderBudget
from dafka_core.protocol.role import Outgoing
from dafka_core.security.permissions import PREFIX_DIGITS

# Partitions that wait for their turn to be asked for, so that none of their owners waits long.
#
# Anybody who may write a topic may say of any number of partitions that they have records.  Asked
# for one after the other they would keep those of others waiting for as long as he likes.


class FairQueue:
    """The owners of partitions take turns; each owner's partitions are asked for in their order.

    Without keys each partition has its own owner, as far as can be told from its address.
    """

    def __init__(self) -> None:
        # A plain dict looks at all that has been removed before its first key.
        self._of: OrderedDict[str, OrderedDict[TopicPartition, PartitionFetcher]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, fetcher: PartitionFetcher) -> None:
        """A partition waits from now on, if it does not wait already."""
        queue = self._of.setdefault(_owner(fetcher.tp), OrderedDict())
        self._count += fetcher.tp not in queue
        queue[fetcher.tp] = fetcher

    def remove(self, tp: TopicPartition) -> None:
        """A partition has its turn, or is of no interest any more: its owner's next one is last."""
        owner = _owner(tp)
        queue = self._of.get(owner)
        if queue is None or tp not in queue:
            return
        del queue[tp]
        self._count -= 1
        if queue:
            self._of.move_to_end(owner)
        else:
            del self._of[owner]

    def all(self) -> list[PartitionFetcher]:
        """All that wait."""
        return [each for queue in self._of.values() for each in queue.values()]

    def first(self, count: int) -> list[PartitionFetcher]:
        """Those whose turn it is, at most so many: one of each owner, then a second one of each."""
        found: list[PartitionFetcher] = []
        queues = [iter(queue.values()) for queue in islice(self._of.values(), max(count, 0))]
        while queues and len(found) < count:
            nexts = [(queue, next(queue, None)) for queue in queues]
            found += [each for _, each in nexts if each is not None]
            queues = [queue for queue, each in nexts if each is not None]
        return found[: max(count, 0)]


def _owner(tp: TopicPartition) -> str:
    return tp.partition[:PREFIX_DIGITS]


MAX_PARTITIONS: Final = 1_000_000
"""Partitions one role keeps track of.  Any peer can name new ones; at some 1 KB each this is what
a node can still hold."""

MAX_UNDER_WAY: Final = 1_000
"""Partitions of which one role has asked for records at a time; the others have their turn when one
of these is done.  A store answers so many small FETCHes within the first wait for an answer, and
keeps more than those of several requestors (``store_requests.MAX_PENDING_REQUESTS``)."""


class FetchScheduler:
    """Makes a role's fetchers, and knows which of them miss something and when to ask again.

    Heads may be forged for any number of partitions, so it looks at all fetchers only when one of
    them is due.  RFC 46: a consumer or store "SHALL send the FETCH command if it detects it missed
    a record".
    """

    def __init__(self, requestor: str) -> None:
        self.budget = ReorderBudget()
        self._requestor = requestor
        self._fetchers: dict[TopicPartition, PartitionFetcher] = {}
        self._under_way: set[TopicPartition] = set()
        self._waiting = FairQueue()  # for their turn
        self._due = inf

    def __len__(self) -> int:
        return len(self._fetchers) + len(self._waiting)

    def fetcher(self, tp: TopicPartition, next_offset: int) -> PartitionFetcher:
        """A new fetcher of a partition."""
        return PartitionFetcher(tp, next_offset, self.budget)

    def ask(self, now: float, fetcher: PartitionFetcher, room: bool = True) -> list[Outgoing]:
        """What to ask for one partition now, after something has changed about it."""
        claimed = self._claim(now, fetcher, room)
        return [] if claimed is None else [self._fetch(fetcher.tp, *claimed)]

    def on_head(
        self, now: float, fetcher: PartitionFetcher, end: int, *, direct: bool, room: bool = True
    ) -> list[Outgoing]:
        """What to ask for when a peer says how far a partition reaches; ``direct``: to us alone."""
        fetcher.raise_head(end)
        if direct:
            fetcher.retry_unanswered()  # its sender receives our messages, and we receive its
        return self.ask(now, fetcher, room)

    def on_held(self, fetcher: PartitionFetcher, end: int, store: str) -> None:
        """A store of ours has a partition up to ``end``: the partition waits to be asked for."""
        fetcher.raise_head(end)
        fetcher.source = store
        tp = fetcher.tp
        if fetcher.next_offset < end and tp not in self._under_way:
            self._fetchers.pop(tp, None)
            self._waiting.add(fetcher)

    def ask_due(self, now: float) -> list[Outgoing]:
        """What to ask for all partitions now: of one store in as few messages as hold it."""
        messages: list[Outgoing] = []
        of_stores: dict[str, list[PartitionInfo]] = {}
        due: list[PartitionFetcher] = []
        if now >= self._due:
            self._due = inf
            due.extend(self._fetchers.values())
        for fetcher in due:
            self._add(now, fetcher, messages, of_stores)
        free = MAX_UNDER_WAY - len(self._under_way)
        for fetcher in self._waiting.first(free):
            self._add(now, fetcher, messages, of_stores, in_turn=True)
        for store, wanted in of_stores.items():
            for start in range(0, len(wanted), MAX_FETCH_PARTITIONS):
                part = tuple(wanted[start : start + MAX_FETCH_PARTITIONS])
                messages.append(FetchBatch(store, self._requestor, part))
        return messages

    def postpone(self, fetcher: PartitionFetcher) -> None:
        """The partition may miss something: the next ``ask_due`` looks at it."""
        self._waiting.remove(fetcher.tp)
        self._fetchers[fetcher.tp] = fetcher
        self._due = -inf

    def retry_unanswered(self, partition: str) -> None:
        """A peer that has a partition, or (empty) any of them, receives FETCHes from now on."""
        for fetcher in self._fetchers.values():
            if partition in ("", fetcher.tp.partition):
                fetcher.retry_unanswered()
                self._due = -inf

    def unanswered(self, now: float, longer_than_s: float) -> list[PartitionFetcher]:
        """Those that ask for their next record in vain for so long."""
        fetchers = chain(self._fetchers.values(), self._waiting.all())
        return [each for each in fetchers if each.unanswered_s(now) >= longer_than_s]

    def forget(self, tp: TopicPartition) -> None:
        """The partition is complete, or of no interest any more."""
        self._fetchers.pop(tp, None)
        self._waiting.remove(tp)
        self._under_way.discard(tp)

    def deadline(self) -> float | None:
        """When to call ``ask_due`` next."""
        return self._due if self._fetchers else None

    def _claim(
        self, now: float, fetcher: PartitionFetcher, room: bool = True, *, in_turn: bool = False
    ) -> tuple[int, int] | None:
        """The offsets to ask for now, if it is the partition's turn, as ``in_turn`` says it is."""
        action = fetcher.action(states.TURN, now, room)
        if action == states.FORGET:
            self.forget(fetcher.tp)
            return None
        if action == states.POSTPONE:
            self.postpone(fetcher)
            return None
        tp = fetcher.tp
        wants = action in (states.ASK_NEXT, states.ASK_AGAIN)
        if wants and fetcher.unanswered_since is not None and self._waiting:
            self._under_way.discard(tp)  # nobody may have it: the others first
        if wants and tp not in self._under_way and not (in_turn or self._has_room):
            self._fetchers.pop(tp, None)
            self._waiting.add(fetcher)
            return None
        self._waiting.remove(tp)
        self._fetchers[tp] = fetcher
        claimed = fetcher.claim(now, action)
        self._due = min(self._due, fetcher.deadline() or inf)
        if claimed is not None:
            self._under_way.add(tp)
        return claimed

    def _add(
        self,
        now: float,
        fetcher: PartitionFetcher,
        messages: list[Outgoing],
        of_stores: dict[str, list[PartitionInfo]],
        *,
        in_turn: bool = False,
    ) -> None:
        """Adds what to ask for one partition: of the store that has it, or else of everybody."""
        in_vain = fetcher.unanswered_since is not None
        claimed = self._claim(now, fetcher, in_turn=in_turn)
        if claimed is None:
            return
        tp = fetcher.tp
        if fetcher.source:
            of_stores.setdefault(fetcher.source, []).append(PartitionInfo(*tp, *claimed))
            if in_vain:
                fetcher.source = ""  # it is asked once more; then anybody who has them
        else:
            messages.append(self._fetch(tp, *claimed))

    def _fetch(self, tp: TopicPartition, start: int, end: int) -> Fetch:
        return Fetch(tp.partition, self._requestor, tp.topic, start, end - start)

    @property
    def _has_room(self) -> bool:
        """Whether one more partition may be asked for now, beside all that wait."""
        return len(self._waiting) < MAX_UNDER_WAY - len(self._under_way)

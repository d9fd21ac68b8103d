"""Partitions that wait for their turn to be asked for, so that none of their owners waits long.

Anybody who may write a topic may say of any number of partitions that they have records.  Asked
for one after the other they would keep those of others waiting for as long as he likes.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from dafka_core.permissions import PREFIX_DIGITS
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.records import TopicPartition


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

"""Looks at what a store's log holds, so that its limits know (``protocol/store_limits.py``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dafka_core.errors import StoreError
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.protocol.store_limits import Held, StoreLimits
from dafka_core.storage import Log
from dafka_core.storage.block_compressor import BlockCompressor
from dafka_core.storage.retention_pass import HeldBlocks

PAGE: Final = 10_000
"""Partitions that are looked at in one step."""

SHARE: Final = 0.02
"""Of the time: it is looked again only after fifty times as long as it took last."""


_log = logging.getLogger("dafka.store")


def held_at_start(log: Log, limits: StoreLimits) -> Held:
    """What a log holds, but for octets, before there is a loop."""
    held = Held()
    for _ in _counted(log, limits, held):
        pass
    return held


class HeldLook:
    """Counts partitions by topic and owner, and where a limit asks for it what they take.

    Args:
        log: any thread may read it.
        limits: what they are counted for.
        compressor: that of the log; what it has compressed is looked at anew.
        done: is called in the loop with what was found.
        tell: has the store's loop, where the limits are used, call a function.
    """

    def __init__(
        self,
        log: Log,
        limits: StoreLimits,
        compressor: BlockCompressor,
        done: Callable[[Held], object],
        tell: Callable[[Callable[[float], object]], object],
    ) -> None:
        self._tell = tell
        self._done = done
        self._log = log
        self._limits = limits
        self._compressor = compressor
        self._blocks = HeldBlocks(log)
        self._seen = (-1, 0)  # changes of the log, and compressed blocks, at the last look
        self._due = 0.0
        self._damaged: set[TopicPartition] = set()  # those that were said

    def steps(self) -> Iterator[None]:
        """One look, if the log has changed since the last one; each step does a little.

        Raises:
            DafkaError: the log is closed, or damaged.
        """
        began, seen = time.monotonic(), (self._log.changes.number, self._compressor.blocks)
        if seen == self._seen or began < self._due:
            return
        self._tell(lambda now: self._limits.begin_look())
        held = Held()
        new = set(self._limits.new.copy())
        infos: list[PartitionInfo] = []
        for found in _counted(self._log, self._limits, held):
            held.seen.update(info.tp for info in found if info.tp in new)
            infos += found if self._limits.counts_bytes else ()
            yield
        if self._limits.counts_bytes:
            if seen[1] != self._seen[1]:
                self._blocks.keep_only(())
            yield from self._measured(infos, held)
        self._seen = seen
        self._due = time.monotonic() + (time.monotonic() - began) / SHARE
        self._tell(lambda now: self._done(held))

    def _measured(self, infos: list[PartitionInfo], held: Held) -> Iterator[None]:
        self._blocks.keep_only({info.tp for info in infos})
        held_infos = (info for info in infos if info.earliest < info.end)
        damaged: dict[TopicPartition, StoreError] = {}
        sizes = yield from self._blocks.look_at(held_infos, damaged)
        self._say_damaged(damaged)
        for tp, blocks in sizes.items():
            held.size_bytes[self._limits.owner(tp)] += sum(each.size_bytes for each in blocks)
        for staged in self._log.staged():
            held.size_bytes[self._limits.owner(staged.tp)] += staged.size_bytes

    def _say_damaged(self, damaged: Mapping[TopicPartition, StoreError]) -> None:
        """Says it once of each partition, all that are new in one line."""
        new, self._damaged = damaged.keys() - self._damaged, set(damaged)
        if new:
            text = (
                "%(count)d partitions are damaged, and count for limit max_key_bytes as they did "
                "before; one of them: %(why)s"
            )
            facts = {"count": len(new), "why": damaged[min(new)].why}
            _log.error(text, facts, extra={"event": "log_damaged"})


def _counted(log: Log, limits: StoreLimits, held: Held) -> Iterator[list[PartitionInfo]]:
    found = log.partitions_after(None, None, PAGE)
    while found:
        for info in found:
            if info.earliest < info.end:
                held.topics[info.topic] += 1
                held.owners[limits.owner(info.tp)] += 1
        yield found
        found = log.partitions_after(None, found[-1].tp, PAGE)

"""The partitions that a store keeps track of, as far as its limits admit them and their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dafka_core.limit_options import StoreLimitError
from dafka_core.log_entries import LogEntry, Stage
from dafka_core.protocol.fetch_scheduler import FetchScheduler
from dafka_core.protocol.store_limits import Held, StoreLimits
from dafka_core.protocol.store_partition import StorePartition
from dafka_core.records import PartitionLives, RecordBatch, TopicPartition


class AdmittedPartitions:
    """Admits partitions: all that are in the log, and new ones below the limits.

    Args:
        scheduler: asks for what they lack.
        lives_of: where a partition on disk ends, and whose its records are.
    """

    def __init__(
        self,
        scheduler: FetchScheduler,
        lives_of: Callable[[TopicPartition], PartitionLives],
        limits: StoreLimits,
    ) -> None:
        self.by_name: dict[TopicPartition, StorePartition] = {}
        self.limits = limits
        self._scheduler = scheduler
        self._lives_of = lives_of

    def find(self, tp: TopicPartition) -> StorePartition | None:
        """A partition, from now on kept track of; None if a limit refuses it."""
        found = self.admit(tp)
        return None if isinstance(found, StoreLimitError) else found

    def admit(self, tp: TopicPartition) -> StorePartition | StoreLimitError:
        """The same, or why it is refused, which is counted then."""
        partition = self.by_name.get(tp)
        if partition is None:
            end, history, promised, _ = self._lives_of(tp)
            if not end:
                if (error := self.limits.why_not_new(tp)) is not None:
                    self.limits.refuse(error)
                    return error
                self.limits.add(tp)
            fetcher = self._scheduler.fetcher(tp, end)
            partition = self.by_name[tp] = StorePartition(fetcher, end, end, history, promised)
        return partition

    def refusal(self, tp: TopicPartition) -> StoreLimitError | None:
        """Why a client's records are not taken, which counts as refused then; None: they are."""
        is_there = tp in self.by_name or self._lives_of(tp).end > 0
        limits = self.limits
        error = limits.why_no_records(tp) if is_there else limits.why_not_new(tp)
        if error is not None:
            limits.refuse(error)
        return error

    def refuses(self, partition: StorePartition, end: int) -> bool:
        """Whether records up to ``end`` are not taken from peers, nor asked for, for now."""
        fetcher = partition.fetcher
        error = self.limits.why_no_records(fetcher.tp) if end > fetcher.next_offset else None
        if error is None:
            return False
        self.limits.refuse(error)
        fetcher.raise_head(end)
        self._scheduler.forget(fetcher.tp)
        return True

    def on_taken(self, batch: RecordBatch) -> None:
        """Records are on their way to the log."""
        if self.limits.take(batch.tp, batch.values.size_bytes):
            self._change([self.limits.owner(batch.tp)])

    def on_stored(self, entries: Iterable[LogEntry]) -> None:
        """This is in the log, or will not be."""
        for entry in entries if self.limits.counts_bytes else ():
            batch = entry.batch if isinstance(entry, Stage) else entry
            if isinstance(batch, RecordBatch):
                self.limits.store(batch.tp, batch.values.size_bytes)

    def on_held(self, held: Held) -> None:
        """The log holds so much: what was refused goes on where there is room again."""
        self._change(self.limits.apply(held))

    def _change(self, owners: Iterable[str]) -> None:
        changed = set(owners)
        for tp, partition in self.by_name.items() if changed else ():
            if self.limits.owner(tp) not in changed:
                continue
            if self.limits.why_no_records(tp) is not None:
                self._scheduler.forget(tp)
            elif partition.fetcher.next_offset < partition.fetcher.head:
                partition.fetcher.retry_unanswered()
                self._scheduler.postpone(partition.fetcher)

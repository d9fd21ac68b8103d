"""A partition as a store keeps it (docs/states.md)."""

from __future__ import annotations

from dataclasses import dataclass

from dafka_core.epochs import NO_LIFE, Epoch, EpochId, History, before, last_life
from dafka_core.log_entries import GoOn, SetAside
from dafka_core.protocol import partition_states as states
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.partition_states import StoreState
from dafka_core.records import Transaction


@dataclass(slots=True)
class StorePartition:
    """One partition as a store keeps it."""

    fetcher: PartitionFetcher
    durable: int
    """Readers see the records before this offset: they are on disk."""
    visible_end: int
    """What ``durable`` will be when the log has done all that it was given, but for commits."""
    history: History = ()
    """Of all that the log has, or was given."""
    promised: EpochId = NO_LIFE
    """The newest life that was promised that nothing more of older ones is acknowledged."""
    staged: Transaction | None = None  # another store's, of which only the first part has come
    commits: int = 0  # on their way to the disk
    asides: int = 0  # the same: records that another history has won over
    hosted: Epoch | None = None  # of what clients write here, from its first record on
    lost_to: EpochId = NO_LIFE
    """The newest life of those whose records have replaced the store's."""
    too_large: int = -1
    """The offset of the record that it cannot take, as the last error said."""

    @property
    def newest(self) -> EpochId:
        """The newest life that the store has heard of."""
        return max(last_life(self.history), self.promised, self.lost_to)

    @property
    def state(self) -> StoreState:
        """The partition's state (docs/states.md)."""
        if self.commits or self.asides:
            return StoreState.COMMITTING
        if self.staged is not None:
            return StoreState.IN_PART
        if self.fetcher.next_offset < self.fetcher.head:
            return StoreState.BEHIND
        return StoreState.FOLLOWING

    def action(self, event: str) -> str:
        """What the store does at an event."""
        return states.STORE_TABLE[self.state][event].action

    def stops_at(self, offset: int) -> bool:
        """A record cannot be taken; whether it is next, and that is new."""
        is_news = self.too_large != offset == self.fetcher.next_offset
        if is_news:
            self.too_large = offset
        return is_news

    def go_on(self, start: int, history: History) -> None:
        """The records before ``start`` are to be had nowhere, and were of this history."""
        self.asides += 1
        self.hosted = self.staged = None
        self.history = history
        self.visible_end = start
        self.fetcher.begin(start)

    def on_begun(self, entry: SetAside | GoOn) -> None:
        """The log has set records aside."""
        self.asides -= 1
        if isinstance(entry, GoOn) and not self.asides:
            self.durable = entry.start

    def give_up(self, start: int, end: int, life: EpochId) -> None:
        """The records from ``start`` on are a newer life's, and it asks for them up to ``end``.

        What clients write here from now on is of a new life, too: their last one has said other
        records at these offsets.
        """
        self.lost_to = max(self.newest, life)
        self.hosted = None
        self.history = before(self.history, start)
        self.visible_end = self.fetcher.head = start
        self.durable = min(self.durable, start)
        self.staged = None
        self.fetcher.begin(start)
        self.fetcher.raise_head(end)

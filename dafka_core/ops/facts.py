"""What was found out about a cluster, before anybody judges it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition
from dafka_core.ops.port_probe import TowerFacts


class FileAccess(Enum):
    """Whether a store's file can be read here."""

    ELSEWHERE = auto()
    READABLE = auto()
    UNREADABLE = auto()


class StoreFacts(NamedTuple):
    """One store that was heard of.

    Attributes:
        store: its address; its URI where it was named by that and has not answered.
        knows_queries: it is of ours; False: a C node.
        connects: it has connected to this node, and hears what that asks.
        locations: where it serves Arrow Flight, as it announces; none if it serves none.
        failure: why Flight has not answered.
        stranger: what is spoken there that is no Flight; empty if that is not known.
        ahead_s: how far its clock is ahead of this machine's; None if that is not known.
        unsure_s: how much that may be wrong, by the time that its answer took.
        lacks: actions of Arrow Flight that this version uses, and that it does not know.
        more: actions that it knows and this version does not.
        file: whether its file can be read from here.
        rules: of retention, by which it goes; None if that is not known.
        rules_set: whether these were set while it ran.
        clock_doubt: why it does not go by its clock; empty if it does.
    """

    store: str
    knows_queries: bool = True
    connects: bool = True
    locations: tuple[str, ...] = ()
    failure: str = ""
    stranger: str = ""
    ahead_s: float | None = None
    unsure_s: float = 0.0
    lacks: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    file: FileAccess = FileAccess.ELSEWHERE
    rules: tuple[str, ...] | None = None
    rules_set: bool = False
    clock_doubt: str = ""

    @property
    def is_named(self) -> bool:
        """Whether it goes by its URI, as it has not said who it is."""
        return "://" in self.store

    @property
    def name(self) -> str:
        """How it is called in a sentence."""
        return self.store if self.is_named else f"store {self.store}"


class Facts(NamedTuple):
    """All that was found out.

    Attributes:
        towers: those that were named, and who listens there; none where stores were named.
        tower_found: whether one has introduced a node of this process; None if none has tried.
        node_count: how many other nodes the towers tell of.
        endpoint: where other nodes were told to connect to this process.
        stores: those that were heard of.
        away: those that others have met, and that do not answer.
        topics: those that were asked about.
        heads: what the stores have of them together; of all topics, if one of these is missing.
        asked: whether stores could be asked for that.
    """

    towers: tuple[TowerFacts, ...] = ()
    tower_found: bool | None = None
    node_count: int = 0
    endpoint: str = ""
    stores: tuple[StoreFacts, ...] = ()
    away: tuple[KnownStore, ...] = ()
    topics: tuple[str, ...] = ()
    heads: Mapping[TopicPartition, PartitionInfo] = {}
    asked: bool = False

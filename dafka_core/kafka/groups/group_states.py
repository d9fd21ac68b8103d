"""The states of a consumer group, and what a gateway does in each with what happens.

``Group`` decides by this table, and tests hold the two against each other.  They are the states of
Kafka's classic group protocol, by its names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from dafka_core.kafka.kafka_errors import KafkaError

JOIN: Final = "a new member joins"
REJOIN: Final = "a member joins again, as it was"
CHANGE: Final = "a member joins again, with other protocols"
SYNC: Final = "a member asks for its part"
ASSIGN: Final = "the leader assigns"
HEARTBEAT: Final = "a heartbeat comes"
LEAVE: Final = "a member leaves, or its session ends"
COMMIT: Final = "a member commits"
SIMPLE_COMMIT: Final = "a client without a group commits"
READY: Final = "all have joined, or the time for it is over"
OVERDUE: Final = "the time to ask for parts is over"
DELETE: Final = "it is deleted, or moves to another gateway"

REBALANCE: Final = "begins a rebalance"
WAIT: Final = "waits for the others"
CHECK: Final = "sees whether all have joined"
REPEAT: Final = "says again what it said"
GIVE: Final = "gives the member its part"
TAKE: Final = "takes it"
BEGIN: Final = "begins a generation"
END: Final = "ends what waits"


class GroupState(Enum):
    """A state, with what it means."""

    EMPTY = "it has no members; it may have committed offsets"
    PREPARING_REBALANCE = "members join, until all have, or the time for it is over"
    COMPLETING_REBALANCE = "the leader has been told who has joined, and assigns partitions to them"
    STABLE = "each member knows its partitions"
    DEAD = "it is not at this gateway any more"

    @property
    def label(self) -> str:
        """The state's name in prose."""
        return self.name.lower().replace("_", " ")

    @property
    def kafka_name(self) -> str:
        """The state's name in Kafka's answers, as ``PreparingRebalance``."""
        return self.name.title().replace("_", "")


class Reaction(NamedTuple):
    """The labels of the states that may follow, and what the gateway does, or its error."""

    then: str
    action: str | KafkaError


Table = Mapping[GroupState, Mapping[str, Reaction]]

_UNKNOWN: Final = KafkaError.UNKNOWN_MEMBER_ID
_REBALANCING: Final = KafkaError.REBALANCE_IN_PROGRESS
_GONE: Final = KafkaError.COORDINATOR_NOT_AVAILABLE
_PREPARING: Final = "preparing rebalance"
_COMPLETING: Final = "completing rebalance"
_NEXT: Final = f"{_PREPARING}, {_COMPLETING}, empty"
_LESS: Final = f"{_PREPARING}, empty"

GROUP_TABLE: Final[Table] = {
    GroupState.EMPTY: {
        JOIN: Reaction(f"{_PREPARING}, {_COMPLETING}", REBALANCE),
        REJOIN: Reaction("empty", _UNKNOWN),
        CHANGE: Reaction("empty", _UNKNOWN),
        SYNC: Reaction("empty", _UNKNOWN),
        ASSIGN: Reaction("empty", _UNKNOWN),
        HEARTBEAT: Reaction("empty", _UNKNOWN),
        LEAVE: Reaction("empty", _UNKNOWN),
        COMMIT: Reaction("empty", _UNKNOWN),
        SIMPLE_COMMIT: Reaction("empty", TAKE),
        DELETE: Reaction("dead", END),
    },
    GroupState.PREPARING_REBALANCE: {
        JOIN: Reaction(f"{_PREPARING}, {_COMPLETING}", WAIT),
        REJOIN: Reaction(f"{_PREPARING}, {_COMPLETING}", WAIT),
        CHANGE: Reaction(f"{_PREPARING}, {_COMPLETING}", WAIT),
        SYNC: Reaction(_PREPARING, _REBALANCING),
        ASSIGN: Reaction(_PREPARING, _REBALANCING),
        HEARTBEAT: Reaction(_PREPARING, _REBALANCING),
        LEAVE: Reaction(_NEXT, CHECK),
        COMMIT: Reaction(_PREPARING, TAKE),
        SIMPLE_COMMIT: Reaction(_PREPARING, _UNKNOWN),
        READY: Reaction(_NEXT, BEGIN),
        DELETE: Reaction("dead", END),
    },
    GroupState.COMPLETING_REBALANCE: {
        JOIN: Reaction(_PREPARING, REBALANCE),
        REJOIN: Reaction(_COMPLETING, REPEAT),
        CHANGE: Reaction(f"{_PREPARING}, {_COMPLETING}", REBALANCE),
        SYNC: Reaction(_COMPLETING, WAIT),
        ASSIGN: Reaction("stable", GIVE),
        HEARTBEAT: Reaction(_COMPLETING, TAKE),
        LEAVE: Reaction(_LESS, REBALANCE),
        COMMIT: Reaction(_COMPLETING, _REBALANCING),
        SIMPLE_COMMIT: Reaction(_COMPLETING, _UNKNOWN),
        OVERDUE: Reaction(_LESS, REBALANCE),
        DELETE: Reaction("dead", END),
    },
    GroupState.STABLE: {
        JOIN: Reaction(_PREPARING, REBALANCE),
        REJOIN: Reaction("stable", REPEAT),
        CHANGE: Reaction(f"{_PREPARING}, {_COMPLETING}", REBALANCE),
        SYNC: Reaction("stable", GIVE),
        ASSIGN: Reaction("stable", GIVE),
        HEARTBEAT: Reaction("stable", TAKE),
        LEAVE: Reaction(_LESS, REBALANCE),
        COMMIT: Reaction("stable", TAKE),
        SIMPLE_COMMIT: Reaction("stable", _UNKNOWN),
        OVERDUE: Reaction(_LESS, REBALANCE),
        DELETE: Reaction("dead", END),
    },
    GroupState.DEAD: {
        event: Reaction("dead", _GONE)
        for event in (JOIN, REJOIN, CHANGE, SYNC, ASSIGN, HEARTBEAT, LEAVE, COMMIT, SIMPLE_COMMIT)
    },
}
"""By state and event; where there is no entry, nothing happens."""

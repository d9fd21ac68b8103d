"""The states of a partition in a consumer and in a store, and what each does with what happens.

The roles decide by these tables: ``STORE_TABLE[state][RECORDS].action`` says what a store does with
records.  A partition's state follows from its data (``PartitionFetcher.state``,
``StorePartition.state``), so no step can forget to set it.  Tests hold the roles against the states
that may follow; ``scripts/states.py`` writes docs/states.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

HEAD: Final = "a head comes"
RECORDS: Final = "records come"
TURN: Final = "its turn to ask"
TIME: Final = "time passes"
PEER: Final = "a peer receives FETCHes anew"
ROOM: Final = "room ends or begins"
LOSS: Final = "nobody has the next records"
PUT: Final = "a client writes records"
STAGE: Final = "a client stages records"
COMMIT: Final = "a client commits"
OUTCOME: Final = "the log is done"

TAKE: Final = "takes them"
TAKE_OVER: Final = "gives up the part, if any, and takes them"
LEAVE: Final = "fetches them later"
REFUSE: Final = "refuses them"
FORGET: Final = "asks for nothing"
WAIT: Final = "waits"
ASK_NEXT: Final = "asks for the next block"
ASK_AGAIN: Final = "asks again"
POSTPONE: Final = "asks when there is room"
SAY_SO: Final = "says so; waits, or goes on behind them"


class PartitionState(Enum):
    """A state, with what it means."""

    __hash__ = object.__hash__  # Enum's own is Python code, too slow for each batch

    @property
    def label(self) -> str:
        """The state's name in prose."""
        return self.name.lower().replace("_", " ")


class FetchState(PartitionState):
    """What a partition is for a consumer."""

    UP_TO_DATE = "it has all records that it knows of"
    BEHIND = "records are missing that it has not asked for"
    FETCHING = "it has asked for missing records, and the answer may still come"
    OVERDUE = "it has asked, and nothing came for 1 s; each time twice as long, up to 8 s"
    NO_ROOM = "the application has not taken enough of what was delivered"


class StoreState(PartitionState):
    """What a partition is for a store."""

    FOLLOWING = "it has all records that it knows of"
    BEHIND = "records are missing, and it fetches them"
    IN_PART = "it has the first part of another store's transaction, which no reader sees"
    COMMITTING = "a commit is on its way to the disk: its outcome tells how the partition goes on"


class Reaction(NamedTuple):
    """The labels of the states that may follow an event, and what the role does."""

    then: str
    action: str = ""


Table = Mapping[PartitionState, Mapping[str, Reaction]]
"""By state and event; where there is no entry, the state stays."""

FETCH_TABLE: Final[Table] = {
    FetchState.UP_TO_DATE: {
        HEAD: Reaction("up to date, behind"),
        RECORDS: Reaction("up to date, behind", TAKE),
        TURN: Reaction("up to date", FORGET),
        ROOM: Reaction("no room"),
    },
    FetchState.BEHIND: {
        LOSS: Reaction("up to date, behind", SAY_SO),
        RECORDS: Reaction("up to date, behind, fetching", TAKE),
        TURN: Reaction("fetching", ASK_NEXT),
        TIME: Reaction("behind, overdue"),
        ROOM: Reaction("no room"),
    },
    FetchState.FETCHING: {
        LOSS: Reaction("up to date, behind, fetching", SAY_SO),
        HEAD: Reaction("fetching, behind"),
        RECORDS: Reaction("up to date, behind, fetching", TAKE),
        TURN: Reaction("fetching", WAIT),
        TIME: Reaction("fetching, overdue"),
        PEER: Reaction("fetching, behind"),
        ROOM: Reaction("no room"),
    },
    FetchState.OVERDUE: {
        LOSS: Reaction("up to date, behind, overdue", SAY_SO),
        RECORDS: Reaction("up to date, behind, fetching, overdue", TAKE),
        TURN: Reaction("fetching", ASK_AGAIN),
        PEER: Reaction("overdue, behind"),
        ROOM: Reaction("no room"),
    },
    FetchState.NO_ROOM: {
        RECORDS: Reaction("no room", LEAVE),
        TURN: Reaction("no room", POSTPONE),
        ROOM: Reaction("up to date, behind, fetching, overdue"),
    },
}

STORE_TABLE: Final[Table] = {
    StoreState.FOLLOWING: {
        HEAD: Reaction("following, behind"),
        RECORDS: Reaction("following, behind, in part", TAKE),
        PUT: Reaction("following", TAKE),
        STAGE: Reaction("following", TAKE),
        COMMIT: Reaction("committing"),
        OUTCOME: Reaction("following, behind"),
    },
    StoreState.BEHIND: {
        RECORDS: Reaction("following, behind, in part", TAKE),
        PUT: Reaction("following, behind, in part", TAKE),
        STAGE: Reaction("behind", TAKE),
        COMMIT: Reaction("committing"),
    },
    StoreState.IN_PART: {
        RECORDS: Reaction("following, behind, in part", TAKE),
        PUT: Reaction("following, behind, in part", TAKE_OVER),
        STAGE: Reaction("behind, in part", TAKE_OVER),
        COMMIT: Reaction("committing"),
        OUTCOME: Reaction("behind, in part"),
    },
    StoreState.COMMITTING: {
        RECORDS: Reaction("committing", LEAVE),
        PUT: Reaction("committing", REFUSE),
        STAGE: Reaction("committing", TAKE_OVER),
        OUTCOME: Reaction("following, behind, in part, committing"),
    },
}

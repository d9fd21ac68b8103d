"""The states of a partition in a consumer and in a store, and the reactions to each event.

The roles decide by these tables: ``STORE_TABLE[state][RECORDS].action`` is a store's reaction to
records.  A partition's state follows from its data (``PartitionFetcher.state``,
``StorePartition.state``), so no step can forget to set it.  Tests compare the roles with the
states that may follow; ``scripts/states.py`` writes docs/states.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

# Events.
HEAD: Final = "a head arrives"
RECORDS: Final = "records arrive"
TURN: Final = "its turn to fetch"
TIME: Final = "time passes"
PEER: Final = "a peer connects again"
ROOM: Final = "room ends or begins"
LOSS: Final = "no node has the next records"
PUT: Final = "a client writes records"
STAGE: Final = "a client stages records"
COMMIT: Final = "a client commits"
OUTCOME: Final = "the log reports the outcome"

# Actions.
TAKE: Final = "accepts them"
TAKE_OVER: Final = "discards the incomplete transaction, if any, and accepts them"
LEAVE: Final = "fetches them later"
REFUSE: Final = "refuses them"
FORGET: Final = "requests nothing"
WAIT: Final = "waits"
ASK_NEXT: Final = "requests the next block"
ASK_AGAIN: Final = "repeats the request"
POSTPONE: Final = "requests when the reader has room"
REPORT_LOSS: Final = "reports a loss; waits, or skips them"


class LabelledState(Enum):
    """A state, with its meaning."""

    __hash__ = object.__hash__  # Enum's own is Python code, too slow for each batch

    @property
    def label(self) -> str:
        """Return the state's name in prose."""
        return self.name.lower().replace("_", " ")


class FetchState(LabelledState):
    """States of a partition in a consumer."""

    UP_TO_DATE = "it has all records that it knows of"
    BEHIND = "it has not requested its missing records"
    FETCHING = "it has requested missing records, and waits for the answer"
    OVERDUE = "no answer for 1 s; twice as long after each retry, up to 8 s"
    NO_ROOM = "the application has not read enough delivered records"


class StoreState(LabelledState):
    """States of a partition in a store."""

    FOLLOWING = "it has all records that it knows of"
    BEHIND = "records are missing, and it fetches them"
    IN_PART = "it has the first part of another store's transaction, invisible to readers"
    COMMITTING = "a commit is in the log's queue; its outcome decides the next state"


class Reaction(NamedTuple):
    """The labels of the states that may follow an event, and the role's action."""

    then: str
    action: str = ""


Table = Mapping[LabelledState, Mapping[str, Reaction]]
"""By state and event; without an entry the state stays."""

FETCH_TABLE: Final[Table] = {
    FetchState.UP_TO_DATE: {
        HEAD: Reaction("up to date, behind"),
        RECORDS: Reaction("up to date, behind", TAKE),
        TURN: Reaction("up to date", FORGET),
        ROOM: Reaction("no room"),
    },
    FetchState.BEHIND: {
        LOSS: Reaction("up to date, behind", REPORT_LOSS),
        RECORDS: Reaction("up to date, behind, fetching", TAKE),
        TURN: Reaction("fetching", ASK_NEXT),
        TIME: Reaction("behind, overdue"),
        ROOM: Reaction("no room"),
    },
    FetchState.FETCHING: {
        LOSS: Reaction("up to date, behind, fetching", REPORT_LOSS),
        HEAD: Reaction("fetching, behind"),
        RECORDS: Reaction("up to date, behind, fetching", TAKE),
        TURN: Reaction("fetching", WAIT),
        TIME: Reaction("fetching, overdue"),
        PEER: Reaction("fetching, behind"),
        ROOM: Reaction("no room"),
    },
    FetchState.OVERDUE: {
        LOSS: Reaction("up to date, behind, overdue", REPORT_LOSS),
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

"""A known defect for each finding of the checkers, put into a production role by itself.

``where`` names the lines of zeromq/dafka (c2dc88d, ``src/``) that have the defect, or the part of
this project that had it before the simulator found it.  Further defects are in the tests of the
roles, which find them sooner, and in ``tests/mutants/defects.toml``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from dafka_core.model import records, timestamps
from dafka_core.nodes import security, sockets
from dafka_core.protocol import consumer_role, producer_role
from tests.simulation import mesh
from tests.simulation.cluster import Roles
from tests.simulation.defective_roles import (
    AcknowledgesOnce,
    AcknowledgesUnsynced,
    AnswersFromLater,
    CountsAcksTwice,
    FollowsAnything,
    ForgetsAtOnce,
    LatestIsOneTooFew,
    SendsAnySize,
    SkipsGaps,
    TakesPrefixes,
    TakesTwice,
    TellsOfMoreThanIsStored,
    WaitsForGreetings,
    _StaleParse,
    nobody_is_missing,
    stamped_by_itself,
)
from tests.simulation.shape import OURS


@dataclass(frozen=True)
class Defect:
    """Something that was wrong somewhere, and how to have it here."""

    name: str
    where: str
    finds: str  # the simulator's finding: a regular expression
    roles: Roles = field(default_factory=Roles)
    changes: Callable[[], Mapping[tuple[ModuleType, str], Any]] = dict
    """Further replacements, by module and name."""
    first: int = 0
    """The seed to begin with, where it was found last, if others take long.  Some defects show in
    one world of hundreds."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Fixed members of each seed's shape, which make a rare defect likely."""


ZOMBIES: Mapping[str, Any] = {
    "styles": ("ours",),
    "stores": 3,
    "towers": 1,
    "late_stores": 0,
    "producers": 3,
    "acks": 2,
    "records": 150,
    "another_every_s": 1.0,
    "partition_every_s": 1.5,
    "crash_every_s": 2.0,
    "trim_every_s": 0.0,
    "replaced_every_s": 0.0,
    "leaves": 0.0,
}
"""Producers are started again while they run, and stores that they need are away."""

LOST_RECORDS = "lost: .* for safe|lost: TopicPartition|which is not what it was"


DEFECTS = (
    Defect(
        "ACKs of one store count twice",
        "dafka_proto.c:865",
        "takes .* for safe, 1 stores have it",
        Roles(producer=CountsAcksTwice),
    ),
    Defect(
        "unacknowledged records are deleted",
        "producer.c:235",
        r"store-. has \d+ of",
        Roles(producer=ForgetsAtOnce),
        first=4,
    ),
    Defect(
        "a lost ACK is never repeated",
        "store_writer.c:246",
        "producer-. waits",
        Roles(store=AcknowledgesOnce),
        first=66,
    ),
    Defect(
        "ACK before the disk has it",
        "store_writer.c:320",
        "acknowledges .* are on its disk",
        Roles(loop=AcknowledgesUnsynced),
    ),
    Defect(
        "another record answers a FETCH",
        "DafkaMsgKey.java:85 (jdafka)",
        "store-.* sends .* which is not what it was",
        Roles(loop=AnswersFromLater),
    ),
    Defect(
        "topics match by prefix",
        "consumer.c:250",
        "not subscribed to",
        Roles(consumer=TakesPrefixes),
        first=6,
    ),
    Defect(
        "latest is one too few",
        "consumer.c:279",
        "and the latest was",
        Roles(consumer=LatestIsOneTooFew),
        first=18,
    ),
    Defect(
        "dropped records are skipped",
        "store_reader.c:263",
        "lost: was delivered",
        Roles(consumer=SkipsGaps),
    ),
    Defect(
        "records are delivered twice",
        "consumer.c:337",
        "doubled: was delivered",
        Roles(consumer=TakesTwice),
    ),
    Defect(
        "cut frames are the message before",
        "dafka_proto.c:92",
        "counts 0 invalid messages, and 1 came",
        changes=lambda: {(sockets, "decode"): _StaleParse()},
    ),
    Defect(
        "heads of what no store has",
        "ours",
        r"was told .* and \d+ are on disk",
        Roles(producer=TellsOfMoreThanIsStored),
        first=143,
    ),
    Defect(
        "a lost greeting hides a store",
        "ours",
        "reader-. reads",
        Roles(reader=WaitsForGreetings),
        first=4,
        shape={"stores": 1, "acks": 1, "readers": 1, "loss": 0.3, "cut_every_s": 0.0},
    ),
    Defect(
        "a record too large ends its receiver's connection for good",
        "ours",
        "lost: .* consumer-0 is at",
        changes=lambda: {(mesh, "RecordLimits"): SendsAnySize},
        first=4,
    ),
    Defect(
        "a life begins without promises",
        "ours",
        LOST_RECORDS,
        changes=lambda: {(producer_role, "missing"): nobody_is_missing},
        first=5,
        shape=ZOMBIES,
    ),
    Defect(
        "consumers follow any history",
        "ours",
        "was delivered a mixture",
        changes=lambda: {(consumer_role, "FollowedPartition"): FollowsAnything},
        shape={**ZOMBIES, "acks": 1, "stores": 2, "consumers": 2},
        first=5,
    ),
    Defect(
        "each store stamps its records itself",
        "ours",
        "two timestamps",
        changes=lambda: {(records, "kept_times"): stamped_by_itself},
        shape={"styles": (OURS,), "stores": 2},
    ),
    Defect(
        "a clock that jumps is believed",
        "ours",
        "a timestamp .* ahead",
        changes=lambda: {(timestamps, "STEP_US"): 2**62, (timestamps, "MAX_AHEAD_US"): 2**62},
        shape={"styles": (OURS,), "writers": 1},
    ),
)
"""``ours``: the simulator has found it in this project, where it is cured."""

LOCKED: Mapping[str, Any] = {
    "styles": (OURS,),
    "locked": True,
    "byzantine": 2,
    "attack_every_s": 0.02,
}

WRONG = "lost:|doubled:|never published|is not what it was|for safe|was told|beyond"
"""Findings about honest nodes."""


DOORS = (
    Defect(
        "anybody's messages are believed",
        "authorization.refusal",
        WRONG + "|overhears",
        changes=lambda: {(sockets, "refusal"): lambda who, message: ""},
        shape=LOCKED,
    ),
    Defect(
        "every node receives any answer",
        "authorization.granted",
        "overhears",
        changes=lambda: {(security, "granted"): lambda who, frame: frame},
        shape=LOCKED,
    ),
)
"""The checks of keys, each removed by itself, so that byzantine peers get through."""

"""Known defects, each put into a production role by itself, so that the simulator can find it.

``where`` names the lines of zeromq/dafka (c2dc88d, ``src/``) that have the defect, or the part of
this project that had it before the simulator found it.  A new one is a row of ``DEFECTS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from dafka_core.model import timestamps
from dafka_core.nodes import traffic
from dafka_core.protocol import consumer_role, producer_role, store_role
from tests.simulation import hosts, mesh
from tests.simulation.cluster import Roles
from tests.simulation.defective_histories import (
    AcknowledgesZombies,
    CountsAnyonesAcks,
    ExtendsAnything,
    FollowsAnything,
    LivesOn,
    LongerWins,
    TellsAnyway,
    nobody_is_missing,
    stamped_by_itself,
)
from tests.simulation.defective_roles import (
    AcknowledgesOnce,
    AcknowledgesUnsynced,
    AnswersFromLater,
    AsksNobody,
    CountsAcksTwice,
    ForgetsAtOnce,
    ForgetsRequestors,
    LatestIsOneTooFew,
    NeverAsksForHeads,
    SendsAnySize,
    ServesTheFirst,
    SkipsGaps,
    TakesPrefixes,
    TakesTwice,
    TellsOfMoreThanIsStored,
    WaitsForGreetings,
    WaitsForWhatIsTrimmed,
    WrongChunk,
    _StaleParse,
)
from tests.simulation.shape import OURS


@dataclass(frozen=True)
class Defect:
    """Something that was wrong somewhere, and how to have it here."""

    name: str
    where: str
    finds: str
    """The simulator's finding: a regular expression."""
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

QUICK_ZOMBIES: Mapping[str, Any] = {
    **ZOMBIES,
    "stores": 2,
    "acks": 1,
    "records": 400,
    "another_every_s": 0.7,
    "partition_every_s": 0.0,
    "crash_every_s": 0.0,
}

LONE_STORE_ZOMBIES: Mapping[str, Any] = {**QUICK_ZOMBIES, "stores": 1}

TAKEOVERS: Mapping[str, Any] = {
    "styles": ("ours",),
    "stores": 3,
    "late_stores": 0,
    "towers": 1,
    "producers": 1,
    "writers": 3,
    "queries": 0,
    "consumers": 1,
    "readers": 0,
    "acks": 1,
    "disk_s": 0.3,
    "crash_every_s": 1.5,
    "stall_every_s": 0.0,
    "another_every_s": 0.0,
    "tower_every_s": 0.0,
    "trim_every_s": 0.0,
    "replaced_every_s": 1.5,
    "leaves": 0.0,
}
"""Clients write to stores with disks that are lost, and partitions that others take over."""

LOST_RECORDS = "lost: .* for safe|lost: TopicPartition|which is not what it was"


DEFECTS = (
    Defect(
        "wrong values answer a FETCH",
        "unacked_list.c:188",
        "producer-.* sends .* which is not what it was",
        Roles(producer=WrongChunk),
    ),
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
        "stores ask nobody for heads",
        "store_writer.c:154",
        "store-. has .* of",
        Roles(store=AsksNobody),
        first=180,
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
        first=17,
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
        changes=lambda: {(traffic, "decode"): _StaleParse()},
    ),
    Defect(
        "a dropped head is never asked for",
        "ours",
        "consumer-. is at .* of",
        Roles(consumer=NeverAsksForHeads),
        first=130,
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
        "a broken connection takes its successor with it",
        "ours",
        "producer-. waits|consumer-. is at",
        changes=lambda: {(mesh, "Subscribers"): ForgetsRequestors},
        first=198,
    ),
    Defect(
        "a record too large ends its receiver's connection for good",
        "ours",
        "lost: .* consumer-0 is at",
        changes=lambda: {(mesh, "RecordLimits"): SendsAnySize},
    ),
    Defect(
        "trimmed records are waited for",
        "ours",
        "consumer-. is at .* of",
        Roles(consumer=WaitsForWhatIsTrimmed),
        first=107,
    ),
    Defect(
        "partitions beyond the window are never asked for",
        "ours",
        "consumer-. is at .* of",
        changes=lambda: {(consumer_role, "FetchScheduler"): ServesTheFirst},
        first=123,
    ),
    Defect(
        "a zombie's records are acknowledged",
        "producer.py",
        LOST_RECORDS,
        changes=lambda: {(store_role, "Histories"): AcknowledgesZombies},
        first=4,
        shape=QUICK_ZOMBIES,
    ),
    Defect(
        "stores extend any history",
        "store_writer.c:140",
        LOST_RECORDS + "|two timestamps",
        changes=lambda: {(store_role, "Histories"): ExtendsAnything},
        shape=ZOMBIES,
    ),
    Defect(
        "the longer history wins",
        "ours",
        LOST_RECORDS + "|appends .* to an end of",
        changes=lambda: {(store_role, "Histories"): LongerWins},
        first=20,
        shape=ZOMBIES,
    ),
    Defect(
        "a life begins without promises",
        "ours",
        LOST_RECORDS,
        changes=lambda: {(producer_role, "missing"): nobody_is_missing},
        first=4,
        shape=ZOMBIES,
    ),
    Defect(
        "consumers follow any history",
        "ours",
        "was delivered a mixture",
        changes=lambda: {(consumer_role, "FollowedPartition"): FollowsAnything},
        shape={**ZOMBIES, "acks": 1, "stores": 2, "consumers": 2},
    ),
    Defect(
        "each store stamps its records itself",
        "ours",
        "two timestamps",
        changes=lambda: {(timestamps, "kept_times"): stamped_by_itself},
        shape={"styles": (OURS,), "stores": 2},
    ),
    Defect(
        "a clock that jumps is believed",
        "ours",
        "a timestamp .* ahead",
        changes=lambda: {
            (timestamps, "STEP_US"): 2**62,
            (timestamps, "MAX_AHEAD_US"): 2**62,
        },
        shape={"styles": (OURS,), "writers": 1},
    ),
    Defect(
        "a client is told of records that were set aside since",
        "ours",
        LOST_RECORDS,
        changes=lambda: {(hosts, "AppendQueue"): TellsAnyway},
        first=300,
        shape=TAKEOVERS,
    ),
    Defect(
        "a store that was taken over from goes on with the same life",
        "ours",
        "two timestamps|lost: .* store-. has",
        changes=lambda: {(store_role, "StorePartition"): LivesOn},
        shape=TAKEOVERS,
        first=350,
    ),
    Defect(
        "ACKs count whosever records they are about",
        "producer.c:215",
        LOST_RECORDS,
        Roles(producer=CountsAnyonesAcks),
        shape=LONE_STORE_ZOMBIES,
    ),
)
"""``ours``: the simulator has found it in this project, where it is cured."""

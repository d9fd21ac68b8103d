"""The checks of keys, each removed by itself, so that byzantine peers get through."""

from __future__ import annotations

from typing import Any, Final

from dafka_core.nodes import security, traffic
from dafka_core.nodes.security import RefusedSubscriptions
from dafka_core.protocol import store_directory
from dafka_core.protocol.store_directory import Question
from tests.simulation import keys
from tests.simulation.known_defects import Defect
from tests.simulation.shape import OURS

LOCKED: Final[dict[str, Any]] = {
    "styles": (OURS,),
    "locked": True,
    "byzantine": 2,
    "attack_every_s": 0.02,
}

WRONG: Final = "lost:|doubled:|never published|is not what it was|for safe|was told|beyond"
"""Findings about honest nodes."""


class _TakesAnyAnswer(Question):
    """A node that sends a history in answer to a question for heads counts as a store."""

    def is_answered_by(self, reply: object) -> bool:
        return True


class _TakesBackAll(RefusedSubscriptions):
    """A refused subscription ends another node's when its connection ends."""

    def end(self, prefix: bytes) -> bool:
        return False


DOORS: Final = (
    Defect(
        "anybody's messages are believed",
        "authorization.refusal",
        WRONG + "|overhears",
        changes=lambda: {(traffic, "refusal"): lambda who, message: ""},
        shape=LOCKED,
    ),
    Defect(
        "anybody's records are believed",
        "authorization.records_refusal",
        WRONG,
        changes=lambda: {(traffic, "records_refusal"): lambda who, tp: ""},
        shape=LOCKED,
    ),
    Defect(
        "every node receives any answer",
        "authorization.granted",
        "overhears",
        changes=lambda: {(security, "granted"): lambda who, frame: frame},
        shape=LOCKED,
    ),
    Defect(
        "every node learns of all partitions",
        "authorization.shown",
        "overhears",
        changes=lambda: {(security, "shown"): lambda who, message: message},
        first=28,
        shape={**LOCKED, "topics": ("a", "ab", "b")},
    ),
    Defect(
        "an ended connection ends granted subscriptions of others",
        "RefusedSubscriptions.end",
        WRONG,
        changes=lambda: {(keys, "RefusedSubscriptions"): _TakesBackAll},
        shape=LOCKED,
    ),
    Defect(
        "whatever has a question's number is a store's answer",
        "Question.is_answered_by",
        "lost: .* reader-. reads",
        changes=lambda: {(store_directory, "Question"): _TakesAnyAnswer},
        first=220,
        shape={
            **LOCKED,
            "byzantine": 1,
            "stores": 2,
            "late_stores": 1,
            "producers": 1,
            "writers": 0,
            "consumers": 0,
            "readers": 3,
            "records": 50,
        },
    ),
)
"""``where`` names the check."""

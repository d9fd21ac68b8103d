"""What a gateway lets a consumer group be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from dafka_core.kafka.groups.member import Joining, Member, common_protocols
from dafka_core.kafka.kafka_errors import KafkaError

NEW_MEMBER_S: Final = 300.0
"""How long a new member waits for the others: as in Kafka.  A client that gives up and joins again
would else be as many members."""

MAX_GROUP_BYTES: Final = 4 << 20
"""Of all members' metadata and parts: the leader is told all of the metadata in one answer."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a group may be.

    ``delay_s`` is how long an empty group waits for more members after the first one.
    """

    delay_s: float = 3.0
    min_session_s: float = 6.0
    max_session_s: float = 1_800.0
    max_members: int = 1_000

    def refusal(
        self, asked: Joining, members: Collection[Member], protocol_type: str
    ) -> KafkaError | None:
        """Why nobody may join a group with these members like this."""
        if not self.min_session_s <= asked.session_s <= self.max_session_s:
            return KafkaError.INVALID_SESSION_TIMEOUT
        names = {name for name, _ in asked.protocols}
        if not asked.protocol_type or not names:
            return KafkaError.INCONSISTENT_GROUP_PROTOCOL
        if members:
            common = common_protocols(members)
            if asked.protocol_type != protocol_type or names.isdisjoint(common):
                return KafkaError.INCONSISTENT_GROUP_PROTOCOL
        if asked.size_bytes + sum(each.size_bytes for each in members) > MAX_GROUP_BYTES:
            return KafkaError.GROUP_MAX_SIZE_REACHED
        return None

"""What a group may be: who is refused, and why."""

from __future__ import annotations

from typing import Any

import pytest

from dafka_core.kafka.groups.member import JoinAnswer
from dafka_core.kafka.kafka_errors import KafkaError
from tests.unit.kafka.groups.model import Tried


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_s": 5.9}, KafkaError.INVALID_SESSION_TIMEOUT),
        ({"session_s": 1_800.1}, KafkaError.INVALID_SESSION_TIMEOUT),
        ({"session_s": -1}, KafkaError.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("other", b""),)}, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("range", bytes(4 << 20)),)}, KafkaError.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_who_cannot_join_is_told_why(changes: dict[str, Any], error: KafkaError) -> None:
    tried = Tried()
    tried.stable()
    found = tried.joined(tried.join(**changes))
    assert found is not None
    assert found.error is error
    assert len(tried.group.members) == 1


def test_a_group_has_so_many_members_and_no_more() -> None:
    tried = Tried(max_members=3)
    tried.stable(2)
    assert tried.joined(tried.join(knows_ids=True)).error is KafkaError.MEMBER_ID_REQUIRED  # type: ignore[union-attr]
    assert tried.joined(tried.join()) == JoinAnswer(KafkaError.GROUP_MAX_SIZE_REACHED)
    first, second = tried.group.members
    tried.join(first)  # those that are in it may join again
    assert tried.group.members[first].join_ticket is not None
    assert second in tried.group.members

"""Malformed requests are answered, or close their connection, without other effects."""

import random
from contextlib import suppress

import pytest

from dafka_core import Store
from dafka_core.errors import ProtocolError
from dafka_core.security.permissions import NOBODY
from dafka_core.testing import wait_until
from dafka_kafka.api import Api
from dafka_kafka.gateway import Gateway
from dafka_kafka.server import DENIED, FAILED
from tests.integration.kafka.fuzz import fuzz, is_there
from tests.integration.kafka.malformed import well_formed
from tests.integration.kafka.one_request import answer_to, tell
from tests.unit.kafka.messages import rows


@pytest.mark.parametrize("count", [4_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_malformed_requests_do_no_harm(
    count: int, store: Store, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    where = gateway.listens.host, gateway.listens.port
    outcomes = fuzz(where, 7, 0, count)
    assert outcomes.hung == []
    assert outcomes.answered > count / 20
    assert outcomes.closed > count / 20
    assert is_there(where)
    server = gateway._server
    wait_until(lambda: gateway.connection_count == server.room.taken_bytes == 0)
    assert server.complaints.counts[FAILED] == 0, caplog.text
    # Errors are logged at intervals only.
    assert len([each for each in caplog.records if each.name == "dafka.kafka"]) < 100
    assert not [each for each in caplog.records if each.name == "asyncio"]


@pytest.mark.parametrize("count", [4_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_odd_requests_of_a_user_without_permissions_change_nothing(
    count: int, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    answered = 0
    for seed in range(count):
        with suppress(ProtocolError):
            answer_to(gateway, NOBODY, well_formed(random.Random(seed)))
            answered += 1
    assert answered > count / 2
    assert gateway.server.complaints.counts[FAILED] == 0, caplog.text
    assert gateway.server.complaints.counts[DENIED] > answered / 2
    # Its topics and groups would be of these names.
    assert rows(tell(gateway, Api.METADATA, 8, topics=None), "topics", "name") == []
    assert rows(tell(gateway, Api.LIST_GROUPS, 2), "groups", "group_id") == []

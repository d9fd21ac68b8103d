"""APIs of features that the gateway lacks."""

from __future__ import annotations

from dafka_kafka import schemas
from dafka_kafka.api import Api
from dafka_kafka.gateway import APIS, Gateway
from tests.integration.kafka.one_request import tell


def test_nothing_moves_and_nothing_is_limited(gateway: Gateway) -> None:
    moves = schemas.ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None)
    found = tell(gateway, moves, 0)
    assert (found.error_code, found.topics) == (0, [])
    quotas = schemas.DescribeClientQuotasRequest(components=[], strict=False)
    limited = tell(gateway, quotas, 0)
    assert (limited.error_code, limited.entries) == (0, [])


def test_there_are_no_transactions(gateway: Gateway) -> None:
    for version in APIS[Api.LIST_TRANSACTIONS].versions:
        asked = schemas.ListTransactionsRequest(
            state_filters=[], producer_id_filters=[], duration_filter=-1
        )
        found = tell(gateway, asked, version)
        assert (found.error_code, found.transaction_states) == (0, [])

"""What Kafka has and a gateway has not, answered as by a broker where it is not in use.

Consoles and admin clients ask for it, and show an error where they get no answer.
"""

from __future__ import annotations

from typing import Any

from dafka_kafka.api_versions import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Client, Feature, Handler
from dafka_kafka.schemas import (
    DescribeClientQuotasResponse,
    ListPartitionReassignmentsResponse,
    ListTransactionsResponse,
)


class NotInUse(Feature):
    """Quotas, transactions, and partitions that move: there are none."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {
            Api.LIST_PARTITION_REASSIGNMENTS: self._list_reassignments,
            Api.DESCRIBE_CLIENT_QUOTAS: self._describe_quotas,
            Api.LIST_TRANSACTIONS: self._list_transactions,
        }

    async def _list_reassignments(self, request: Any, client: Client) -> Any:
        return ListPartitionReassignmentsResponse(
            throttle_time_ms=0, error_code=KafkaError.NONE, error_message=None, topics=[]
        )

    async def _describe_quotas(self, request: Any, client: Client) -> Any:
        return DescribeClientQuotasResponse(
            throttle_time_ms=0, error_code=KafkaError.NONE, error_message=None, entries=[]
        )

    async def _list_transactions(self, request: Any, client: Client) -> Any:
        return ListTransactionsResponse(
            throttle_time_ms=0,
            error_code=KafkaError.NONE,
            unknown_state_filters=[],
            transaction_states=[],
        )

"""The APIs that the gateway serves, their versions, and answers for unused ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Client, Feature, Handler
from dafka_kafka.schemas import (
    DescribeClientQuotasResponse,
    ListPartitionReassignmentsResponse,
    ListTransactionsResponse,
)


class Api(IntEnum):
    """API keys by Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_CLUSTER = 60
    LIST_TRANSACTIONS = 66


VERSIONS: Final[Mapping[int, range]] = MappingProxyType(
    {
        Api.PRODUCE: range(9),
        Api.FETCH: range(12),
        Api.LIST_OFFSETS: range(6),
        Api.METADATA: range(9),
        Api.OFFSET_COMMIT: range(8),
        Api.OFFSET_FETCH: range(6),
        Api.FIND_COORDINATOR: range(3),
        Api.JOIN_GROUP: range(6),
        Api.HEARTBEAT: range(4),
        Api.LEAVE_GROUP: range(4),
        Api.SYNC_GROUP: range(4),
        Api.DESCRIBE_GROUPS: range(5),
        Api.LIST_GROUPS: range(6),
        Api.SASL_HANDSHAKE: range(2),
        Api.API_VERSIONS: range(4),
        Api.CREATE_TOPICS: range(7),
        Api.DELETE_TOPICS: range(6),
        Api.DELETE_RECORDS: range(2),
        Api.INIT_PRODUCER_ID: range(2),
        Api.DESCRIBE_ACLS: range(2),
        Api.CREATE_ACLS: range(2),
        Api.DELETE_ACLS: range(2),
        Api.DESCRIBE_CONFIGS: range(4),
        Api.ALTER_CONFIGS: range(2),
        Api.DESCRIBE_LOG_DIRS: range(5),
        Api.SASL_AUTHENTICATE: range(2),
        Api.CREATE_PARTITIONS: range(2),
        Api.DELETE_GROUPS: range(2),
        Api.INCREMENTAL_ALTER_CONFIGS: range(1),
        Api.LIST_PARTITION_REASSIGNMENTS: range(1),
        Api.OFFSET_DELETE: range(1),
        Api.DESCRIBE_CLIENT_QUOTAS: range(1),
        Api.DESCRIBE_CLUSTER: range(2),
        Api.LIST_TRANSACTIONS: range(2),
    }
)
"""The served versions. They end before the flexible ones (with tagged fields), except for APIs that
have no others, or have more fields there. They begin at 0 although current clients use later ones:
older librdkafka takes a range that begins later for a broker with fewer features."""


def api_versions(served: Collection[int], error: KafkaError = KafkaError.NONE) -> Any:
    """Return the ApiVersions response for the ``served`` APIs."""
    from dafka_kafka.schemas import ApiVersionsResponse  # noqa: PLC0415

    entry = ApiVersionsResponse.ApiVersion
    keys = [
        entry(api_key=int(key), min_version=versions[0], max_version=versions[-1])
        for key, versions in VERSIONS.items()
        if key in served
    ]
    return ApiVersionsResponse(error_code=int(error), api_keys=keys)


# APIs for features that the gateway lacks, answered as by a broker that doesn't use them:
# consoles and admin clients request them, and show an error if they get no answer.


class NotInUse(Feature):
    """Quotas, transactions and reassignments: always empty."""

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

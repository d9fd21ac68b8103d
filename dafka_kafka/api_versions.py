"""ApiVersions, and APIs of features that the gateway lacks.

The latter are answered as by a broker that doesn't use the feature: consoles and admin clients
request them, and show an error if they get no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dafka_kafka import schemas
from dafka_kafka.api import Answer, Api, Client, Feature, Served, on_cluster, serves
from dafka_kafka.errors import KafkaError
from dafka_kafka.users import Operation

VERSIONS: Final = range(5)  # the versions of ApiVersions itself


def api_versions(served: Mapping[int, Served], error: KafkaError = KafkaError.NONE) -> Any:
    """Return the ApiVersions response for the ``served`` APIs."""
    versions = {api: each.versions for api, each in served.items()} | {Api.API_VERSIONS: VERSIONS}
    keys = [
        {"api_key": int(key), "min_version": each[0], "max_version": each[-1]}
        for key, each in sorted(versions.items())
    ]
    return schemas.made_response(Api.API_VERSIONS, {"error_code": int(error), "api_keys": keys})


class NotInUse(Feature):
    """Quotas, transactions and reassignments: always empty."""

    @serves(Api.LIST_PARTITION_REASSIGNMENTS, range(1), on_cluster(Operation.DESCRIBE))
    async def _list_reassignments(self, request: Any, client: Client) -> Answer:
        return {"error_message": None}

    @serves(Api.DESCRIBE_CLIENT_QUOTAS, range(2), on_cluster(Operation.DESCRIBE_CONFIGS))
    async def _describe_quotas(self, request: Any, client: Client) -> Answer:
        return {"error_message": None}

    @serves(Api.LIST_TRANSACTIONS, range(3))
    async def _list_transactions(self, request: Any, client: Client) -> Answer:
        return {}

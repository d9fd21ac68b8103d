"""A running store with a fixed partition registry, for testing one feature."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from dafka_core import Store
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import TopicPartition
from dafka_kafka.api import Api, Client, Feature
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.gateways import GatewayInfo, Gateways
from dafka_kafka.options import KafkaOptions
from dafka_kafka.partition_registry import PartitionRegistry
from dafka_kafka.registry_table import Lead, NumberedPartition
from tests.unit.kafka.messages import NEWEST, request, versions

OWN = GatewayInfo("0" * 32, 1, "127.0.0.1", 9092)
ELSEWHERE = GatewayInfo("E" * 32, 7, "other.example.org", 9092)

NO_LEADERS: Any = SimpleNamespace(life=lambda owner: NO_LIFE, table=SimpleNamespace(leads={}))
"""A registry without leader records."""


class FixedNumbers:
    """The partitions of topic t; by default A, B, C …, where number 9 is of another gateway."""

    leads: ClassVar[dict[str, Lead]] = {}
    log = NO_LEADERS
    written = PartitionRegistry.written
    state_name = PartitionRegistry.state_name

    def __init__(self, *found: NumberedPartition) -> None:
        letters = (NumberedPartition("t", at, each, "") for at, each in enumerate("ABCDEFGHIJ"))
        self._found = found or (*letters,)
        self.table = self

    def get(self, topic: str, number: int) -> NumberedPartition | None:
        found = self.partitions(topic)
        return found[number] if 0 <= number < len(found) else None

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        return self._found if topic == "t" else ()

    def number(self, tp: TopicPartition) -> int | None:
        return next((each.number for each in self._found if each.tp == tp), None)

    def deleted_end(self, tp: TopicPartition) -> int:
        return 0

    def configs(self, topic: str) -> Mapping[str, int]:
        return {}


class FixedGateways:
    def __init__(self, own: GatewayInfo) -> None:
        self.own = own

    def leader(self, partition: NumberedPartition) -> GatewayInfo:
        return ELSEWHERE if partition.number == 9 else self.own

    def live(self) -> list[GatewayInfo]:
        return [self.own, ELSEWHERE]

    def chosen(self, key: str) -> GatewayInfo:
        return ELSEWHERE if key.endswith("elsewhere") else self.own


@contextmanager
def fixed_node(
    store: Store, numbers: Any = None, own: GatewayInfo = OWN, **options: Any
) -> Iterator[GatewayNode]:
    registry = cast("PartitionRegistry", numbers or FixedNumbers())
    gateways = cast("Gateways", FixedGateways(own))
    with ThreadPoolExecutor(4) as threads:
        yield GatewayNode(store, KafkaOptions(**options), registry, gateways, threads)


async def asked(feature: Feature, api: Api, version: int = NEWEST, /, **fields: Any) -> Any:
    """Return a feature's response, decoded as the client would."""
    version = versions(api)[version]
    asked, client = request(api, **fields), Client("test", "127.0.0.1", version)
    decoded = type(asked).decode(asked.encode(version=version), version=version)
    response: Any = await asyncio.wait_for(feature.apis[api].handler(decoded, client), 60)
    return type(response).decode(response.encode(version=version), version=version)

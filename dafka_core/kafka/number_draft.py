"""What is to be added to the list of partitions' numbers in one turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.number_table import (
    MAX_NUMBERS,
    NumberedPartition,
    NumbersRecord,
    NumberTable,
    number_records,
)
from dafka_core.kafka.refusal import RefusedError
from dafka_core.nodes.addresses import new_address
from dafka_core.records import TopicPartition


class NumberDraft:
    """The list as it is, and what comes behind it."""

    def __init__(self, table: NumberTable) -> None:
        self._table = table
        self._added: dict[str, list[NumberedPartition]] = {}
        self._names: set[TopicPartition] = set()

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        """A topic's partitions, those to come among them."""
        return (*self._table.partitions(topic), *self._added.get(topic, ()))

    def host(self, topic: str, count: int, gateways: Sequence[str]) -> None:
        """Adds partitions that gateways host, each in its turn."""
        known = len(self.partitions(topic))
        for number in range(known, known + count):
            self._add(topic, number, new_address(), gateways[number % len(gateways)], hosted=True)

    def adopt(self, found: Iterable[TopicPartition], hosts: Callable[[str], Sequence[str]]) -> None:
        """Adds partitions of Dafka's producers that have no number."""
        counts: dict[str, int] = {}
        for tp in found:
            if tp in self._names or self._table.number(tp) is not None:
                continue
            number = counts.setdefault(tp.topic, len(self.partitions(tp.topic)))
            gateway = hosts(str(tp))[0]
            self._add(tp.topic, number, tp.partition, gateway, hosted=False)
            counts[tp.topic] += 1

    def records(self) -> list[NumbersRecord]:
        """What is to be written."""
        return [
            record
            for topic, added in self._added.items()
            for record in number_records(topic, added)
        ]

    def _add(self, topic: str, number: int, address: str, gateway: str, *, hosted: bool) -> None:
        if len(self._table) + len(self._names) >= MAX_NUMBERS:
            why = f"{MAX_NUMBERS} partitions have a number for Kafka clients, as many as may"
            raise RefusedError(KafkaError.POLICY_VIOLATION, why)
        new = NumberedPartition(topic, number, address, gateway, hosted)
        self._added.setdefault(topic, []).append(new)
        self._names.add(new.tp)

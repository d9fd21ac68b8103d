"""What is to be added to the list of partitions' numbers in one turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from dafka_core.epochs import MAX_END
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.number_table import (
    MAX_NUMBERS,
    NumberedPartition,
    NumbersRecord,
    NumberTable,
    deletion_records,
    number_records,
)
from dafka_core.kafka.refusal import RefusedError
from dafka_core.nodes.addresses import new_address
from dafka_core.records import PartitionInfo, TopicPartition

Plan = Callable[["NumberDraft"], None]
"""Adds what is wanted; raises RefusedError where that cannot be."""


class Wish:
    """What is to be done in the next turn, and the future of who waits for it."""

    def __init__(self, plan: Plan, within_s: float) -> None:
        self.plan = plan
        self.future: Future[None] = Future()
        self.deadline = time.monotonic() + within_s

    def end(self, error: BaseException | None = None) -> None:
        """It is done, or there was an error."""
        with suppress(InvalidStateError):  # it has ended, or who waited has gone
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


class NumberDraft:
    """The list as it is, and what comes behind it."""

    def __init__(self, table: NumberTable) -> None:
        self._table = table
        self._added: dict[str, list[NumberedPartition]] = {}
        self._names: set[TopicPartition] = set()
        self._deleted: dict[str, Mapping[str, int]] = {}

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        """A topic's partitions, those to come among them."""
        known = () if topic in self._deleted else self._table.partitions(topic)
        return (*known, *self._added.get(topic, ()))

    def delete(self, topic: str, held: Iterable[PartitionInfo]) -> None:
        """Takes a topic's numbers away; ``held`` are its partitions that have, or had, records."""
        known = {each.address: 0 for each in self.partitions(topic)}
        self._names.difference_update(each.tp for each in self._added.pop(topic, ()))
        self._deleted[topic] = known | {info.partition: info.end for info in held}

    def host(self, topic: str, count: int, gateways: Sequence[str]) -> list[str]:
        """Adds partitions that gateways host, each in its turn; returns their addresses."""
        known = len(self.partitions(topic))
        added = [new_address() for _ in range(count)]
        for number, address in enumerate(added, known):
            self._add(topic, number, address, gateways[number % len(gateways)], hosted=True)
        return added

    def adopt(self, found: Iterable[TopicPartition], hosts: Callable[[str], Sequence[str]]) -> None:
        """Adds partitions of Dafka's producers that have no number.

        Of ``hosts`` of each the first one takes what is written there that hosts some of its topic:
        another one has nowhere to write it.
        """
        counts: dict[str, int] = {}
        hosting: dict[str, set[str]] = {}
        for tp in found:
            is_known = tp in self._names or self._table.number(tp) is not None
            if is_known or self._table.ended(tp) == MAX_END:
                continue
            if tp.topic not in counts:
                known = self.partitions(tp.topic)
                counts[tp.topic] = len(known)
                hosting[tp.topic] = {each.gateway for each in known if each.hosted}
            number, nearest = counts[tp.topic], hosts(str(tp))
            gateway = next((each for each in nearest if each in hosting[tp.topic]), nearest[0])
            self._add(tp.topic, number, tp.partition, gateway, hosted=False)
            counts[tp.topic] += 1

    def records(self) -> list[NumbersRecord]:
        """What is to be written."""
        deleted = (deletion_records(*each) for each in self._deleted.items())
        added = (number_records(*each) for each in self._added.items())
        return [record for records in (*deleted, *added) for record in records]

    def _add(self, topic: str, number: int, address: str, gateway: str, *, hosted: bool) -> None:
        if len(self._table) + len(self._names) >= MAX_NUMBERS:
            why = f"{MAX_NUMBERS} partitions have a number for Kafka clients, as many as may"
            raise RefusedError(KafkaError.POLICY_VIOLATION, why)
        new = NumberedPartition(topic, number, address, gateway, hosted)
        self._added.setdefault(topic, []).append(new)
        self._names.add(new.tp)

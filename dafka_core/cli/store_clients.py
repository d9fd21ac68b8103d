"""Clients of the stores that a command uses, found through a tower or by URI."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

import dafka_core
from dafka_core.cli import output
from dafka_core.config.missing_stores import check_min_stores, parse_min_stores, warning
from dafka_core.config.node_options import KeyFiles, keys_in
from dafka_core.errors import (
    ConfigError,
    DafkaError,
    DataLossError,
    NoStoreError,
    StoreUnreachableError,
)
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import quoted

if TYPE_CHECKING:
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.flight.store_location import StoreLocation
    from dafka_core.model.records import KnownStore, PartitionInfo, RecordBatch, TopicPartition
    from dafka_core.storage import PartitionStatistics

ANY_TOPIC: Final = "-"  # the topic of requests that only discover the stores
NAMES_S: Final = 2.0  # time limit for listing topics in an error

ONE_WAY_S: Final = 2.0
"""A discovered store that has not connected to this node by then cannot connect."""

Away = Callable[["KnownStore"], object]  # called with each known store that is not reachable

_Found = tuple[list["StoreClient"], "dafka_core.Reader | None", "list[PartitionInfo] | None"]
"""Clients, which are not open; the reader that found them, and what it knows of partitions."""


def warn_away(store: KnownStore) -> None:
    """Warn that a result lacks the records of a store."""
    output.error(warning(store))


def parse_uris(uris: str) -> tuple[str, ...]:
    """Parse the option ``stores``; raise ConfigError for an invalid URI."""
    from dafka_core.flight.store_location import parse_locations

    try:
        return parse_locations(uris) if uris else ()
    except ValueError as error:
        raise ConfigError("stores", uris, str(error)) from None


def parse_least(min_stores: str | None) -> int | None:
    """Parse ``--min-stores``; raise BadParameter if it is invalid."""
    try:
        return None if min_stores is None else parse_min_stores(min_stores)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--min-stores'") from None


def located(uris: str, keys: KeyFiles, timeout_s: float) -> list[StoreLocation]:
    """Return the stores at the URIs of option ``stores``, as each describes itself."""
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.flight.store_location import StoreLocation

    found = []
    for uri in parse_uris(uris):
        with StoreClient(StoreLocation("", (uri,)), keys) as client:
            found.append(client.describe(timeout_s=timeout_s).found_at([uri]))
    return found


@dataclass(frozen=True)
class StoreFinder:
    """Finds the stores of a command: those at ``uris``, or those that a tower introduces.

    Its methods open clients of stores that serve Flight, and raise
        ConfigError: a URI is invalid.
        StoreUnreachableError: no store responds at a URI.
        NoStoreError: no store was discovered.
    """

    uris: str = ""
    timeout_s: float = 10.0  # time limit of each request
    options: Mapping[str, Any] = field(default_factory=dict)  # of a ``Reader``
    min_stores: str | None = None  # required number, or ``all`` known ones, for ``holdings``

    @contextmanager
    def clients(
        self, away: Away = warn_away, *, all_serve: bool = False
    ) -> Iterator[list[StoreClient]]:
        """Open the clients; with ``all_serve`` raise DafkaError if a store serves no Flight."""
        with self._found([ANY_TOPIC], away=away) as (found, reader, _):
            for store in _without_flight(reader):
                if all_serve:
                    why = "does not serve Flight, which this command needs"
                    raise DafkaError(f"store {store} {why}")
                output.info(f"store {store} is not listed, as it does not serve Flight")
        with ExitStack() as stack:
            yield [stack.enter_context(client) for client in found]

    @contextmanager
    def clients_and_reader(self) -> Iterator[tuple[list[StoreClient], dafka_core.Reader | None]]:
        """Open the clients, and a reader for stores that serve no Flight, if any exist."""
        with self._found([ANY_TOPIC]) as (found, reader, merged), ExitStack() as stack:
            is_needed = merged is not None and _without_flight(reader)
            clients = [stack.enter_context(client) for client in found]
            yield clients, reader if is_needed else None

    @contextmanager
    def holdings(
        self, topic: str | None = None
    ) -> Iterator[tuple[list[PartitionInfo], list[StoreClient]]]:
        """Open the clients, with all stores' merged partitions of a topic, or of all topics.

        Raises:
            DafkaError: fewer than ``min_stores`` respond, or no store has the topic.
        """
        from dafka_core.model.records import merge_heads

        topics, names_s = None if topic is None else [topic], min(self.timeout_s, NAMES_S)
        with self._found(topics, parse_least(self.min_stores)) as (clients, reader, found):
            if reader is not None and topic is not None and found == []:
                raise _unknown(topic, partial(reader.partitions, timeout_s=names_s))
        with ExitStack() as stack:
            for client in clients:
                stack.enter_context(client)
            if found is None:
                found = [*merge_heads(heads(clients, topics, self.timeout_s)).values()]
                if topic is not None and not found:
                    raise _unknown(topic, partial(heads, clients, None, names_s))
            yield found, clients

    @contextmanager
    def _found(
        self, topics: Collection[str] | None, least: int | None = None, away: Away = warn_away
    ) -> Iterator[_Found]:
        """Find the stores; the reader of a mesh is closed at the end."""
        if self.uris:
            clients = self._named()
            _check_least(least, len(clients), [])
            yield clients, None, None
            return
        with dafka_core.Reader(**self.options) as reader:
            merged = _merged_partitions(reader, topics, self.timeout_s)
            missing = reader.missing_stores(timeout_s=0.01 if merged is None else self.timeout_s)
            _check_least(least, len(reader.stores()), missing)
            for each in missing:
                away(each)
            yield served(reader), reader, merged

    def _named(self) -> list[StoreClient]:
        from dafka_core.flight.store_client import StoreClient

        keys = keys_in(self.options)
        return [StoreClient(each, keys) for each in located(self.uris, keys, self.timeout_s)]


def heads(
    clients: Iterable[StoreClient], topics: Collection[str] | None, timeout_s: float
) -> Iterator[PartitionInfo]:
    """Yield the partitions that each store has of topics, or of all."""
    return (info for client in clients for info in client.heads(topics, timeout_s=timeout_s))


def _unknown(topic: str, known: Callable[[], Iterable[PartitionInfo]]) -> DafkaError:
    try:
        return unknown_topic(topic, {info.topic for info in known()})
    except DafkaError:
        return DafkaError(f"no store has records of topic {quoted(topic)}")


def chosen(
    infos: Iterable[PartitionInfo],
    topic: str,
    partitions: Collection[str],
    known: Callable[[], Iterable[PartitionInfo]],
) -> list[PartitionInfo]:
    """Select from the partitions found of a topic.

    Args:
        partitions: the names to select; empty for all.
        known: returns the partitions of all topics, for the error.

    Raises:
        DafkaError: ``infos`` is empty or lacks a partition; it suggests existing names.
    """
    found = {each.partition: each for each in infos}
    if not found:
        raise _unknown(topic, known)
    for name in partitions:
        if name not in found:
            near = what_there_is(name, found, "partitions")
            raise DafkaError(f"topic {quoted(topic)} has no partition {quoted(name)} ({near})")
    return [each for name, each in found.items() if not partitions or name in partitions]


def unknown_topic(topic: str, known: Collection[str]) -> DafkaError:
    """Return the error for a topic that no store has, with a suggestion."""
    near = what_there_is(topic, known, "topics")
    return DafkaError(f"no store has records of topic {quoted(topic)} ({near})")


class Holder(NamedTuple):
    """A client of a store, and the offsets of a partition that the store has."""

    client: StoreClient
    earliest: int
    end: int


def read_range(
    tp: TopicPartition, start: int, end: int, holders: Iterable[Holder], **limits: Any
) -> Iterator[RecordBatch]:
    """Yield records with their times; another store continues where one fails or ends.

    Args:
        limits: as of ``StoreClient.read``.

    Raises:
        DafkaError: the last store's failure, or that no store has some records.
    """
    left = sorted(holders, key=lambda each: -each.end)
    failure: DafkaError | None = None
    while start < end:
        holder = next((each for each in left if each.earliest <= start < each.end), None)
        if holder is None:
            why = f"no store has all records up to {end}"
            raise failure or DataLossError(*tp, start, None, why)
        left.remove(holder)
        stop = min(holder.end, end)
        try:
            with closing(holder.client.read(tp, start, stop, times=True, **limits)) as batches:
                for batch in batches:
                    start = batch.end
                    yield batch
        except DafkaError as error:
            failure = error


def facts(
    clients: Collection[StoreClient], topic: str | None, timeout_s: float
) -> list[PartitionStatistics]:
    """Return each store's facts on the partitions of a topic, or of all; warn on failures."""
    found: list[PartitionStatistics] = []
    for client in clients:
        try:
            found += client.facts(topic, timeout_s=timeout_s)
        except StoreUnreachableError as error:
            output.error(f"{error}: bytes and times that only this store knows are missing")
    return found


def _merged_partitions(
    reader: dafka_core.Reader, topics: Collection[str] | None, timeout_s: float
) -> list[PartitionInfo] | None:
    """Return merged partitions; None if no store can connect here, but all serve Flight."""
    try:
        return reader.partitions(topics, timeout_s=min(timeout_s, ONE_WAY_S))
    except NoStoreError as error:
        if error.unconnected and not _without_flight(reader):
            stores = ", ".join(error.unconnected)
            output.info(
                f"{stores} cannot connect to {error.endpoint}: querying them by Arrow Flight"
            )
            return None
        if timeout_s <= ONE_WAY_S:
            raise
    return reader.partitions(topics, timeout_s=timeout_s - ONE_WAY_S)


def _check_least(least: int | None, present: int, missing: Sequence[KnownStore]) -> None:
    try:
        check_min_stores("min_stores", least, present, missing)
    except ConfigError as error:  # exit code 1, not 2: the cluster is at fault, not the option
        raise DafkaError(str(error)) from None


def _without_flight(reader: dafka_core.Reader | None) -> list[str]:
    return [] if reader is None else sorted(set(reader.stores()) - set(reader.endpoints()))


def served(reader: dafka_core.Reader) -> list[StoreClient]:
    """Return a client of each store that a reader has discovered, if it serves Flight."""
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.flight.store_location import StoreLocation

    found = sorted(reader.endpoints().items())
    return [StoreClient(StoreLocation(*each), reader.keys) for each in found]

"""Clients of the stores that a command uses, found through a tower or by URI."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from dafka_core.cli import output
from dafka_core.config.missing_stores import check_min_stores, parse_min_stores, warning
from dafka_core.config.node_options import KeyFiles, keys_in
from dafka_core.errors import ConfigError, DafkaError, NoStoreError, StoreUnreachableError
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import quoted

if TYPE_CHECKING:
    from dafka_core import Reader
    from dafka_core.flight.requests import PartitionFacts
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.model.records import KnownStore, PartitionInfo

ANY_TOPIC: Final = "-"
"""The topic of requests that only discover the stores."""

NAMES_S: Final = 2.0
"""Time limit for listing topics in an error."""

ONE_WAY_S: Final = 2.0
"""A discovered store that has not connected to this node by then cannot connect."""

Away = Callable[["KnownStore"], object]
"""Called with each known store that is not reachable."""


def warn_away(store: KnownStore) -> None:
    """Warn that a result lacks the records of a store."""
    output.error(warning(store))


def clients(
    timeout_s: float,
    uris: str,
    options: Mapping[str, Any],
    min_stores: str | None = None,
    away: Away = warn_away,
) -> list[StoreClient]:
    """Return a client of each store that serves Flight, or of each one at ``uris``.

    Raises:
        ConfigError: a URI is invalid.
        DafkaError: fewer than ``min_stores`` are reachable, or one of them does not serve Flight.
        StoreUnreachableError: no store responds at a URI.
        NoStoreError: no store was discovered.
    """
    if uris:
        return _named(uris, timeout_s, keys_in(options))
    from dafka_core import Reader

    with Reader(**options) as reader:
        is_one_way = _merged_partitions(reader, [ANY_TOPIC], timeout_s) is None
        least = None if min_stores is None else parse_min_stores(min_stores)
        _report_missing(reader, 0.01 if is_one_way else timeout_s, least, away)
        for store in sorted(set(reader.stores()) - set(reader.endpoints())):
            if least is not None:
                raise DafkaError(f"store {store} does not serve Flight, which this command needs")
            output.info(f"store {store} is not listed, as it does not serve Flight")
        return _served(reader)


def clients_of(reader: Reader, timeout_s: float) -> tuple[list[StoreClient], Reader | None]:
    """Return a client of each store that serves Flight, and the reader if others do not.

    Raises:
        NoStoreError: no store was discovered.
    """
    is_one_way = _merged_partitions(reader, [ANY_TOPIC], timeout_s) is None
    _report_missing(reader, 0.01 if is_one_way else timeout_s)
    has_others = bool(set(reader.stores()) - set(reader.endpoints()))
    return _served(reader), reader if has_others and not is_one_way else None


@contextmanager
def open_clients(
    timeout_s: float,
    uris: str,
    options: Mapping[str, Any],
    min_stores: str | None = None,
    away: Away = warn_away,
) -> Iterator[list[StoreClient]]:
    """Open ``clients`` for a context."""
    with ExitStack() as stack:
        found = clients(timeout_s, uris, options, min_stores, away)
        yield [stack.enter_context(client) for client in found]


def partitions(
    topic: str | None,
    timeout_s: float,
    uris: str,
    options: Mapping[str, Any],
    min_stores: str | None = None,
) -> list[PartitionInfo]:
    """Return the merged partitions of all stores; raise as ``holdings`` does."""
    with holdings(topic, timeout_s, uris, options, min_stores) as (found, _):
        return found


@contextmanager
def holdings(
    topic: str | None,
    timeout_s: float,
    uris: str,
    options: Mapping[str, Any],
    min_stores: str | None = None,
) -> Iterator[tuple[list[PartitionInfo], list[StoreClient]]]:
    """Open the partitions of all stores, or of those at ``uris``, and clients of the stores.

    Args:
        topic: None for all topics.
        min_stores: required number of stores, or ``all`` known ones.

    Raises:
        DafkaError: fewer stores respond, or no store has the topic; and as ``clients`` raises.
    """
    try:
        least = None if min_stores is None else parse_min_stores(min_stores)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--min-stores'") from None
    from dafka_core.model.records import merge_heads

    topics, names_s = None if topic is None else [topic], min(timeout_s, NAMES_S)
    found: list[PartitionInfo] | None = None
    with ExitStack() as stack:
        if uris:
            served = _named(uris, timeout_s, keys_in(options))
            _check_least(least, len(served), [])
        else:
            from dafka_core import Reader

            with Reader(**options) as reader:
                found = _merged_partitions(reader, topics, timeout_s)
                _report_missing(reader, 0.01 if found is None else timeout_s, least)
                if topic is not None and found == []:
                    raise _unknown(topic, partial(reader.partitions, timeout_s=names_s))
                served = _served(reader)
        for client in served:
            stack.enter_context(client)
        if found is None:
            found = [*merge_heads(_heads(served, topics, timeout_s)).values()]
            if topic is not None and not found:
                raise _unknown(topic, partial(_heads, served, None, names_s))
        yield found, served


def _heads(
    served: Collection[StoreClient], topics: Collection[str] | None, timeout_s: float
) -> Iterator[PartitionInfo]:
    return (info for client in served for info in client.heads(topics, timeout_s=timeout_s))


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


def facts(
    served: Collection[StoreClient], topic: str | None, timeout_s: float
) -> list[PartitionFacts]:
    """Return each store's facts on the partitions of a topic, or of all; warn on failures."""
    found: list[PartitionFacts] = []
    for client in served:
        try:
            found += client.facts(topic, timeout_s=timeout_s)
        except StoreUnreachableError as error:
            output.error(f"{error}: bytes and times that only this store knows are missing")
    return found


def _merged_partitions(
    reader: Reader, topics: Collection[str] | None, timeout_s: float
) -> list[PartitionInfo] | None:
    """Return merged partitions; None if no store can connect here, but all serve Flight."""
    try:
        return reader.partitions(topics, timeout_s=min(timeout_s, ONE_WAY_S))
    except NoStoreError as error:
        if error.unconnected and set(reader.stores()) <= set(reader.endpoints()):
            stores = ", ".join(error.unconnected)
            output.info(
                f"{stores} cannot connect to {error.endpoint}: querying them by Arrow Flight"
            )
            return None
        if timeout_s <= ONE_WAY_S:
            raise
    return reader.partitions(topics, timeout_s=timeout_s - ONE_WAY_S)


def _report_missing(
    reader: Reader,
    timeout_s: float,
    least: int | None = None,
    away: Away = warn_away,
) -> None:
    missing = reader.missing_stores(timeout_s=timeout_s)
    _check_least(least, len(reader.stores()), missing)
    for each in missing:
        away(each)


def _check_least(least: int | None, present: int, missing: Sequence[KnownStore]) -> None:
    try:
        check_min_stores("min_stores", least, present, missing)
    except ConfigError as error:  # exit code 1, not 2: the cluster is at fault, not the option
        raise DafkaError(str(error)) from None


def _served(reader: Reader) -> list[StoreClient]:
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.flight.store_location import StoreLocation

    found = sorted(reader.endpoints().items())
    return [StoreClient(StoreLocation(*each), reader.keys) for each in found]


def _named(uris: str, timeout_s: float, keys: KeyFiles) -> list[StoreClient]:
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.flight.store_location import StoreLocation, parse_locations

    try:
        parsed = parse_locations(uris)
    except ValueError as error:
        raise ConfigError("stores", uris, str(error)) from None
    found = []
    for uri in parsed:
        with StoreClient(StoreLocation("", (uri,)), keys) as client:
            location = client.describe(timeout_s=timeout_s)
        found.append(StoreClient(location.found_at([uri]), keys))
    return found

"""The stores that a command asks: over the mesh, or by Arrow Flight where no answer can come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.config.missing_stores import check_min_stores, parse_min_stores, warning
from dafka_core.config.node_options import KeyFiles, keys_in
from dafka_core.errors import ConfigError, DafkaError, NoStoreError, StoreUnreachableError
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import quoted
from dafka_core.model.records import KnownStore, PartitionInfo, merge_heads

if TYPE_CHECKING:
    from dafka_core import Reader
    from dafka_core.flight.requests import PartitionFacts
    from dafka_core.flight.store_client import StoreClient

ANY_TOPIC: Final = "-"
"""Asked for only to hear of the stores."""

NAMES_S: Final = 2.0
"""For the names of topics that an error is to list: longer it does not wait for them."""

ONE_WAY_S: Final = 2.0
"""A store that is heard of and has not connected to this node by then cannot."""

Away = Callable[[KnownStore], object]
"""Is told of each store that is known and not there."""


def say_away(store: KnownStore) -> None:
    """Says that a result is without what only this store has."""
    output.complain(warning(store))


def clients(
    timeout_s: float,
    uris: str,
    options: Mapping[str, Any],
    min_stores: str | None = None,
    away: Away = say_away,
) -> list[StoreClient]:
    """One for each store that serves Flight, or for those at ``uris``.

    Raises:
        ConfigError: a URI is none.
        DafkaError: fewer stores than ``min_stores`` are there, or with it one serves no Flight.
        StoreUnreachableError: none is at a URI, or it does not answer.
        NoStoreError: no store was heard of.
    """
    if uris:
        return _named(uris, timeout_s, keys_in(options))
    from dafka_core import Reader

    with Reader(**options) as reader:
        is_one_way = _ask(reader, [ANY_TOPIC], timeout_s) is None
        least = None if min_stores is None else parse_min_stores(min_stores)
        _say_who_is_missing(reader, 0.01 if is_one_way else timeout_s, least, away)
        for store in sorted(set(reader.stores()) - set(reader.endpoints())):
            if least is not None:
                raise DafkaError(f"store {store} serves no Flight, and cannot be asked for this")
            output.say(f"store {store} serves no Flight, and is not listed")
        return _served(reader)


def clients_of(reader: Reader, timeout_s: float) -> tuple[list[StoreClient], Reader | None]:
    """One for each store that serves Flight; and the reader, where there are others to be asked.

    Raises:
        NoStoreError: no store was heard of.
    """
    is_one_way = _ask(reader, [ANY_TOPIC], timeout_s) is None
    _say_who_is_missing(reader, 0.01 if is_one_way else timeout_s)
    has_others = bool(set(reader.stores()) - set(reader.endpoints()))
    return _served(reader), reader if has_others and not is_one_way else None


@contextmanager
def opened(
    timeout_s: float,
    uris: str,
    options: Mapping[str, Any],
    min_stores: str | None = None,
    away: Away = say_away,
) -> Iterator[list[StoreClient]]:
    """The same, closed at the end."""
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
    """What the stores, or those at ``uris``, have together; raises as ``holdings`` does."""
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
    """What the stores, or those at ``uris``, have together, and a client of each with Flight.

    Raises as ``clients`` does.

    Args:
        topic: of which; None for all.
        min_stores: how many must answer, or ``all`` that are known.

    Raises:
        DafkaError: fewer do, or none has the topic, too.
    """
    try:
        least = None if min_stores is None else parse_min_stores(min_stores)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--min-stores'") from None
    topics, names_s = None if topic is None else [topic], min(timeout_s, NAMES_S)
    found: list[PartitionInfo] | None = None
    with ExitStack() as stack:
        if uris:
            asked = _named(uris, timeout_s, keys_in(options))
            _check_least(least, len(asked), [])
        else:
            from dafka_core import Reader

            with Reader(**options) as reader:
                found = _ask(reader, topics, timeout_s)
                _say_who_is_missing(reader, 0.01 if found is None else timeout_s, least)
                if topic is not None and found == []:
                    raise _unknown(topic, partial(reader.partitions, timeout_s=names_s))
                asked = _served(reader)
        for client in asked:
            stack.enter_context(client)
        if found is None:
            found = [*merge_heads(_heads(asked, topics, timeout_s)).values()]
            if topic is not None and not found:
                raise _unknown(topic, partial(_heads, asked, None, names_s))
        yield found, asked


def _heads(
    asked: Collection[StoreClient], topics: Collection[str] | None, timeout_s: float
) -> Iterator[PartitionInfo]:
    return (info for client in asked for info in client.heads(topics, timeout_s=timeout_s))


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
    """A topic's partitions, or those that are chosen, of what was found of it.

    Args:
        known: gives what there is of all topics.

    Raises:
        DafkaError: nothing was found, or not one of these; says which there are.
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
    """The error for a topic that no store has; it names the nearest that one has."""
    near = what_there_is(topic, known, "topics")
    return DafkaError(f"no store has records of topic {quoted(topic)} ({near})")


def facts(
    asked: Collection[StoreClient], topic: str | None, timeout_s: float
) -> list[PartitionFacts]:
    """What each store says of the partitions of a topic, or of all; who does not is named."""
    found: list[PartitionFacts] = []
    for client in asked:
        try:
            found += client.facts(topic, timeout_s=timeout_s)
        except StoreUnreachableError as error:
            output.complain(f"{error}: bytes and times that only it knows are missing")
    return found


def _ask(
    reader: Reader, topics: Collection[str] | None, timeout_s: float
) -> list[PartitionInfo] | None:
    """What the stores answer; None where none can, but all can be asked by Flight."""
    try:
        return reader.partitions(topics, timeout_s=min(timeout_s, ONE_WAY_S))
    except NoStoreError as error:
        if error.unmet and set(reader.stores()) <= set(reader.endpoints()):
            stores = ", ".join(error.unmet)
            output.say(f"{stores} cannot connect here, at {error.endpoint}: asked by Arrow Flight")
            return None
        if timeout_s <= ONE_WAY_S:
            raise
    return reader.partitions(topics, timeout_s=timeout_s - ONE_WAY_S)


def _say_who_is_missing(
    reader: Reader,
    timeout_s: float,
    least: int | None = None,
    away: Away = say_away,
) -> None:
    missing = reader.missing_stores(timeout_s=timeout_s)
    _check_least(least, len(reader.stores()), missing)
    for each in missing:
        away(each)


def _check_least(least: int | None, there: int, missing: Sequence[KnownStore]) -> None:
    """Raises DafkaError where stores are missing: the cluster is wrong, not what is asked for."""
    try:
        check_min_stores("min_stores", least, there, missing)
    except ConfigError as error:
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

"""The latest offsets of all stores, asked by the driver at every trigger.

The mesh tells which stores there are and where each can be read in bulk.  Those are asked by one
Arrow Flight action each, all at the same time, which takes some milliseconds; stores that only the
mesh reaches, and only where there are any, are asked over it, which takes as long as they may be
silent.  Of each partition the earliest record and the furthest end of any store count.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from dafka_core import Reader
from dafka_core.config.missing_stores import check_min_stores, warning
from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import ConfigError, DafkaError, NoStoreError
from dafka_core.flight import limits
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, quoted
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_spark.cluster import connections, preflight, timing
from dafka_spark.cluster.connections import Connect
from dafka_spark.cluster.known_stores import remember
from dafka_spark.cluster.store_session import Answer, StoreRegistry
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_values import EVERY_TOPIC, TopicSelection
from dafka_spark.options import AUTO, LOCAL, MESH, SourceOptions
from dafka_spark.source.range_planner import NOT_ARCHIVED, Archived, HeldRange, Holders

# What each store holds, kept from one look to the next: the stores tell what has changed.
#
# A look asks each store for what is new, so its cost grows with what has changed and not with the
# number of partitions.  While a query waits, each store also has one request that it answers when
# something changes: that says when to look, and the look says what there is.


Infos = list[PartitionInfo]

_log = logging.getLogger("dafka_spark")


@dataclass(slots=True)
class _Known:
    """What one store holds; ``infos`` is another list when that has changed."""

    location: StoreLocation
    tells_changes: bool
    cursor: str = ""
    complete_at: float = -math.inf
    held: dict[TopicPartition, PartitionInfo] = field(default_factory=dict)
    infos: Infos = field(default_factory=list)
    is_watched: bool = False
    unwatched_until: float = -math.inf


class StoreWatch:
    """What stores hold of some partitions, for one query.

    Looks are made by one thread, which may ask several stores at the same time.
    """

    def __init__(self, selection: TopicSelection, keys: KeyFiles) -> None:
        self._keys = keys
        self._selection = selection
        self._asked = selection.asked
        self._known: dict[str, _Known] = {}
        self._news = threading.Event()

    def begin_look(self) -> None:
        """To be called before stores are asked: what is new from now on ends the next ``wait``."""
        self._news.clear()

    def ask(self, client: StoreClient, timeout_s: float) -> Infos:
        """What a store holds: the same list as long as nothing has changed."""
        known = self._of(client.location)
        if known.tells_changes:
            return self._ask_changes(known, client, timeout_s)
        found = self._selection.of(client.heads(self._asked, timeout_s=timeout_s))
        known.infos = known.infos if found == known.infos else found
        return known.infos

    def wait(self, locations: Sequence[StoreLocation], timeout_s: float) -> bool:
        """Waits until one of these stores may hold something new; False if none has said so."""
        watched = [self._has_watch(self._of(each)) for each in locations]
        if all(watched):
            return self._news.wait(timeout_s)
        self._news.wait(min(timeout_s, timing.UNWATCHED_S))
        return True

    def _of(self, location: StoreLocation) -> _Known:
        known = self._known.get(location.store)
        if known is None or known.location != location:
            can_be_asked = self._asked is None or len(self._asked) <= limits.MAX_NAMES
            known = self._known[location.store] = _Known(location, can_be_asked)
        return known

    def _ask_changes(self, known: _Known, client: StoreClient, timeout_s: float) -> Infos:
        now = time.monotonic()
        cursor = known.cursor if now < known.complete_at + timing.COMPLETE_S else ""
        found = client.watch(self._asked, cursor, wait_s=0.0, timeout_s=timeout_s)
        news = {info.tp: info for info in self._selection.of(found.heads)}
        held = news if found.complete else known.held | news if news else known.held
        known.cursor = found.cursor
        if found.complete:
            known.complete_at = now
        if held != known.held:
            known.held, known.infos = held, list(held.values())
        return known.infos

    def _has_watch(self, known: _Known) -> bool:
        if not known.tells_changes or not known.cursor:
            return False
        if not known.is_watched and time.monotonic() >= known.unwatched_until:
            known.is_watched = True
            arguments = (known, known.cursor)
            name = "dafka-store-watch"
            threading.Thread(target=self._watch, args=arguments, name=name, daemon=True).start()
        return known.is_watched

    def _watch(self, known: _Known, cursor: str) -> None:
        waiting = {"wait_s": timing.WATCH_S, "timeout_s": timing.ANSWER_S}
        try:
            with connections.lend_client(known.location, self._keys) as client:
                client.watch(self._asked, cursor, **waiting)
        except DafkaError as error:
            _log.debug("%s", error)  # the next look finds out what it means
            known.unwatched_until = time.monotonic() + timing.RETRY_S
        known.is_watched = False
        self._news.set()


T = TypeVar("T")

Heads = Mapping[TopicPartition, PartitionInfo]
"""What the stores hold together, by partition."""


class OffsetsSnapshot(NamedTuple):
    """What the stores hold at one moment.

    Attributes:
        heads: of each selected partition what all of them have together, in order.
        holders: which stores can be read in bulk, and what each of them has.
        answered: the stores that said so themselves, by Flight.
        silent: the stores that are there, so far as the mesh knows, and do not answer.
        answers: what each store has answered by Flight, if the mesh was not asked, too.
        archived: the files of the archive, of which ``heads`` tell, too.
        archive: its directory.
        keys: by which these stores let this process in.
    """

    heads: Heads
    holders: Holders
    answered: frozenset[str] = frozenset()
    silent: Sequence[str] = ()
    answers: Sequence[Answer[Infos]] = ()
    archived: Archived = NOT_ARCHIVED
    archive: str = ""
    keys: KeyFiles = NO_KEYS

    def is_of(self, answers: Sequence[Answer[Infos]], silent: Sequence[str]) -> bool:
        """Whether it was made of these answers: what has not changed is the same list."""
        return (self.silent, len(self.answers)) == (silent, len(answers)) and all(
            location == before[0] and infos is before[1]
            for (location, infos), before in zip(answers, self.answers, strict=True)
        )


_registries: WeakKeyDictionary[Reader, StoreRegistry] = WeakKeyDictionary()
"""The stores of a mesh, by its reader once that has been there for long enough to know them all."""


def fetch_latest_offsets(
    options: SourceOptions,
    connect: Connect,
    *,
    thorough: bool,
    watch: StoreWatch | None = None,
    before: OffsetsSnapshot | None = None,
) -> OffsetsSnapshot:
    """What the stores hold of the partitions that are read.

    With a ``watch`` they are asked for what has changed since the look ``before``, whose snapshot
    it is if nothing has.

    ``thorough`` is for an answer that decides what a whole query reads: then a store that Flight
    does not reach is asked over the mesh at once.

    Raises:
        ConfigError: option ``fetch`` asks for what no store offers, or not for all partitions.
        NoStoreError: no store was heard of within ``fetchTimeoutMs``.
        StoreUnreachableError: ``fetch`` allows Flight only, and no store answers.
    """
    with connect(options.mesh_address) as reader:
        if options.fetch == MESH:
            return OffsetsSnapshot(merge_heads(_meet(reader, options) or ()), {})
        over_mesh: Infos | None = None
        if reader not in _registries or not reader.endpoints():
            over_mesh = _meet(reader, options)
        elif thorough:
            _hear_stores(reader)
        registry = _registries.setdefault(reader, StoreRegistry(keys=options.keys))
        answers = _ask_stores(registry, reader, options, watch)
        if not answers and over_mesh is None:
            # No store that was there answers: this waits for one that comes back.
            over_mesh = _ask_mesh(reader, options)
            answers = _ask_stores(registry, reader, options, watch, again=True)
        failing = registry.failures(0.0 if thorough else timing.UNREACHABLE_S)
        is_partial = bool(registry.others or failing)
        if over_mesh is None and is_partial and (thorough or options.fetch == AUTO):
            over_mesh = _ask_mesh(reader, options)
    remember(options.mesh_address.name, registry.locations)
    silent = tuple(registry.silent())
    if over_mesh is None and before is not None and before.is_of(answers, silent):
        return before
    locations = [location for location, _ in answers]
    held = [(location, info) for location, infos in answers for info in infos]
    holders: dict[TopicPartition, list[HeldRange]] = {}
    for location, info in held:
        held_range = HeldRange(location, info.earliest, info.end, info.life)
        holders.setdefault(info.tp, []).append(held_range)
    infos = [info for _, info in held]
    if options.fetch == AUTO:
        infos += over_mesh or ()
    elif not answers and registry.failures():
        raise registry.failures()[0]
    else:
        missing = {info.tp for info in over_mesh or ()} - set(holders)
        _check_possible(options, locations, missing)
    answered = frozenset(location.store for location in locations)
    alone = answers if over_mesh is None else ()
    return OffsetsSnapshot(merge_heads(infos), holders, answered, silent, alone, keys=options.keys)


def ask_known(
    options: SourceOptions, connect: Connect, work: Callable[[StoreClient], T]
) -> list[Answer[T]]:
    """Has each store with Flight that the last look has found do some work, all at a time."""
    with connect(options.mesh_address) as reader:
        registry = _registries.get(reader, StoreRegistry(keys=options.keys))
    return registry.ask(work, timeout_s=min(options.fetch_timeout_s, timing.ANSWER_S))


def _hear_stores(reader: Reader) -> None:
    with suppress(NoStoreError):  # those of before are there all the same
        reader.hear_stores(timeout_s=timing.FIND_S)


def _meet(reader: Reader, options: SourceOptions) -> Infos | None:
    """Waits until stores have been heard of; what they say over the mesh.

    That is None where stores cannot connect to this process: their answers do not come, but where
    they serve Flight does.
    """
    began = Deadline(options.fetch_timeout_s)
    try:
        return _ask_mesh(reader, options, min(timing.FIND_S, began.timeout_s))
    except NoStoreError as error:
        by_flight = options.fetch != MESH and set(reader.stores()) <= set(reader.endpoints())
        if error.unmet and by_flight:
            text = (
                "stores are asked by Arrow Flight alone, as they have not connected here, at %s: %s"
            )
            _log.warning(text, error.endpoint, ", ".join(error.unmet))
            preflight.warn_of_towers(options.mesh_address)
            return None
        diagnosis = preflight.explain(reader, options.mesh_address, error, began)
    try:
        return _ask_mesh(reader, options, began.left_s)
    except NoStoreError as error:
        raise preflight.no_store(error, began, diagnosis) from None


def _ask_mesh(reader: Reader, options: SourceOptions, timeout_s: float = math.inf) -> Infos:
    timeout_s = min(timeout_s, options.fetch_timeout_s)
    infos = reader.partitions(options.selection.asked, timeout_s=timeout_s)
    return options.selection.of(infos)


def _ask_stores(
    registry: StoreRegistry,
    reader: Reader,
    options: SourceOptions,
    watch: StoreWatch | None,
    *,
    again: bool = False,
) -> list[Answer[Infos]]:
    selection, timeout_s = options.selection, min(options.fetch_timeout_s, timing.ANSWER_S)

    def ask(client: StoreClient) -> Infos:
        if watch is not None:
            return watch.ask(client, timeout_s)
        return selection.of(client.heads(selection.asked, timeout_s=timeout_s))

    registry.update(reader.endpoints(), reader.stores())
    return registry.ask(
        ask,
        timeout_s=timeout_s,
        # A file is read only if its session is the one that the location names.
        max_age_s=0.0 if options.fetch == LOCAL else timing.DESCRIPTION_S,
        again=again,
    )


def _check_possible(
    options: SourceOptions, locations: Sequence[StoreLocation], missing: set[TopicPartition]
) -> None:
    """Raises ``ConfigError`` unless the stores with Flight suffice for what ``fetch`` asks."""
    why = ""
    if not locations:
        why = (
            "no store of this mesh serves Arrow Flight, through which its records are found; "
            "start one without --flight-port off, or read with fetch = auto or mesh"
        )
    elif options.fetch == LOCAL and not any(location.directory for location in locations):
        why = "no store says where its log is; read with fetch = auto or flight"
    elif missing:
        why = (
            f"{min(missing)} is only in stores that serve no Arrow Flight; read with fetch = auto "
            "or mesh"
        )
    if why:
        raise ConfigError("fetch", options.fetch, why)


# Topics and partitions that no store has, and stores that are away, when a query begins.
#
# A query that ends would read nothing in silence: it fails, and so does one that names partitions.
# Other streaming queries wait for them, and say so once.


def check_found(options: SourceOptions, held: Collection[TopicPartition], connect: Connect) -> None:
    """Raises ``ConfigError`` for a name that no store has, if ``failOnMissingTopic`` is true."""
    if options.fail_on_missing_topic and (missing := options.selection.missing(held)):
        option, value, sentence = _sentence(options, missing[0], _all_held(options, connect))
        raise ConfigError(
            option, value, f"{sentence}; failOnMissingTopic = false reads it as empty"
        )


def wait_or_fail(
    options: SourceOptions, held: Collection[TopicPartition], connect: Connect, *, ends: bool
) -> None:
    """The same for a streaming query, which waits unless it ``ends`` or names partitions."""
    if ends or options.assign:
        check_found(options, held, connect)
    missing = options.selection.missing(held)
    everything = _all_held(options, connect) if missing else ()
    for each in missing:
        _, _, sentence = _sentence(options, each, everything)
        _log.warning("%s; the query waits for it", sentence)


def _all_held(options: SourceOptions, connect: Connect) -> Collection[TopicPartition]:
    everything = replace(
        options.without_bounds(),
        subscribe=(),
        assign=frozenset(),
        subscribe_pattern=EVERY_TOPIC,
        metadata="",
    )
    return fetch_latest_offsets(everything, connect, thorough=False).heads


def _sentence(
    options: SourceOptions, missing: TopicPartition, held: Collection[TopicPartition]
) -> tuple[str, str, str]:
    partitions = [tp.partition for tp in held if tp.topic == missing.topic]
    if not partitions:
        option = "assign" if options.assign else "subscribe"
        near = what_there_is(missing.topic, {tp.topic for tp in held}, "topics")
        return option, escape(missing.topic), f"no store has topic {quoted(missing.topic)} ({near})"
    near = what_there_is(missing.partition, partitions, "partitions")
    name = escape(missing.partition)
    what = f"partition {name} of topic {quoted(missing.topic)}"
    return "assign", name, f"no store has {what} ({near})"


def check_stores(options: SourceOptions, connect: Connect) -> None:
    """Warns of each store that is known and away.

    Raises:
        ConfigError: there are fewer stores than option ``minStores`` asks for.
    """
    with connect(options.mesh_address) as reader:
        missing = reader.missing_stores(timeout_s=timing.FIND_S)
        there = len(reader.stores())
    check_min_stores("minStores", options.min_stores, there, missing)
    for each in missing:
        _log.warning("%s", warning(each))

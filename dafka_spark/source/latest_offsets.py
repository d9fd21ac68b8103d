"""What the stores hold, asked by the driver at every trigger.

The mesh tells which stores there are and where each can be read in bulk.  Those are asked by one
Arrow Flight action each, all at the same time, which takes some milliseconds; stores that only the
mesh reaches, and only where there are any, are asked over it, which takes as long as they may be
silent.  The furthest head wins, and the longest memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import connections
from dafka_spark.cluster.connections import Connect, MeshReader
from dafka_spark.options import AUTO, LOCAL, MESH, SourceOptions
from dafka_spark.source.range_planner import HeldRange, Holders

ASK_TIMEOUT_S: Final = 5.0
"""For one store's answer, while others wait for it.  The mesh notices within this time that a peer
is gone, and then it is not asked."""

AGAIN_S: Final = 1.0
"""A store that did not answer is left alone for so long, so that triggers do not wait for it."""

GRACE_S: Final = 10.0
"""A store that does not answer for longer, and that the mesh still hears, is asked over the mesh:
it lives, but Flight does not reach it from here.  One that died is forgotten before."""

REFRESH_S: Final = 30.0
"""How long to believe where a store's log is and which start of the store it belongs to."""

MAX_ASKING: Final = 16
"""Stores asked at the same time."""

_log = logging.getLogger("dafka_spark")


class OffsetsSnapshot(NamedTuple):
    """What was found."""

    infos: list[PartitionInfo]
    """By partition: the furthest end and the longest memory of any store."""
    holders: Holders
    """Which stores can be read in bulk, and what each of them has."""
    answered: frozenset[str] = frozenset()
    """The stores that said so themselves, by Flight."""
    silent: tuple[str, ...] = ()
    """Those that are there, so far as the mesh knows, and do not answer."""


class _Answer(NamedTuple):
    place: StoreLocation
    infos: list[PartitionInfo]


@dataclass(slots=True)
class _Store:
    """What is known of a store that serves Flight."""

    announced: tuple[str, ...]
    place: StoreLocation | None = None
    described_at: float = 0.0
    failing_since: float | None = None
    failure: StoreUnreachableError | None = None
    again_at: float = 0.0


class _Mesh:
    """The stores that one reader of the mesh has heard of."""

    def __init__(self) -> None:
        self.settled = False
        """Whether the reader has been there long enough to have heard of every store."""
        self._stores: dict[str, _Store] = {}

    def ask(
        self,
        endpoints: Mapping[str, tuple[str, ...]],
        topics: Collection[str] | None,
        timeout_s: float,
        *,
        fresh: bool,
    ) -> list[_Answer]:
        """The answers of all stores that give one; ``fresh`` describes their places anew."""
        self._stores = {
            store: self._known(store, announced) for store, announced in endpoints.items()
        }
        now = time.monotonic()
        due = sorted(store for store, known in self._stores.items() if now >= known.again_at)

        def answer(store: str) -> _Answer | None:
            return self._ask_one(store, topics, min(timeout_s, ASK_TIMEOUT_S), fresh=fresh)

        if len(due) < 2:
            found = [answer(store) for store in due]
        else:
            with ThreadPoolExecutor(min(len(due), MAX_ASKING)) as pool:
                found = list(pool.map(answer, due))
        return [each for each in found if each is not None]

    def retry(self) -> None:
        """Those that did not answer are asked by the next ``ask``."""
        for known in self._stores.values():
            known.again_at = 0.0

    def failing(self, grace_s: float) -> list[StoreUnreachableError]:
        """Why stores have not answered for longer than ``grace_s``."""
        before = time.monotonic() - grace_s
        return [
            known.failure
            for known in self._stores.values()
            if known.failure and known.failing_since is not None and known.failing_since <= before
        ]

    def silent(self) -> tuple[str, ...]:
        """The stores that did not answer when they were asked last."""
        return tuple(sorted(store for store, known in self._stores.items() if known.failure))

    def _known(self, store: str, announced: tuple[str, ...]) -> _Store:
        known = self._stores.get(store)
        return known if known and known.announced == announced else _Store(announced)

    def _ask_one(
        self, store: str, topics: Collection[str] | None, timeout_s: float, *, fresh: bool
    ) -> _Answer | None:
        known = self._stores[store]
        now = time.monotonic()
        try:
            if known.place is None or fresh or now >= known.described_at + REFRESH_S:
                known.place = _described(store, known.announced, timeout_s)
                known.described_at = now
            with connections.lend_client(known.place) as client:
                infos = client.heads(topics, timeout_s=timeout_s)
        except (StoreUnreachableError, ConfigError) as error:
            if known.failing_since is None:
                known.failing_since = now
                _log.warning("%s", error)
            # What it announces may be no place at all: that is its fault, not the query's.
            known.failure = (
                error
                if isinstance(error, StoreUnreachableError)
                else StoreUnreachableError(store, str(error))
            )
            known.again_at = time.monotonic() + AGAIN_S
            known.place = None
            return None
        known.failing_since = known.failure = None
        return _Answer(known.place, infos)


_meshes: WeakKeyDictionary[MeshReader, _Mesh] = WeakKeyDictionary()


def look(options: SourceOptions, connect: Connect, *, thorough: bool) -> OffsetsSnapshot:
    """What the stores hold of the topics that are read.

    ``thorough`` is for answers that stand for the whole of a query: then a store that Flight does
    not reach is asked over the mesh at once.

    Raises:
        ConfigError: option ``fetch`` asks for what no store offers, or not for all partitions.
        NoStoreError: no store was heard of within ``fetchTimeoutMs``.
        StoreUnreachableError: ``fetch`` allows Flight only, and no store answers.
    """
    with connect(options.via) as source:
        mesh = _meshes.setdefault(source, _Mesh())
        if options.fetch == MESH:
            return OffsetsSnapshot(_over_mesh(source, options), {})
        heard: list[PartitionInfo] | None = None
        if not mesh.settled or not source.endpoints():
            heard = _over_mesh(source, options)  # waits until stores have been heard of
            mesh.settled = True
        answers = _by_flight(mesh, source, options)
        if not answers and heard is None:
            # Nobody who was there answers: this waits for one that comes back.
            heard = _over_mesh(source, options)
            mesh.retry()
            answers = _by_flight(mesh, source, options)
        failing = bool(mesh.failing(0.0 if thorough else GRACE_S))
        elsewhere = bool(set(source.stores()) - set(source.endpoints()))
        if heard is None and (elsewhere or failing) and (thorough or options.fetch == AUTO):
            heard = _over_mesh(source, options)
        unreachable, silent = mesh.failing(0.0), mesh.silent()
    flown = [info for answer in answers for info in answer.infos]
    answered = frozenset(answer.place.store for answer in answers)
    if options.fetch == AUTO:
        found = furthest([*flown, *(heard or ())])
        return OffsetsSnapshot(found, _holders(answers), answered, silent)
    if not answers and unreachable:
        raise unreachable[0]
    _check_possible(options, answers, heard or ())
    return OffsetsSnapshot(furthest(flown), _holders(answers), answered, silent)


def _over_mesh(source: MeshReader, options: SourceOptions) -> list[PartitionInfo]:
    return source.partitions(options.selection.asked, timeout_s=options.fetch_timeout_s)


def _by_flight(mesh: _Mesh, source: MeshReader, options: SourceOptions) -> list[_Answer]:
    return mesh.ask(
        source.endpoints(),
        options.selection.asked,
        options.fetch_timeout_s,
        # A log is mapped only under the start of its store that the place names.
        fresh=options.fetch == LOCAL,
    )


def _described(store: str, announced: tuple[str, ...], timeout_s: float) -> StoreLocation:
    with connections.lend_client(StoreLocation(store, announced)) as client:
        place = client.describe(timeout_s=timeout_s)
    if place.store != store:
        raise StoreUnreachableError(store, f"store {place.store} answers at {announced[0]}")
    return place


def furthest(infos: Iterable[PartitionInfo]) -> list[PartitionInfo]:
    """What several stores have together: by partition, the longest memory and the furthest end."""
    found: dict[TopicPartition, PartitionInfo] = {}
    for info in infos:
        key = TopicPartition(info.topic, info.partition)
        known = found.get(key, info)
        earliest, end = min(known.earliest, info.earliest), max(known.end, info.end)
        found[key] = PartitionInfo(*key, earliest, end)
    return [found[key] for key in sorted(found)]


def _holders(answers: Iterable[_Answer]) -> Holders:
    holders: dict[TopicPartition, list[HeldRange]] = {}
    for place, infos in answers:
        for info in infos:
            key = TopicPartition(info.topic, info.partition)
            holders.setdefault(key, []).append(HeldRange(place, info.earliest, info.end))
    return holders


def _check_possible(
    options: SourceOptions, answers: list[_Answer], heard: Iterable[PartitionInfo]
) -> None:
    """Raises ``ConfigError`` where the only way that ``fetch`` allows cannot be taken."""
    if not answers:
        raise ConfigError(
            "fetch",
            options.fetch,
            "no store of this mesh serves Arrow Flight, through which its records are found; "
            "start one without --flight-port off, or read with fetch = auto or mesh",
        )
    if options.fetch == LOCAL and not any(answer.place.directory for answer in answers):
        raise ConfigError(
            "fetch", LOCAL, "no store says where its log is; read with fetch = auto or flight"
        )
    known = {(info.topic, info.partition) for answer in answers for info in answer.infos}
    for info in heard:
        key = TopicPartition(info.topic, info.partition)
        if key not in known and options.selection.has(key):
            raise ConfigError(
                "fetch",
                options.fetch,
                f"topic {key.topic!r}, partition {key.partition} is only in stores that serve no "
                "Arrow Flight; read with fetch = auto or mesh",
            )

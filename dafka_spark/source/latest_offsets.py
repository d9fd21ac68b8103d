"""What the stores hold, asked by the driver at every trigger.

The mesh tells which stores there are and where each can be read in bulk.  Those are asked by one
Arrow Flight action each, all at the same time, which takes some milliseconds; stores that only the
mesh reaches, and only where there are any, are asked over it, which takes as long as they may be
silent.  The furthest end wins, and the longest memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from dafka_core.errors import ConfigError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.cluster.connections import Connect, MeshReader
from dafka_spark.cluster.store_registry import Answer, StoreRegistry
from dafka_spark.options import AUTO, LOCAL, MESH, SourceOptions
from dafka_spark.source.range_planner import HeldRange, Holders

Infos = list[PartitionInfo]


class OffsetsSnapshot(NamedTuple):
    """What was found.

    Attributes:
        infos: by partition, the furthest end and the longest memory of any store.
        holders: which stores can be read in bulk, and what each of them has.
        answered: the stores that said so themselves, over Flight.
        silent: the stores that are there, so far as the mesh knows, and do not answer.
    """

    infos: Infos
    holders: Holders
    answered: frozenset[str] = frozenset()
    silent: tuple[str, ...] = ()


_registries: WeakKeyDictionary[MeshReader, StoreRegistry] = WeakKeyDictionary()
"""By the reader that has been in the mesh long enough to have heard of every store."""


def fetch_latest_offsets(
    options: SourceOptions, connect: Connect, *, thorough: bool
) -> OffsetsSnapshot:
    """What the stores hold of the topics that are read.

    ``thorough`` is for answers that stand for the whole of a query: then a store that Flight does
    not reach is asked over the mesh at once.

    Raises:
        ConfigError: option ``fetch`` asks for what no store offers, or not for all partitions.
        NoStoreError: no store was heard of within ``fetchTimeoutMs``.
        StoreUnreachableError: ``fetch`` allows Flight only, and no store answers.
    """
    with connect(options.mesh_address) as reader:
        if options.fetch == MESH:
            return OffsetsSnapshot(_over_mesh(reader, options), {})
        over_mesh: Infos | None = None
        if reader not in _registries or not reader.endpoints():
            over_mesh = _over_mesh(reader, options)  # waits until stores have been heard of
        registry = _registries.setdefault(reader, StoreRegistry())
        answers = _over_flight(registry, reader, options)
        if not answers and over_mesh is None:
            # No store that was there answers: this waits for one that comes back.
            over_mesh = _over_mesh(reader, options)
            answers = _over_flight(registry, reader, options, again=True)
        failing = registry.failures(0.0 if thorough else timing.UNREACHABLE_S)
        is_partial = bool(registry.others or failing)
        if over_mesh is None and is_partial and (thorough or options.fetch == AUTO):
            over_mesh = _over_mesh(reader, options)
    infos = [info for _, found in answers for info in found]
    if options.fetch == AUTO:
        infos += over_mesh or ()
    else:
        if not answers and registry.failures():
            raise registry.failures()[0]
        _check_possible(options, answers, over_mesh or ())
    answered = frozenset(location.store for location, _ in answers)
    silent = tuple(registry.silent())
    return OffsetsSnapshot(furthest(infos), _holders(answers), answered, silent)


def _over_mesh(reader: MeshReader, options: SourceOptions) -> Infos:
    return reader.partitions(options.selection.asked, timeout_s=options.fetch_timeout_s)


def _over_flight(
    registry: StoreRegistry, reader: MeshReader, options: SourceOptions, *, again: bool = False
) -> list[Answer[Infos]]:
    timeout_s = min(options.fetch_timeout_s, timing.ANSWER_S)
    registry.update(reader.endpoints(), reader.stores())
    return registry.ask(
        lambda client: client.heads(options.selection.asked, timeout_s=timeout_s),
        timeout_s=timeout_s,
        # A log is mapped only under the start of its store that the location names.
        max_age_s=0.0 if options.fetch == LOCAL else timing.DESCRIPTION_S,
        again=again,
    )


def furthest(infos: Iterable[PartitionInfo]) -> Infos:
    """What several stores have together: by partition, the longest memory and the furthest end."""
    found: dict[TopicPartition, PartitionInfo] = {}
    for info in infos:
        known = found.get(info.tp, info)
        earliest, end = min(known.earliest, info.earliest), max(known.end, info.end)
        found[info.tp] = PartitionInfo(*info.tp, earliest, end)
    return [found[tp] for tp in sorted(found)]


def _holders(answers: Iterable[Answer[Infos]]) -> Holders:
    holders: dict[TopicPartition, list[HeldRange]] = {}
    for location, infos in answers:
        for info in infos:
            held = HeldRange(location, info.earliest, info.end)
            holders.setdefault(info.tp, []).append(held)
    return holders


def _check_possible(
    options: SourceOptions, answers: list[Answer[Infos]], heard: Iterable[PartitionInfo]
) -> None:
    """Raises ``ConfigError`` where the only way that ``fetch`` allows cannot be taken."""
    if not answers:
        raise ConfigError(
            "fetch",
            options.fetch,
            "no store of this mesh serves Arrow Flight, through which its records are found; "
            "start one without --flight-port off, or read with fetch = auto or mesh",
        )
    if options.fetch == LOCAL and not any(location.directory for location, _ in answers):
        raise ConfigError(
            "fetch", LOCAL, "no store says where its log is; read with fetch = auto or flight"
        )
    known = {info.tp for _, infos in answers for info in infos}
    for info in heard:
        if info.tp not in known and options.selection.has(info.tp):
            raise ConfigError(
                "fetch",
                options.fetch,
                f"topic {info.topic!r}, partition {info.partition} is only in stores that serve no "
                "Arrow Flight; read with fetch = auto or mesh",
            )

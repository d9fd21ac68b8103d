"""What a store tells of itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dafka_core.metrics import declarations as d
from dafka_core.metrics.mesh_readings import of_mesh
from dafka_core.metrics.samples import Sample
from dafka_core.metrics.topic_totals import ShownTopics, TopicTotals
from dafka_core.nodes.disk_watch import Disk, DiskWatch

if TYPE_CHECKING:
    from dafka_core.flight.server_context import ServerContext
    from dafka_core.nodes.store import Store

REFUSALS: Final = ("FencedError", "OffsetConflictError", "TransactionExistsError")
"""Errors for which the log does not do what it is told; told of with 0, too, so that the first one
is seen as an increase."""


class StoreReadings:
    """Reads a store.

    Args:
        topics: how many topics have numbers of their own.
    """

    def __init__(self, store: Store, topics: int) -> None:
        self._totals = TopicTotals(store.log)
        self._shown = ShownTopics(topics)

    def read(self, store: Store) -> Iterator[Sample]:
        """What it tells now.

        Raises:
            DafkaError: it is closed.
        """
        mesh, role, loop, watch, merge_thread, flight = store.parts
        yield from of_mesh(mesh)
        yield from _written(watch)
        yield Sample(d.SYNCS, store.log.syncs.counted)
        yield Sample(d.TOO_LARGE, loop.too_large_count)
        yield Sample(d.DAMAGED, loop.damaged_count)
        yield Sample(d.PENDING, role.pending_bytes)
        yield Sample(d.PUTS, store.append_queue.size_bytes)
        yield Sample(d.REQUESTS, len(role.requests))
        yield Sample(d.REQUESTS_REFUSED, role.requests.refused_count)
        for limit, count in role.admitted.limits.refused.items():
            yield Sample(d.LIMITS_REACHED, count, (limit,))
        yield Sample(d.MERGES, merge_thread.merged_count)
        yield Sample(d.MERGE_SECONDS, merge_thread.merged_s)
        yield Sample(d.MERGES_FAILED, merge_thread.failed_count)
        yield Sample(d.LINKED, store.log.linker.made)
        yield Sample(d.CHANGED, len(store.log.linker.wrong))
        yield Sample(d.COMPRESSED, store.compressor.blocks)
        yield Sample(d.COMPRESSED_FROM, store.compressor.before_bytes)
        yield Sample(d.COMPRESSED_TO, store.compressor.after_bytes)
        yield Sample(d.RULES, len(store.retention.rules))
        counts = store.retention.counts
        yield Sample(d.PASSES, counts.passes)
        yield Sample(d.TRIMS, counts.trims)
        yield Sample(d.GIVEN_UP, counts.records)
        if (archiver := store.archiver) is not None:
            yield Sample(d.ARCHIVED_FILES, archiver.counts.files)
            yield Sample(d.ARCHIVED, archiver.counts.records)
            yield Sample(d.ARCHIVED_BYTES, archiver.counts.size_bytes)
            yield Sample(d.ARCHIVE_FAILING, archiver.counts.failing)
        known = role.known.names
        yield Sample(d.KNOWN_STORES, len(known))
        yield Sample(d.MISSING_STORES, len(known) - len(role.known.here))
        if flight is not None:
            yield from _streams(flight)
        yield from self._of_disk(store)
        yield from self._of_topics(store, watch)

    def _of_disk(self, store: Store) -> Iterator[Sample]:
        with contextlib.suppress(OSError):  # the log says so itself
            disk = Disk.of(store.log.directory)
            yield Sample(d.DISK_SIZE, disk.size_bytes)
            yield Sample(d.DISK_FREE, disk.free_bytes)
        space = store.log.space()
        yield Sample(d.FILE_BYTES, space.file_bytes)
        yield Sample(d.FILE_FREE, space.free_bytes)
        yield Sample(d.LEASES, space.leases)
        yield Sample(d.OLDEST_LEASE, space.oldest_lease_s)
        yield Sample(d.SMALL_BLOCKS, store.log.small_blocks)

    def _of_topics(self, store: Store, watch: DiskWatch) -> Iterator[Sample]:
        totals = self._totals.look()
        self._shown.choose(totals)
        yield Sample(d.PARTITIONS, sum(each.partitions for each in totals.values()))
        yield Sample(d.TOPICS, len(totals))
        for topic, partitions, records in self._shown.summed(totals.items()):
            yield Sample(d.TOPIC_PARTITIONS, partitions, (topic,))
            yield Sample(d.TOPIC_RECORDS, records, (topic,))
        appended = [(topic, (records, size)) for topic, (records, size) in [*watch.topics.items()]]
        for topic, records, size_bytes in self._shown.summed(appended):
            yield Sample(d.TOPIC_APPENDED_RECORDS, records, (topic,))
            yield Sample(d.TOPIC_APPENDED_BYTES, size_bytes, (topic,))


def _written(watch: DiskWatch) -> Iterator[Sample]:
    yield Sample(d.APPENDS, watch.appends.counted)
    yield Sample(d.APPENDED_RECORDS, watch.records)
    yield Sample(d.APPENDED_BYTES, watch.bytes)
    yield Sample(d.SLOW_APPENDS, watch.slow_count)
    for error, count in (dict.fromkeys(REFUSALS, 0) | dict(watch.refused)).items():
        yield Sample(d.ENTRIES_REFUSED, count, (error,))
    yield Sample(d.FENCES, watch.fences)
    yield Sample(d.PROMISES, watch.promises)


def _streams(flight: ServerContext) -> Iterator[Sample]:
    for what in ("gets", "puts", "waits", "watches", "commits"):
        limiter = getattr(flight, what)
        yield Sample(d.STREAMS, limiter.count - limiter.free, (what,))
        yield Sample(d.STREAMS_WAITING, limiter.waiting, (what,))
        yield Sample(d.STREAMS_REFUSED, limiter.refused_count, (what,))
    yield Sample(d.FLIGHT_FORBIDDEN, flight.keys.refusal_count if flight.keys else 0)
    yield Sample(d.FLIGHT_SENT, flight.gets.sent_bytes)

"""Readings of the metrics of stores, other nodes and topics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from dafka_core.model.names import escape
from dafka_core.nodes.disk_watch import Disk, DiskWatch
from dafka_core.nodes.traffic import REASONS
from dafka_core.ops import metric_declarations as d
from dafka_core.ops.metric_declarations import Sample
from dafka_core.storage import Log

if TYPE_CHECKING:
    from dafka_core.flight.server_context import ServerContext
    from dafka_core.nodes.consumer import Consumer
    from dafka_core.nodes.mesh import Mesh
    from dafka_core.nodes.producer import Producer
    from dafka_core.nodes.store import Store
    from dafka_core.nodes.tower import Tower


PEER_KINDS: Final = {"S": "store", "P": "producer", "C": "consumer", "R": "reader"}
"""Kinds by the letter that nodes announce."""

OTHER: Final = "other"

ALWAYS_REPORTED: Final = ("Ack", "EpochAck", "Fetch", "FetchBatch")
"""Messages that are reported with 0, too, so that the first one is an increase for Prometheus."""


def of_mesh(mesh: Mesh) -> Iterator[Sample]:
    """Read the metrics of any node in the mesh."""
    peers, traffic = mesh.peers, mesh.traffic
    letters = mesh.limits.letters()
    counted = {kind: letters[letter] for letter, kind in PEER_KINDS.items()}
    counted[OTHER] = max(len(peers.table) - sum(counted.values()), 0)
    for kind, count in counted.items():
        yield Sample(d.PEERS, count, (kind,))
    yield Sample(d.CONNECTIONS_RENEWED, peers.renewal_count)
    yield Sample(d.RECORDS_RECEIVED, traffic.records_received)
    yield Sample(d.BYTES_RECEIVED, traffic.bytes_received)
    yield Sample(d.RECORDS_SENT, traffic.live_records, ("live",))
    yield Sample(d.RECORDS_SENT, traffic.direct_records, ("direct",))
    yield Sample(d.BYTES_SENT, traffic.live_bytes, ("live",))
    yield Sample(d.BYTES_SENT, traffic.direct_bytes, ("direct",))
    for metric, counts in (
        (d.MESSAGES_RECEIVED, traffic.received),
        (d.MESSAGES_SENT, traffic.sent),
    ):
        for message, count in (dict.fromkeys(ALWAYS_REPORTED, 0) | dict(counts)).items():
            yield Sample(metric, count, (message,))
    for reason in REASONS:
        yield Sample(d.FRAMES_REFUSED, traffic.refused[reason], (reason,))
    now = time.monotonic()
    for tower, heard_at in peers.towers.heard_at.items():
        yield Sample(d.TOWER_SILENT, max(now - heard_at, 0.0) if heard_at else 0.0, (tower,))
    yield Sample(d.LOOP_OVERDUE, overdue_s(mesh))


def overdue_s(mesh: Mesh) -> float:
    """Return the time by which a node's loop is overdue; it runs at least once per beacon."""
    return max(time.monotonic() - mesh.peers.beacon_due, 0.0)


def of_producer(producer: Producer) -> Iterator[Sample]:
    """Read the metrics of a producer."""
    role = producer.role
    topic = (escape(producer.topic),)
    yield from of_mesh(producer.mesh)
    yield Sample(d.PUBLISHED, producer.next_offset, topic)
    yield Sample(d.ACKNOWLEDGED, producer.acknowledged, topic)
    yield Sample(d.UNACKED_BYTES, producer.unacked_bytes, topic)
    yield Sample(d.FENCED, role.fenced_by is not None, topic)


def of_consumer(consumer: Consumer) -> Iterator[Sample]:
    """Read the metrics of a consumer."""
    yield from of_mesh(consumer.mesh)
    records, size_bytes = consumer.queue.size
    yield Sample(d.QUEUED_RECORDS, records)
    yield Sample(d.QUEUED_BYTES, size_bytes)
    records, size_bytes = consumer.queue.added
    yield Sample(d.CONSUMED, records)
    yield Sample(d.CONSUMED_BYTES, size_bytes)
    yield Sample(d.SKIPPED, sum(consumer.skipped.values()))
    yield Sample(d.SUBSCRIPTIONS, len(consumer.subscription))


def of_tower(tower: Tower) -> Iterator[Sample]:
    """Read the metrics of a tower."""
    yield Sample(d.TOWER_NODES, tower.relay.discovered.count())
    yield Sample(d.BEACONS, tower.relay.beacon_count)
    yield Sample(d.FRAMES_REFUSED, tower.relay.invalid_count, ("beacon",))


# A store may have a million partitions, and any number of topics: so a limited number of topics
# have their own metrics, and summing them takes a limited share of the time.


SHARE: Final = 0.01
"""Maximum share of the time for summing: the next sum is due after 100 times the last duration."""

PAGE: Final = 10_000
"""Partitions read per step."""


class Total(NamedTuple):
    """Totals of a topic."""

    partitions: int = 0
    records: int = 0


class TopicTotals:
    """The totals of a log's topics, updated now and then; safe in any thread."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._number = -1
        self._due = 0.0
        self._totals: dict[str, Total] = {}

    def current(self) -> dict[str, Total]:
        """Return the totals by topic; sum them anew if that is due."""
        now, number = self._clock(), self._log.changes.number
        if number != self._number and now >= self._due:
            self._totals, self._number = self._summed(), number
            took_s = self._clock() - now
            self._due = now + took_s / SHARE
        return self._totals

    def _summed(self) -> dict[str, Total]:
        totals: dict[str, Total] = {}
        found = self._log.partitions_after(None, None, PAGE)
        while found:
            for each in found:
                if each.end:
                    partitions, records = totals.get(each.topic, Total())
                    records += each.end - each.earliest
                    totals[each.topic] = Total(partitions + 1, records)
            found = self._log.partitions_after(None, found[-1].tp, PAGE)
        return totals


class ShownTopics:
    """The topics with their own metrics: at first the largest, then new ones up to ``most``.

    A topic keeps its metrics while it exists, so that no line in a graph ends because another
    topic grew.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._shown: dict[str, str] = {}

    def choose(self, totals: dict[str, Total]) -> None:
        """Drop topics that no longer exist, and add new ones up to the maximum."""
        self._shown = {each: name for each, name in self._shown.items() if each in totals}
        room = self._most - len(self._shown)
        if room > 0 and len(totals) > len(self._shown):
            new = [each for each in totals if each not in self._shown]
            new.sort(key=lambda each: (-totals[each].records, each))
            self._shown.update((each, escape(each)) for each in new[:room])

    def label(self, topic: str) -> str:
        """Return the topic's escaped name, or ``OTHER``."""
        return self._shown.get(topic, OTHER)

    def summed(
        self, counts: Iterable[tuple[str, tuple[int, int]]]
    ) -> Iterator[tuple[str, int, int]]:
        """Sum pairs of numbers by label."""
        sums = dict.fromkeys(self._shown.values(), (0, 0))
        for topic, (one, two) in counts:
            label = self.label(topic)
            before = sums.get(label, (0, 0))
            sums[label] = before[0] + one, before[1] + two
        for label, (one, two) in sums.items():
            yield label, one, two


REFUSALS: Final = ("FencedError", "OffsetConflictError", "TransactionExistsError")
"""Errors of refused requests, reported with 0, too, so that the first is an increase."""


class StoreReadings:
    """Reads the metrics of a store.

    Args:
        topics: maximum number of topics with their own metrics.
    """

    def __init__(self, store: Store, topics: int) -> None:
        self._totals = TopicTotals(store.log)
        self._shown = ShownTopics(topics)

    def read(self, store: Store) -> Iterator[Sample]:
        """Yield the current samples.

        Raises:
            DafkaError: the store is closed.
        """
        role, merge_thread = store.role, store.merge_thread
        yield from of_mesh(store.mesh)
        yield from _written(store.disk_watch)
        yield Sample(d.SYNCS, store.log.syncs.counted)
        yield Sample(d.TOO_LARGE, role.too_large_count)
        yield Sample(d.DAMAGED, store.loop.damaged_count)
        yield Sample(d.DAMAGED_PARTITIONS, len(store.log.healer.damaged))
        yield Sample(d.HEALED, store.heal_thread.healed_count)
        yield Sample(d.PENDING, role.pending_bytes)
        yield Sample(d.PUTS, store.append_queue.size_bytes)
        yield Sample(d.REQUESTS, len(role.requests))
        yield Sample(d.REQUESTS_REFUSED, role.requests.refused_count)
        for limit, count in role.limits.refused.items():
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
            yield Sample(d.ARCHIVED_FILES, archiver.files)
            yield Sample(d.ARCHIVED, archiver.records)
            yield Sample(d.ARCHIVED_BYTES, archiver.size_bytes)
            yield Sample(d.ARCHIVE_FAILING, len(archiver.failed))
        known = store.known.names
        yield Sample(d.KNOWN_STORES, len(known))
        yield Sample(d.MISSING_STORES, len(known) - len(store.known.here))
        if store.flight is not None:
            yield from _streams(store.flight)
        yield from self._of_disk(store)
        yield from self._of_topics(store, store.disk_watch)

    def _of_disk(self, store: Store) -> Iterator[Sample]:
        with contextlib.suppress(OSError):  # ``/readyz`` reports it
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
        totals = self._totals.current()
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

"""The metrics of nodes: one table of what each means and where it is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from dafka_core.model.names import escape
from dafka_core.nodes.disk_watch import OTHER, Disk
from dafka_core.nodes.traffic import BEACON, REASONS, MeshTraffic
from dafka_core.ops import health
from dafka_core.ops.findings import Finding, Severity
from dafka_core.ops.metric_declarations import Metric, Sample, counter, gauge, histogram
from dafka_core.ops.topic_totals import ShownTopics, TopicTotals, Total
from dafka_core.storage.environment import Space

PEER_KINDS: Final = {"S": "store", "P": "producer", "C": "consumer", "R": "reader"}
"""Kinds by the letter that nodes announce."""

STREAMS: Final = ("gets", "puts", "waits", "watches", "commits")
"""Requests of Flight, each kind with its own limit."""

ALWAYS_REPORTED: Final = ("Ack", "EpochAck", "Fetch", "FetchBatch")
"""Messages that are reported with 0, too, so that the first one is an increase for Prometheus."""

REFUSALS: Final = ("FencedError", "OffsetConflictError", "TransactionExistsError")
"""Errors of refused requests, reported with 0, too."""


class Reading:
    """What the metrics of a node are read from at one scrape: the node, and more.

    Args:
        node: None if it was garbage-collected; its attributes are those of the reading.
        info: its version and endpoint.
        topics: of a store: the totals of its topics, and those with their own metrics.
    """

    def __init__(
        self,
        node: Any,
        findings: list[Finding],
        info: tuple[str, str],
        topics: tuple[TopicTotals, ShownTopics] | None,
    ) -> None:
        self.findings = findings
        self.info = {info: 1}
        self._node = node
        self._topics = topics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def samples(self, kind: str, own: Sequence[Metric]) -> Iterator[Sample]:
        """Yield the samples of a node of a kind; of a closed node only those of any node.

        Args:
            own: the metrics of an extension.

        Raises:
            DafkaError: the node is just being closed.
        """
        metrics = [*TABLE[EVERY]]
        if self._node is not None and self._node.is_open:
            metrics += [*of_kind(kind), *own]
        for metric in metrics:
            yield from metric.samples(self)

    @property
    def peer_counts(self) -> dict[str, int]:
        """Connected nodes by kind."""
        letters = self.mesh.limits.letters()
        counts = {kind: letters[letter] for letter, kind in PEER_KINDS.items()}
        return counts | {OTHER: max(len(self.mesh.peers.table) - sum(counts.values()), 0)}

    @property
    def refused_frames(self) -> dict[str, int]:
        """Refused frames by reason."""
        if self.kind == "tower":
            return {BEACON: self.relay.invalid_count}
        return {reason: self.mesh.traffic.refused[reason] for reason in REASONS}

    @property
    def silent_towers(self) -> dict[str, float]:
        """Seconds since the last message of each tower."""
        now, heard_at = time.monotonic(), self.mesh.peers.towers.heard_at
        return {tower: max(now - at, 0.0) if at else 0.0 for tower, at in heard_at.items()}

    @cached_property
    def space(self) -> Space:
        """The space of a store's log."""
        space: Space = self.log.space()
        return space

    @cached_property
    def disk(self) -> Disk | None:
        """The file system of a store's log; None if it cannot be read, as ``/readyz`` reports."""
        with suppress(OSError):
            return Disk.of(self.log.directory)
        return None

    @cached_property
    def totals(self) -> dict[str, Total]:
        """The totals of a store's topics."""
        assert self._topics is not None
        totals, shown = self._topics
        found = totals.current()
        shown.choose(found)
        return found

    @property
    def appended(self) -> list[tuple[str, tuple[int, int]]]:
        """Records and bytes appended to each topic."""
        return [*self.disk_watch.topics.items()]

    def by_topic(self, counts: Iterable[tuple[str, int]]) -> dict[str, int]:
        """Sum counts by the label of the topic."""
        assert self._topics is not None
        return self._topics[1].summed(counts)

    def of_streams(self, read: Callable[[Any], int]) -> dict[str, int] | None:
        """Read a number from the limits of Flight; None if the store does not serve it."""
        if self.flight is None:
            return None
        return {what: read(getattr(self.flight, what)) for what in STREAMS}


def _sent(traffic: MeshTraffic, what: str) -> dict[str, int]:
    return {how: getattr(traffic, f"{how}_{what}") for how in ("live", "direct")}


_OF_ANY: Final = (
    gauge("node_info", "info", "1, with facts as labels", "version", "endpoint"),
    gauge(
        "node_healthy",
        lambda n: health.is_alive(n.findings),
        "1 if the node runs, as in `/healthz`; else 0",
    ),
    gauge(
        "node_ready",
        lambda n: health.is_ready(n.findings),
        "1 if the node is ready, as in `/readyz`; else 0",
    ),
    gauge(
        "node_warnings",
        lambda n: sum(each.severity is Severity.WARNING for each in n.findings),
        "warnings about the node, which `/readyz` lists",
    ),
)

_IN_MESH: Final = (
    gauge(
        "mesh_peers",
        "peer_counts",
        "connected nodes by kind; `other`: C nodes, and those not connected yet",
        "peer",
    ),
    counter(
        "mesh_connections_renewed",
        "mesh.peers.renewal_count",
        "connections renewed after a frame that was too large or invalid",
    ),
    counter(
        "mesh_received_records",
        "mesh.traffic.records_received",
        "records received from peers, with duplicates",
    ),
    counter(
        "mesh_received_bytes",
        "mesh.traffic.bytes_received",
        "contents of these records, without frame headers",
    ),
    counter(
        "mesh_sent_records",
        lambda n: _sent(n.mesh.traffic, "records"),
        "records sent: `live` to all nodes that follow the topic, counted once; `direct` to one "
        "that requested them",
        "how",
    ),
    counter(
        "mesh_sent_bytes",
        lambda n: _sent(n.mesh.traffic, "bytes"),
        "contents of these records",
        "how",
    ),
    counter(
        "mesh_received_messages",
        lambda n: dict.fromkeys(ALWAYS_REPORTED, 0) | n.mesh.traffic.received,
        "other messages received, by name (docs/wire.md)",
        "message",
    ),
    counter(
        "mesh_sent_messages",
        lambda n: dict.fromkeys(ALWAYS_REPORTED, 0) | n.mesh.traffic.sent,
        "other messages sent, by name",
        "message",
    ),
    gauge(
        "mesh_tower_silent_seconds",
        "silent_towers",
        "time since a tower's last message; it sends one each second",
        "tower",
    ),
    gauge(
        "mesh_loop_overdue_seconds",
        lambda n: health.overdue_s(n.mesh),
        "delay of the node's loop: it hangs, or the machine is overloaded",
    ),
)

_WITH_TOWERS: Final = (
    counter(
        "mesh_refused_frames",
        "refused_frames",
        "dropped frames: an invalid `message`, `records` or `beacon`, or one `forbidden` by the "
        "sender's key",
        "reason",
    ),
)

_OF_STORES: Final = (
    histogram(
        "store_append", "disk_watch.appends.counted", "time to write and sync a group of records"
    ),
    histogram("store_sync", "log.syncs.counted", "time of syncs of the disk, also of merges"),
    counter("store_appended_records", "disk_watch.records", "records appended or staged on disk"),
    counter("store_appended_bytes", "disk_watch.bytes", "contents of these records"),
    counter("store_slow_appends", "disk_watch.slow_count", "writes that took more than 1 s"),
    counter(
        "store_refused_entries",
        lambda n: dict.fromkeys(REFUSALS, 0) | n.disk_watch.refused,
        "refused requests of writers by error: `FencedError` (a newer attempt writes), "
        "`OffsetConflictError`, `TransactionExistsError`",
        "error",
    ),
    counter(
        "store_fences",
        "disk_watch.fences",
        "partitions whose newest records were set aside ('dafka store aside')",
    ),
    counter(
        "store_promises",
        "disk_watch.promises",
        "takeovers of partitions by a producer",
    ),
    counter(
        "store_too_large_records",
        "role.too_large_count",
        "records not stored: above `max_record_bytes`",
    ),
    counter(
        "store_damaged_reads", "loop.damaged_count", "requests that failed as the log is damaged"
    ),
    gauge(
        "store_damaged_partitions",
        lambda n: len(n.log.healer.damaged),
        "partitions with damaged records, not replaced yet",
    ),
    counter(
        "store_healed_records",
        "heal_thread.healed_count",
        "damaged records replaced by another store's",
    ),
    gauge(
        "store_pending_bytes", "role.pending_bytes", "records from the mesh that wait for the disk"
    ),
    gauge(
        "store_puts_bytes",
        "append_queue.size_bytes",
        "records from Flight or Kafka that wait for the disk",
    ),
    gauge("store_waiting_requests", lambda n: len(n.role.requests), "queued requests of the mesh"),
    counter(
        "store_refused_requests",
        "role.requests.refused_count",
        "requests refused as the queue was full",
    ),
    counter(
        "store_limit_refusals",
        "role.limits.refused",
        "records refused by a limit (docs/security.md#limits)",
        "limit",
    ),
    gauge("store_small_blocks", "log.small_blocks", "small blocks that wait to be merged"),
    counter("store_merges", "merge_thread.merged_count", "merges of small blocks into one"),
    counter(
        "store_merge_seconds", "merge_thread.merged_s", "time of merges, which run beside appends"
    ),
    counter(
        "store_failed_merges",
        "merge_thread.failed_count",
        "merges that failed with an error of the disk",
    ),
    counter("store_links", "log.linker.made", "links created or extended"),
    gauge(
        "store_changed_partitions",
        lambda n: len(n.log.linker.wrong),
        "partitions found to be changed on disk",
    ),
    counter("store_compressed_blocks", "compressor.blocks", "compressed cold blocks"),
    counter(
        "store_compressed_from_bytes", "compressor.before_bytes", "size of these blocks before"
    ),
    counter(
        "store_compressed_to_bytes", "compressor.after_bytes", "size of these blocks afterwards"
    ),
    gauge(
        "retention_rules",
        lambda n: len(n.retention.rules),
        "retention rules; without any nothing is deleted",
    ),
    counter("retention_passes", "retention.counts.passes", "runs of retention"),
    counter("retention_trims", "retention.counts.trims", "deletions of blocks by retention"),
    counter("retention_records", "retention.counts.records", "records deleted by retention"),
    counter("archive_files", "archiver.files", "files added to the archive"),
    counter("archive_records", "archiver.records", "records in these files"),
    counter("archive_bytes", "archiver.size_bytes", "size of these files"),
    gauge(
        "archive_failing_partitions",
        lambda n: n.archiver and len(n.archiver.failed),
        "partitions that cannot be archived; the log reports why",
    ),
    gauge("store_leases", "space.leases", "readers on this machine that lease blocks of the file"),
    gauge("store_oldest_lease_seconds", "space.oldest_lease_s", "age of the oldest lease"),
    gauge("store_file_bytes", "space.file_bytes", "size of the log's file, which does not shrink"),
    gauge(
        "store_file_free_bytes", "space.free_bytes", "free space in the file, used for new records"
    ),
    gauge("store_disk_size_bytes", "disk.size_bytes", "size of the file system"),
    gauge("store_disk_free_bytes", "disk.free_bytes", "free space in the file system"),
    gauge(
        "store_partitions",
        lambda n: sum(each.partitions for each in n.totals.values()),
        "partitions in the store",
    ),
    gauge("store_topics", lambda n: len(n.totals), "topics in the store"),
    gauge(
        "store_known_stores",
        lambda n: len(n.known.names),
        "other stores that it has met and not forgotten",
    ),
    gauge(
        "store_missing_stores",
        lambda n: len(n.known.names) - len(n.known.here),
        "known stores that do not respond",
    ),
    gauge(
        "topic_partitions",
        lambda n: n.by_topic((name, of.partitions) for name, of in n.totals.items()),
        "the topic's partitions at this store",
        "topic",
    ),
    gauge(
        "topic_records",
        lambda n: n.by_topic((name, of.records) for name, of in n.totals.items()),
        "the topic's records at this store",
        "topic",
    ),
    counter(
        "topic_appended_records",
        lambda n: n.by_topic((name, of[0]) for name, of in n.appended),
        "records appended or staged since the store started",
        "topic",
    ),
    counter(
        "topic_appended_bytes",
        lambda n: n.by_topic((name, of[1]) for name, of in n.appended),
        "contents of these records",
        "topic",
    ),
    gauge(
        "flight_streams",
        lambda n: n.of_streams(lambda each: each.count - each.free),
        "requests served over Flight now: `gets`, `puts`, `waits`, `watches`, `commits`",
        "what",
    ),
    gauge(
        "flight_waiting_streams",
        lambda n: n.of_streams(lambda each: each.waiting),
        "queued requests",
        "what",
    ),
    counter(
        "flight_refused_streams",
        lambda n: n.of_streams(lambda each: each.refused_count),
        "requests that timed out in the queue",
        "what",
    ),
    counter(
        "flight_forbidden_requests",
        lambda n: n.flight and (n.flight.keys.refusal_count if n.flight.keys else 0),
        "requests without permission or allowed key",
    ),
    counter("flight_sent_bytes", "flight.gets.sent_bytes", "columns sent to readers"),
)

_OF_TOWERS: Final = (
    gauge(
        "tower_nodes",
        lambda n: n.relay.discovered.count(),
        "nodes that sent a beacon in the last 10 s",
    ),
    counter("tower_beacons", "relay.beacon_count", "forwarded beacons"),
)

_OF_PRODUCERS: Final = (
    gauge(
        "producer_next_offset",
        lambda n: {escape(n.topic): n.next_offset},
        "the offset of its partition's next record",
        "topic",
    ),
    gauge(
        "producer_acknowledged_offset",
        lambda n: {escape(n.topic): n.acknowledged},
        "the offset before which all records are acknowledged",
        "topic",
    ),
    gauge(
        "producer_unacknowledged_bytes",
        lambda n: {escape(n.topic): n.unacked_bytes},
        "contents of records that are not acknowledged",
        "topic",
    ),
    gauge(
        "producer_fenced",
        lambda n: {escape(n.topic): n.role.fenced_by is not None},
        "1 when another producer has taken its partition over",
        "topic",
    ),
)

_OF_CONSUMERS: Final = (
    gauge(
        "consumer_queued_records",
        lambda n: n.queue.size[0],
        "records that wait for the application",
    ),
    gauge("consumer_queued_bytes", lambda n: n.queue.size[1], "contents of these records"),
    counter(
        "consumer_received_records", lambda n: n.queue.added[0], "records received and put in order"
    ),
    counter("consumer_received_bytes", lambda n: n.queue.added[1], "contents of these records"),
    counter(
        "consumer_skipped_records",
        lambda n: sum(n.skipped.values()),
        "lost records that were skipped (`skip`)",
    ),
    gauge("consumer_topics", lambda n: len(n.subscription), "followed topics"),
)

EVERY: Final = ("every node",)
"""Nodes of all kinds, also those of extensions."""

MESH: Final = ("store", "producer", "consumer")

TABLE: Final[Mapping[tuple[str, ...], tuple[Metric, ...]]] = {
    EVERY: _OF_ANY,
    MESH: _IN_MESH,
    (*MESH, "tower"): _WITH_TOWERS,
    ("store",): _OF_STORES,
    ("tower",): _OF_TOWERS,
    ("producer",): _OF_PRODUCERS,
    ("consumer",): _OF_CONSUMERS,
}
"""All metrics by the kinds of nodes that have them, in the order of docs/metrics.md."""


def of_kind(kind: str) -> list[Metric]:
    """Return the metrics that only nodes of some kinds have, as this one."""
    return [metric for kinds, metrics in TABLE.items() if kind in kinds for metric in metrics]

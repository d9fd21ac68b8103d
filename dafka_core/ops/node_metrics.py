"""The metrics of nodes: one table of what each means and where it is read, and the watched nodes.

Nodes are watched without keeping them alive.  A store may have a million partitions, and any number
of topics: so a limited number of topics have their own metrics, and summing them takes a limited
share of the time.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.names import escape
from dafka_core.nodes.sockets import INVALID_BEACON, REFUSAL_REASONS, MeshTraffic
from dafka_core.nodes.store_loop import OTHER, Disk
from dafka_core.ops import health
from dafka_core.ops.findings import LIFE, Finding, Severity, problem
from dafka_core.ops.metric_declarations import (
    Metric,
    Sample,
    counter,
    family,
    gauge,
    histogram,
)
from dafka_core.ops.store_extension import ExtensionNode
from dafka_core.protocol.beacons import KINDS, endpoint_of
from dafka_core.storage import Log
from dafka_core.storage.environment import Space
from dafka_core.system.distribution import this_version

if TYPE_CHECKING:
    from dafka_core.nodes.node import Node


STREAMS: Final = ("gets", "puts", "waits", "watches", "commits")
"""Requests of Flight, each kind with its own limit."""

_ALWAYS_REPORTED: Final = dict.fromkeys(("Ack", "EpochAck", "Fetch", "FetchBatch"), 0)
"""Messages that are reported with 0, too, so that the first one is an increase for Prometheus."""

REFUSALS: Final = ("FencedError", "OffsetConflictError", "TransactionExistsError")
"""Errors of refused requests, reported with 0, too."""


@dataclass
class Reading:
    """What the metrics of a node are read from at one scrape: the node's attributes, and more."""

    _node: Any  # None if it was garbage-collected
    findings: list[Finding]
    info: dict[tuple[str, str], int]  # its version and endpoint, as labels of 1
    # of a store: the totals of its topics, and those with their own metrics
    _topics: tuple[TopicTotals, ShownTopics] | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    @property
    def peer_counts(self) -> dict[str, int]:
        """Connected nodes by kind."""
        letters = self.mesh.limits.letters()
        counts = {kind: letters[letter] for letter, kind in KINDS.items()}
        return counts | {OTHER: max(len(self.mesh.peers.table) - sum(counts.values()), 0)}

    @property
    def refused_frames(self) -> dict[str, int]:
        """Refused frames by reason."""
        if self.kind == "tower":
            return {INVALID_BEACON: self.relay.invalid_count}
        return {reason: self.mesh.traffic.refused[reason] for reason in REFUSAL_REASONS}

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
        with contextlib.suppress(OSError):
            return Disk.of(self.log.directory)
        return None

    @cached_property
    def totals(self) -> dict[str, Total]:
        """The totals of a store's topics."""
        assert self._topics is not None
        totals, shown = self._topics
        # A new topic that the sum lacks would move from ``other``, whose counters would fall.
        new = {topic: Total() for topic, _ in self.appended if topic != OTHER}
        found = totals.current()
        shown.choose(new | found)
        return found

    @cached_property
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
    gauge("node_healthy", lambda n: health.is_alive(n.findings), "1 if `/healthz` is good, else 0"),
    gauge("node_ready", lambda n: health.is_ready(n.findings), "1 if `/readyz` is good, else 0"),
    gauge(
        "node_warnings",
        lambda n: sum(each.severity is Severity.WARNING for each in n.findings),
        "warnings in `/readyz`",
    ),
)

_IN_MESH: Final = (
    gauge(
        "mesh_peers",
        "peer_counts",
        "peers by kind; `other`: C nodes, and those not connected yet",
        "peer",
    ),
    counter(
        "mesh_connections_renewed",
        "mesh.peers.renewal_count",
        "connections renewed after an invalid or too large frame",
    ),
    *family(
        counter,
        "records received from peers, with duplicates",
        mesh_received_records="mesh.traffic.records_received",
        mesh_received_bytes="mesh.traffic.bytes_received",
    ),
    *family(
        counter,
        "records sent: `live` to all that follow the topic, counted once; `direct` on request",
        "how",
        mesh_sent_records=lambda n: _sent(n.mesh.traffic, "records"),
        mesh_sent_bytes=lambda n: _sent(n.mesh.traffic, "bytes"),
    ),
    *family(
        counter,
        "other messages, by name (docs/wire.md)",
        "message",
        mesh_received_messages=lambda n: _ALWAYS_REPORTED | n.mesh.traffic.received,
        mesh_sent_messages=lambda n: _ALWAYS_REPORTED | n.mesh.traffic.sent,
    ),
    gauge(
        "mesh_tower_silent_seconds",
        "silent_towers",
        "time since a tower's last message, due each second",
        "tower",
    ),
    gauge(
        "mesh_loop_overdue_seconds",
        lambda n: health.overdue_s(n.mesh),
        "delay of the node's loop: overload, or it hangs",
    ),
)

_WITH_TOWERS: Final = (
    counter(
        "mesh_refused_frames",
        "refused_frames",
        "dropped frames: invalid `message`, `records`, `beacon`; `forbidden` by the sender's key",
        "reason",
    ),
)

_OF_STORES: Final = (
    histogram("store_append", "disk_watch.appends.counted", "time to write and sync records"),
    histogram("store_sync", "log.syncs.counted", "time of each sync, also of merges"),
    counter("store_appended_records", "disk_watch.records", "records appended or staged"),
    counter("store_appended_bytes", "disk_watch.bytes", "records appended or staged"),
    counter("store_slow_appends", "disk_watch.slow_count", "writes of more than 1 s"),
    counter(
        "store_refused_entries",
        lambda n: dict.fromkeys(REFUSALS, 0) | n.disk_watch.refused,
        "writers' refused requests: `FencedError` (a newer attempt writes), "
        "`OffsetConflictError`, `TransactionExistsError`",
        "error",
    ),
    counter(
        "store_fences",
        "disk_watch.fences",
        "partitions with records set aside ('dafka store aside')",
    ),
    counter("store_promises", "disk_watch.promises", "partitions that producers took over"),
    counter(
        "store_too_large_records",
        "role.too_large_count",
        "records not stored: above `max_record_bytes`",
    ),
    counter("store_damaged_reads", "loop.damaged_count", "failed requests for damaged records"),
    gauge(
        "store_damaged_partitions",
        lambda n: len(n.log.healer.damaged),
        "partitions with damaged records",
    ),
    counter(
        "store_healed_records",
        "heal_thread.healed_count",
        "damaged records replaced by another store's",
    ),
    gauge("store_pending_bytes", "role.pending_bytes", "records of the mesh, waiting for the disk"),
    gauge(
        "store_puts_bytes",
        "append_queue.size_bytes",
        "records of Flight and Kafka, waiting for the disk",
    ),
    gauge("store_waiting_requests", lambda n: len(n.role.requests), "queued requests of the mesh"),
    counter(
        "store_refused_requests",
        "role.requests.refused_count",
        "requests refused: the queue was full",
    ),
    counter(
        "store_limit_refusals",
        "role.limits.refused",
        "records refused by a limit (docs/security.md#limits)",
        "limit",
    ),
    gauge("store_small_blocks", "log.small_blocks", "small blocks, to be merged"),
    counter("store_merges", "merge_thread.merged_count", "merges of small blocks"),
    counter("store_merge_seconds", "merge_thread.merged_s", "merges of small blocks"),
    counter("store_failed_merges", "merge_thread.failed_count", "merges of small blocks"),
    counter("store_links", "log.linker.made", "links created or extended"),
    gauge(
        "store_changed_partitions", lambda n: len(n.log.linker.wrong), "partitions changed on disk"
    ),
    counter("store_compressed_blocks", "compressor.blocks", "compressed cold blocks"),
    *family(
        counter,
        "size of these blocks, before and after",
        store_compressed_from_bytes="compressor.before_bytes",
        store_compressed_to_bytes="compressor.after_bytes",
    ),
    gauge("retention_rules", lambda n: len(n.retention.rules), "retention rules"),
    counter("retention_passes", "retention.counts.passes", "runs of retention"),
    *family(
        counter,
        "blocks and records deleted by retention",
        retention_trims="retention.counts.trims",
        retention_records="retention.counts.records",
    ),
    counter("archive_files", "archiver.files", "additions to the archive"),
    counter("archive_records", "archiver.records", "additions to the archive"),
    counter("archive_bytes", "archiver.size_bytes", "additions to the archive"),
    gauge(
        "archive_failing_partitions",
        lambda n: n.archiver and len(n.archiver.failed),
        "partitions that cannot be archived",
    ),
    gauge("store_leases", "space.leases", "readers on this machine with a lease"),
    gauge("store_oldest_lease_seconds", "space.oldest_lease_s", "age of the oldest lease"),
    gauge("store_file_bytes", "space.file_bytes", "the log's file, and free space in it"),
    gauge("store_file_free_bytes", "space.free_bytes", "the log's file, and free space in it"),
    gauge("store_disk_size_bytes", "disk.size_bytes", "the file system, and free space in it"),
    gauge("store_disk_free_bytes", "disk.free_bytes", "the file system, and free space in it"),
    gauge(
        "store_partitions",
        lambda n: sum(each.partitions for each in n.totals.values()),
        "partitions in the store",
    ),
    gauge("store_topics", lambda n: len(n.totals), "topics in the store"),
    gauge(
        "store_known_stores", lambda n: len(n.known.names), "other stores, met and not forgotten"
    ),
    gauge(
        "store_missing_stores",
        lambda n: len(n.known.names) - len(n.known.here),
        "known stores that do not respond",
    ),
    *family(
        gauge,
        "the topic in this store",
        "topic",
        topic_partitions=lambda n: n.by_topic((t, of.partitions) for t, of in n.totals.items()),
        topic_records=lambda n: n.by_topic((t, of.records) for t, of in n.totals.items()),
    ),
    *family(
        counter,
        "records appended or staged",
        "topic",
        topic_appended_records=lambda n: n.by_topic((topic, of[0]) for topic, of in n.appended),
        topic_appended_bytes=lambda n: n.by_topic((topic, of[1]) for topic, of in n.appended),
    ),
    gauge(
        "flight_streams",
        lambda n: n.of_streams(lambda each: each.count - each.free),
        "requests in progress: `gets`, `puts`, `waits`, `watches`, `commits`",
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
        "requests timed out in the queue",
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
        "tower_nodes", lambda n: n.relay.discovered.count(), "nodes with a beacon in the last 10 s"
    ),
    counter("tower_beacons", "relay.beacon_count", "forwarded beacons"),
)

_OF_PRODUCERS: Final = (
    gauge(
        "producer_next_offset",
        lambda n: {escape(n.topic): n.next_offset},
        "offset of the next record",
        "topic",
    ),
    gauge(
        "producer_acknowledged_offset",
        lambda n: {escape(n.topic): n.acknowledged},
        "offset before which all records are acknowledged",
        "topic",
    ),
    gauge(
        "producer_unacknowledged_bytes",
        lambda n: {escape(n.topic): n.unacked_bytes},
        "contents of unacknowledged records",
        "topic",
    ),
    gauge(
        "producer_fenced",
        lambda n: {escape(n.topic): n.role.fenced_by is not None},
        "1 if another producer took its partition over",
        "topic",
    ),
)

_OF_CONSUMERS: Final = (
    *family(
        gauge,
        "records that wait for the application",
        consumer_queued_records=lambda n: n.queue.size[0],
        consumer_queued_bytes=lambda n: n.queue.size[1],
    ),
    *family(
        counter,
        "records received and put in order",
        consumer_received_records=lambda n: n.queue.added[0],
        consumer_received_bytes=lambda n: n.queue.added[1],
    ),
    counter(
        "consumer_skipped_records",
        lambda n: sum(n.skipped.values()),
        "lost records that were skipped",
    ),
    gauge("consumer_topics", lambda n: len(n.subscription), "followed topics"),
)

EVERY: Final = ("every node",)  # nodes of all kinds, also those of extensions

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
    """Return the metrics of nodes of a kind, without those that an extension declares."""
    return [
        metric
        for kinds, metrics in TABLE.items()
        if kinds is EVERY or kind in kinds
        for metric in metrics
    ]


# -- totals of topics ------------------------------------------------------------------------------

SUM_SHARE: Final = 0.01
"""Maximum share of the time for summing: the next sum is due after 100 times the last duration."""

SUM_PARTITIONS: Final = 10_000  # partitions read per step


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
            self._due = now + took_s / SUM_SHARE
        return self._totals

    def _summed(self) -> dict[str, Total]:
        totals: dict[str, Total] = {}
        found = self._log.partitions_after(None, None, SUM_PARTITIONS)
        while found:
            for each in found:
                if each.end:
                    partitions, records = totals.get(each.topic, Total())
                    records += each.end - each.earliest
                    totals[each.topic] = Total(partitions + 1, records)
            found = self._log.partitions_after(None, found[-1].tp, SUM_PARTITIONS)
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

    def summed(self, counts: Iterable[tuple[str, int]]) -> dict[str, int]:
        """Sum numbers of topics by label."""
        sums = dict.fromkeys(self._shown.values(), 0)
        for topic, count in counts:
            label = self.label(topic)
            sums[label] = sums.get(label, 0) + count
        return sums


# -- watched nodes ---------------------------------------------------------------------------------


class WatchedNode:
    """The metrics and findings of a node.

    Args:
        topics: maximum number of a store's topics with their own metrics.

    Raises:
        ConfigError: the node's kind has no metrics.
    """

    def __init__(self, node: Node, topics: int) -> None:
        self.kind = node.kind
        self.metrics: Sequence[Metric] = of_kind(self.kind)
        self._node = weakref.ref(node)
        anyone: Any = node
        if isinstance(node, ExtensionNode):
            self.name = node.name
            self.metrics = [*self.metrics, *node.metrics]
        elif self.kind == "tower":
            self.name = anyone.tower
        elif self.kind in MESH:
            self.name = anyone.address
        else:
            why = "must be a tower, store, producer, consumer or extension of a store"
            raise ConfigError("nodes", self.kind, why)
        endpoint = endpoint_of(anyone.mesh.beacon, "") if self.kind in MESH else self.name
        self._info = {(this_version(), endpoint): 1}
        is_store = self.kind == "store"
        self._topics = (TopicTotals(anyone.log), ShownTopics(topics)) if is_store else None

    def samples(self) -> list[Sample]:
        """Return the current samples; of a closed node only its state."""
        node = self._node()
        reading = Reading(node, self.findings(), self._info, self._topics)
        is_open = node is not None and node.is_open
        found: list[Sample] = []
        with contextlib.suppress(DafkaError):  # it is just ending, as ``findings`` reports
            for metric in self.metrics if is_open else TABLE[EVERY]:
                found += metric.samples(reading)
        return found

    def findings(self) -> list[Finding]:
        """Return the current findings."""
        node = self._node()
        if node is None:
            remedy = "keep a reference to it, or close it"
            return [problem(LIFE, f"the {self.kind} was garbage-collected", remedy)]
        try:
            return [*health.of_node(node)]
        except DafkaError as error:  # it is just ending
            return [problem(LIFE, str(error), "restart it")]


class WatchedNodes:
    """The watched nodes of a process.

    Args:
        topics: maximum number of a store's topics with their own metrics.
    """

    def __init__(self, topics: int) -> None:
        self._topics = topics
        self._lock = threading.Lock()
        self._nodes: list[WatchedNode] = []
        self._expected = ""

    def add(self, *nodes: Node) -> None:
        """Watch further nodes."""
        made = [WatchedNode(each, self._topics) for each in nodes]
        with self._lock:
            self._nodes += made
            self._expected = ""

    def expect(self, what: str) -> None:
        """Report the process as running but not ready, until ``add``."""
        self._expected = what

    @property
    def nodes(self) -> list[WatchedNode]:
        """The nodes that were added."""
        with self._lock:
            return [*self._nodes]

    def findings(self) -> list[tuple[str, str, Finding]]:
        """Return the findings of all nodes, with the node's kind and name."""
        found = [(each.kind, each.name, one) for each in self.nodes for one in each.findings()]
        if self._expected or not found:
            what = self._expected or "node"
            remedy = "wait until it has opened its log and found a tower; its messages say more"
            one = problem("start", f"no {what} serves yet", remedy)
            found.append((what, "", one))
        return found

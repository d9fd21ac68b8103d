"""Declarations of all metrics: name, kind, unit, labels and meaning.

The endpoint and docs/metrics.md are generated from these declarations. Names are
``dafka_NOUN_UNIT``, and counters end with ``_total``, by Prometheus' rules
(https://prometheus.io/docs/practices/naming/).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from dafka_core.model.histograms import Counted

Kind = Literal["counter", "gauge", "histogram"]

MESH_NODES: Final = ("store", "producer", "consumer")
NODE_LABELS: Final = ("kind", "node")
"""Labels of every metric, as a process may run several nodes: the node's kind, and its address
(of a tower: host and ports)."""


class Metric(NamedTuple):
    """The declaration of a metric.

    Attributes:
        of: the kinds of nodes that have it, or ``EVERY``.
        labels: in addition to ``NODE_LABELS``.
    """

    name: str
    kind: Kind
    unit: str
    of: tuple[str, ...]
    labels: tuple[str, ...]
    meaning: str

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The labels of its samples."""
        return (*NODE_LABELS, *self.labels)


EVERY: Final = ("every node",)
"""In ``Metric.of``: nodes of all kinds, also those of extensions."""


def counter(name: str, unit: str, of: tuple[str, ...], meaning: str, *labels: str) -> Metric:
    """Declare a number that only grows; its full name is ``dafka_NAME_total``."""
    return Metric(f"dafka_{name}_total", "counter", unit, of, labels, meaning)


def gauge(name: str, unit: str, of: tuple[str, ...], meaning: str, *labels: str) -> Metric:
    """Declare a number that grows and falls; its full name is ``dafka_NAME``."""
    return Metric(f"dafka_{name}", "gauge", unit, of, labels, meaning)


def histogram(name: str, of: tuple[str, ...], meaning: str) -> Metric:
    """Declare counted durations; its full name is ``dafka_NAME_seconds``."""
    return Metric(f"dafka_{name}_seconds", "histogram", "seconds", of, (), meaning)


# -- every node ----------------------------------------------------------------------------------

INFO: Final = gauge("node_info", "", EVERY, "1, with facts as labels", "version", "endpoint")
HEALTHY: Final = gauge("node_healthy", "", EVERY, "1 if the node runs, as in `/healthz`; else 0")
READY: Final = gauge("node_ready", "", EVERY, "1 if the node is ready, as in `/readyz`; else 0")
WARNINGS: Final = gauge(
    "node_warnings", "findings", EVERY, "warnings about the node, which `/readyz` lists"
)

# -- in the mesh ---------------------------------------------------------------------------------

PEERS: Final = gauge(
    "mesh_peers",
    "nodes",
    MESH_NODES,
    "connected nodes by kind: `store`, `producer`, `consumer`, `reader`, or `other` for C nodes "
    "and nodes that have not connected yet",
    "peer",
)
CONNECTIONS_RENEWED: Final = counter(
    "mesh_connections_renewed",
    "connections",
    MESH_NODES,
    "connections renewed after they were closed for a frame that was too large or invalid",
)
RECORDS_RECEIVED: Final = counter(
    "mesh_received_records", "records", MESH_NODES, "records received from peers, with duplicates"
)
BYTES_RECEIVED: Final = counter(
    "mesh_received_bytes", "bytes", MESH_NODES, "contents of these records, without frame headers"
)
RECORDS_SENT: Final = counter(
    "mesh_sent_records",
    "records",
    MESH_NODES,
    "records sent: `live` to all nodes that follow the topic, counted once; `direct` to a node "
    "that has missed them, or that reads from the beginning",
    "how",
)
BYTES_SENT: Final = counter(
    "mesh_sent_bytes", "bytes", MESH_NODES, "contents of these records", "how"
)
MESSAGES_RECEIVED: Final = counter(
    "mesh_received_messages",
    "messages",
    MESH_NODES,
    "messages received, except those with records, by name (docs/wire.md): `EpochAck` and `Ack` "
    "are acknowledgements, `Fetch` and `FetchBatch` request records again",
    "message",
)
MESSAGES_SENT: Final = counter(
    "mesh_sent_messages",
    "messages",
    MESH_NODES,
    "messages sent, except those with records, by name",
    "message",
)
FRAMES_REFUSED: Final = counter(
    "mesh_refused_frames",
    "messages",
    (*MESH_NODES, "tower"),
    "invalid frames received and dropped, by what they should be (`message`, `records`, or "
    "`beacon`); or `forbidden` by the sender's key",
    "reason",
)
TOWER_SILENT: Final = gauge(
    "mesh_tower_silent_seconds",
    "seconds",
    MESH_NODES,
    "time since the last message of a tower, which returns at least the node's own beacon each "
    "second",
    "tower",
)
LOOP_OVERDUE: Final = gauge(
    "mesh_loop_overdue_seconds",
    "seconds",
    MESH_NODES,
    "time by which the node's loop is overdue: it hangs, or the machine is overloaded",
)

# -- stores --------------------------------------------------------------------------------------

STORE: Final = ("store",)

APPENDS: Final = histogram(
    "store_append",
    STORE,
    "time to write and sync a group of records, for which producers' acknowledgements wait",
)
SYNCS: Final = histogram("store_sync", STORE, "time of syncs of the disk, also of merges")
APPENDED_RECORDS: Final = counter(
    "store_appended_records", "records", STORE, "records appended or staged on disk"
)
APPENDED_BYTES: Final = counter("store_appended_bytes", "bytes", STORE, "contents of these records")
SLOW_APPENDS: Final = counter(
    "store_slow_appends", "groups", STORE, "writes of groups of records that took more than 1 s"
)
ENTRIES_REFUSED: Final = counter(
    "store_refused_entries",
    "entries",
    STORE,
    "refused requests of writers by error: `FencedError` (a newer attempt writes), "
    "`OffsetConflictError`, `TransactionExistsError`",
    "error",
)
FENCES: Final = counter(
    "store_fences",
    "partitions",
    STORE,
    "partitions whose newest records were set aside, as a newer producer had continued without "
    "them ('dafka store aside')",
)
PROMISES: Final = counter(
    "store_promises",
    "partitions",
    STORE,
    "takeovers of partitions by a producer, which fences the previous one",
)
TOO_LARGE: Final = counter(
    "store_too_large_records", "records", STORE, "records not stored: above `max_record_bytes`"
)
DAMAGED: Final = counter(
    "store_damaged_reads", "requests", STORE, "requests that failed as the log is damaged"
)
DAMAGED_PARTITIONS: Final = gauge(
    "store_damaged_partitions",
    "partitions",
    STORE,
    "partitions with damaged records that no other store has replaced yet",
)
HEALED: Final = counter(
    "store_healed_records", "records", STORE, "damaged records replaced by another store's"
)
PENDING: Final = gauge(
    "store_pending_bytes", "bytes", STORE, "records from the mesh that wait for the disk"
)
PUTS: Final = gauge(
    "store_puts_bytes", "bytes", STORE, "records from Flight or Kafka that wait for the disk"
)
REQUESTS: Final = gauge("store_waiting_requests", "requests", STORE, "queued requests of the mesh")
REQUESTS_REFUSED: Final = counter(
    "store_refused_requests", "requests", STORE, "requests refused as the queue was full"
)
LIMITS_REACHED: Final = counter(
    "store_limit_refusals",
    "refusals",
    STORE,
    "refusals of records by a limit, which is an option (docs/security.md#limits)",
    "limit",
)
SMALL_BLOCKS: Final = gauge(
    "store_small_blocks", "blocks", STORE, "small blocks that wait to be merged"
)
MERGES: Final = counter("store_merges", "merges", STORE, "merges of small blocks into one")
MERGE_SECONDS: Final = counter(
    "store_merge_seconds", "seconds", STORE, "time of merges, which run beside appends"
)
MERGES_FAILED: Final = counter(
    "store_failed_merges", "merges", STORE, "merges that failed with an error of the disk"
)
LINKED: Final = counter("store_links", "links", STORE, "links created or extended")
CHANGED: Final = gauge(
    "store_changed_partitions",
    "partitions",
    STORE,
    "partitions found to be changed on disk when their links were extended",
)
COMPRESSED: Final = counter("store_compressed_blocks", "blocks", STORE, "compressed cold blocks")
COMPRESSED_FROM: Final = counter(
    "store_compressed_from_bytes", "bytes", STORE, "size of these blocks before"
)
COMPRESSED_TO: Final = counter(
    "store_compressed_to_bytes", "bytes", STORE, "size of these blocks afterwards"
)
RULES: Final = gauge(
    "retention_rules", "rules", STORE, "retention rules; without any nothing is deleted"
)
PASSES: Final = counter("retention_passes", "passes", STORE, "runs of retention")
TRIMS: Final = counter("retention_trims", "trims", STORE, "deletions of blocks by retention")
GIVEN_UP: Final = counter("retention_records", "records", STORE, "records deleted by retention")
ARCHIVED_FILES: Final = counter("archive_files", "files", STORE, "files added to the archive")
ARCHIVED: Final = counter("archive_records", "records", STORE, "records in these files")
ARCHIVED_BYTES: Final = counter("archive_bytes", "bytes", STORE, "size of these files")
ARCHIVE_FAILING: Final = gauge(
    "archive_failing_partitions",
    "partitions",
    STORE,
    "partitions that cannot be archived, and so are not deleted; the log reports why",
)
LEASES: Final = gauge(
    "store_leases", "leases", STORE, "readers on this machine that lease blocks of the file"
)
OLDEST_LEASE: Final = gauge(
    "store_oldest_lease_seconds", "seconds", STORE, "age of the oldest lease"
)
FILE_BYTES: Final = gauge(
    "store_file_bytes", "bytes", STORE, "size of the log's file, which does not shrink"
)
FILE_FREE: Final = gauge(
    "store_file_free_bytes", "bytes", STORE, "free space in the file, used for new records"
)
DISK_SIZE: Final = gauge("store_disk_size_bytes", "bytes", STORE, "size of the file system")
DISK_FREE: Final = gauge("store_disk_free_bytes", "bytes", STORE, "free space in the file system")
PARTITIONS: Final = gauge("store_partitions", "partitions", STORE, "partitions in the store")
TOPICS: Final = gauge("store_topics", "topics", STORE, "topics in the store")
KNOWN_STORES: Final = gauge(
    "store_known_stores", "stores", STORE, "other stores that it has met and not forgotten"
)
MISSING_STORES: Final = gauge(
    "store_missing_stores",
    "stores",
    STORE,
    "known stores that do not respond, and may have records that others lack",
)

# -- topics, as a store has them -----------------------------------------------------------------

TOPIC_PARTITIONS: Final = gauge(
    "topic_partitions", "partitions", STORE, "the topic's partitions at this store", "topic"
)
TOPIC_RECORDS: Final = gauge(
    "topic_records", "records", STORE, "the topic's records at this store", "topic"
)
TOPIC_APPENDED_RECORDS: Final = counter(
    "topic_appended_records",
    "records",
    STORE,
    "records appended or staged since the store started",
    "topic",
)
TOPIC_APPENDED_BYTES: Final = counter(
    "topic_appended_bytes", "bytes", STORE, "contents of these records", "topic"
)

# -- Arrow Flight --------------------------------------------------------------------------------

STREAMS: Final = gauge(
    "flight_streams",
    "streams",
    STORE,
    "requests served over Flight now: `gets`, `puts`, `waits`, `watches`, `commits`",
    "what",
)
STREAMS_WAITING: Final = gauge(
    "flight_waiting_streams", "streams", STORE, "queued requests", "what"
)
STREAMS_REFUSED: Final = counter(
    "flight_refused_streams", "streams", STORE, "requests that timed out in the queue", "what"
)
FLIGHT_FORBIDDEN: Final = counter(
    "flight_forbidden_requests",
    "requests",
    STORE,
    "requests without permission, or at the socket without an allowed key",
)
FLIGHT_SENT: Final = counter("flight_sent_bytes", "bytes", STORE, "columns sent to readers")

# -- towers --------------------------------------------------------------------------------------

TOWER: Final = ("tower",)

TOWER_NODES: Final = gauge(
    "tower_nodes", "nodes", TOWER, "nodes that sent a beacon in the last 10 s"
)
BEACONS: Final = counter("tower_beacons", "beacons", TOWER, "forwarded beacons")

# -- producers and consumers ---------------------------------------------------------------------

PRODUCER: Final = ("producer",)
CONSUMER: Final = ("consumer",)

PUBLISHED: Final = gauge(
    "producer_next_offset",
    "records",
    PRODUCER,
    "the offset of its partition's next record",
    "topic",
)
ACKNOWLEDGED: Final = gauge(
    "producer_acknowledged_offset",
    "records",
    PRODUCER,
    "the offset before which all records are acknowledged",
    "topic",
)
UNACKED_BYTES: Final = gauge(
    "producer_unacknowledged_bytes",
    "bytes",
    PRODUCER,
    "contents of records that are not acknowledged",
    "topic",
)
FENCED: Final = gauge(
    "producer_fenced", "", PRODUCER, "1 when another producer has taken its partition over", "topic"
)
QUEUED_RECORDS: Final = gauge(
    "consumer_queued_records", "records", CONSUMER, "records that wait for the application"
)
QUEUED_BYTES: Final = gauge("consumer_queued_bytes", "bytes", CONSUMER, "contents of these records")
CONSUMED: Final = counter(
    "consumer_received_records", "records", CONSUMER, "records received and put in order"
)
CONSUMED_BYTES: Final = counter(
    "consumer_received_bytes", "bytes", CONSUMER, "contents of these records"
)
SKIPPED: Final = counter(
    "consumer_skipped_records", "records", CONSUMER, "lost records that were skipped (`skip`)"
)
SUBSCRIPTIONS: Final = gauge("consumer_topics", "topics", CONSUMER, "followed topics")

TABLE: Final = tuple(each for each in [*globals().values()] if isinstance(each, Metric))
"""All metrics, in the order in which they are served and documented."""


class Sample(NamedTuple):
    """A value of a metric; ``labels`` are the values of ``Metric.labels`` in their order."""

    metric: Metric
    value: float | Counted
    labels: tuple[str, ...] = ()

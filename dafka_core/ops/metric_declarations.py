"""Declarations of all metrics: name, kind, unit, labels and meaning.

Each is declared here once; what is served and docs/metrics.md are made from these declarations.
Names are ``dafka_NOUN_UNIT``, and counters end with ``_total``, as Prometheus' own rules have it
(https://prometheus.io/docs/practices/naming/).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from dafka_core.model.histograms import Counted

Kind = Literal["counter", "gauge", "histogram"]

MESH_NODES: Final = ("store", "producer", "consumer")
NODE_LABELS: Final = ("kind", "node")
"""Labels of every number: the node's kind, and its address (a tower's: where it is reached).
Several nodes may run in one process."""


class Metric(NamedTuple):
    """One declaration.

    Attributes:
        of: the kinds of nodes that have it, or ``EVERY``.
        labels: beyond ``NODE_LABELS``.
    """

    name: str
    kind: Kind
    unit: str
    of: tuple[str, ...]
    labels: tuple[str, ...]
    meaning: str

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Those that a sample of it has."""
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

INFO: Final = gauge("node_info", "", EVERY, "1; its labels say what runs", "version", "endpoint")
HEALTHY: Final = gauge(
    "node_healthy", "", EVERY, "1 as long as the node runs, as `/healthz` has it; else 0"
)
READY: Final = gauge(
    "node_ready", "", EVERY, "1 when it does what it is there for, as `/readyz` has it; else 0"
)
WARNINGS: Final = gauge(
    "node_warnings", "findings", EVERY, "what is not as it should be; `/readyz` names it"
)

# -- in the mesh ---------------------------------------------------------------------------------

PEERS: Final = gauge(
    "mesh_peers",
    "nodes",
    MESH_NODES,
    "nodes that it is connected to, by their kind: `store`, `producer`, `consumer`, `reader`, or "
    "`other`, which are C nodes and those that have not connected yet",
    "peer",
)
PEERS_REFUSED: Final = gauge(
    "mesh_peers_refused",
    "nodes",
    MESH_NODES,
    "nodes for which there is no room: the process would have too many open files",
)
PEERS_LEFT_ALONE: Final = counter(
    "mesh_peers_left_alone",
    "pauses",
    MESH_NODES,
    "how often a peer had sent more than `max_peer_rate_bytes`, and nothing of it was received for "
    "a while",
)
CONNECTIONS_RENEWED: Final = counter(
    "mesh_connections_renewed",
    "connections",
    MESH_NODES,
    "how often a connection had ended for a frame that was too large or none of ZeroMQ's, and was "
    "made anew",
)
RECORDS_RECEIVED: Final = counter(
    "mesh_received_records", "records", MESH_NODES, "records that came from peers, doubles included"
)
BYTES_RECEIVED: Final = counter(
    "mesh_received_bytes", "bytes", MESH_NODES, "their contents, without frames' headers"
)
RECORDS_SENT: Final = counter(
    "mesh_sent_records",
    "records",
    MESH_NODES,
    "records sent: `live` to all who follow the topic, counted once however many they are; "
    "`direct` again to one that had missed them (resent), or that reads from the beginning",
    "how",
)
BYTES_SENT: Final = counter("mesh_sent_bytes", "bytes", MESH_NODES, "their contents", "how")
MESSAGES_RECEIVED: Final = counter(
    "mesh_received_messages",
    "messages",
    MESH_NODES,
    "messages without records that came, by docs/wire.md's names: `EpochAck` and `Ack` are "
    "acknowledgements, `Fetch` and `FetchBatch` ask for records again",
    "message",
)
MESSAGES_SENT: Final = counter(
    "mesh_sent_messages", "messages", MESH_NODES, "the same of those it sent", "message"
)
FRAMES_REFUSED: Final = counter(
    "mesh_refused_frames",
    "messages",
    (*MESH_NODES, "tower"),
    "what came and was dropped: no `message` of ours, no `records`, no `beacon`, what tells of no "
    "`tower`, or is `forbidden` to its sender by its key",
    "reason",
)
TOWER_SILENT: Final = gauge(
    "mesh_tower_silent_seconds",
    "seconds",
    MESH_NODES,
    "how long ago something came from a tower; at least the node's own beacon comes back each "
    "second while the tower is there",
    "tower",
)
LOOP_OVERDUE: Final = gauge(
    "mesh_loop_overdue_seconds",
    "seconds",
    MESH_NODES,
    "for how long the node has not done what was due: it hangs, or the machine is overloaded",
)

# -- stores --------------------------------------------------------------------------------------

STORE: Final = ("store",)

APPENDS: Final = histogram(
    "store_append",
    STORE,
    "how long what came in meanwhile took to the disk, synced: each group of records once. "
    "Producers' acknowledgements wait for it",
)
SYNCS: Final = histogram(
    "store_sync", STORE, "the part of it, and of merges, in which the disk synced"
)
APPENDED_RECORDS: Final = counter(
    "store_appended_records", "records", STORE, "records that are on disk: appended or staged"
)
APPENDED_BYTES: Final = counter("store_appended_bytes", "bytes", STORE, "their contents")
SLOW_APPENDS: Final = counter(
    "store_slow_appends", "groups", STORE, "groups of records that took more than 1 s to the disk"
)
ENTRIES_REFUSED: Final = counter(
    "store_refused_entries",
    "entries",
    STORE,
    "what writers asked for and was not done, by error: `FencedError` (a newer attempt writes), "
    "`OffsetConflictError`, `TransactionExistsError`",
    "error",
)
FENCES: Final = counter(
    "store_fences",
    "partitions",
    STORE,
    "how often this store's newest records of a partition were set aside: a newer producer had "
    "gone on without them ('dafka store aside')",
)
PROMISES: Final = counter(
    "store_promises",
    "partitions",
    STORE,
    "how often a producer took a partition over: the one before it is fenced here from then on",
)
TOO_LARGE: Final = counter(
    "store_too_large_records", "records", STORE, "records that it lacks: above `max_record_bytes`"
)
DAMAGED: Final = counter(
    "store_damaged_reads", "requests", STORE, "requests not answered: the log is damaged there"
)
PENDING: Final = gauge(
    "store_pending_bytes", "bytes", STORE, "records from the mesh that wait for the disk"
)
PUTS: Final = gauge(
    "store_puts_bytes", "bytes", STORE, "records of writers over Flight or Kafka on their way"
)
REQUESTS: Final = gauge(
    "store_waiting_requests", "requests", STORE, "requests of the mesh that wait for their turn"
)
REQUESTS_REFUSED: Final = counter(
    "store_refused_requests", "requests", STORE, "requests for which there was no room"
)
LIMITS_REACHED: Final = counter(
    "store_limit_refusals",
    "refusals",
    STORE,
    "how often records were not taken, by the option that is their limit (docs/security.md#limits)",
    "limit",
)
SMALL_BLOCKS: Final = gauge(
    "store_small_blocks", "blocks", STORE, "small blocks that merging has not looked at yet"
)
MERGES: Final = counter("store_merges", "merges", STORE, "how often small blocks became one")
MERGE_SECONDS: Final = counter(
    "store_merge_seconds", "seconds", STORE, "how long that took, beside the appends"
)
MERGES_FAILED: Final = counter(
    "store_failed_merges", "merges", STORE, "how often the disk failed at it"
)
LINKED: Final = counter(
    "store_links", "links", STORE, "how often a link was made, or made anew of more records"
)
CHANGED: Final = gauge(
    "store_changed_partitions", "partitions", STORE, "those found changed at rest as links grew"
)
COMPRESSED: Final = counter(
    "store_compressed_blocks", "blocks", STORE, "cold blocks that were compressed"
)
COMPRESSED_FROM: Final = counter(
    "store_compressed_from_bytes", "bytes", STORE, "what they took before"
)
COMPRESSED_TO: Final = counter("store_compressed_to_bytes", "bytes", STORE, "what they take since")
RULES: Final = gauge(
    "retention_rules", "rules", STORE, "what it goes by; without any nothing is given up"
)
PASSES: Final = counter("retention_passes", "passes", STORE, "how often it has looked")
TRIMS: Final = counter("retention_trims", "trims", STORE, "how often some blocks went")
GIVEN_UP: Final = counter("retention_records", "records", STORE, "records that it gave up")
ARCHIVED_FILES: Final = counter(
    "archive_files", "files", STORE, "files that it added to its archive, if it has one"
)
ARCHIVED: Final = counter("archive_records", "records", STORE, "records in them")
ARCHIVED_BYTES: Final = counter("archive_bytes", "bytes", STORE, "what they take there")
ARCHIVE_FAILING: Final = gauge(
    "archive_failing_partitions",
    "partitions",
    STORE,
    "cannot be archived, the log says why: nothing of them is given up",
)
LEASES: Final = gauge(
    "store_leases", "leases", STORE, "readers on this machine that hold blocks of the file"
)
OLDEST_LEASE: Final = gauge("store_oldest_lease_seconds", "seconds", STORE, "the oldest one's age")
FILE_BYTES: Final = gauge("store_file_bytes", "bytes", STORE, "the log's file; it does not shrink")
FILE_FREE: Final = gauge(
    "store_file_free_bytes", "bytes", STORE, "of it: holds nothing, later records go there"
)
DISK_SIZE: Final = gauge("store_disk_size_bytes", "bytes", STORE, "the file system below it")
DISK_FREE: Final = gauge("store_disk_free_bytes", "bytes", STORE, "what is free there")
PARTITIONS: Final = gauge("store_partitions", "partitions", STORE, "partitions that it has")
TOPICS: Final = gauge("store_topics", "topics", STORE, "topics that they are of")
KNOWN_STORES: Final = gauge(
    "store_known_stores", "stores", STORE, "other stores that it has ever met and not forgotten"
)
MISSING_STORES: Final = gauge(
    "store_missing_stores",
    "stores",
    STORE,
    "of these: are not there, and may have what others lack",
)

# -- topics, as a store has them -----------------------------------------------------------------

TOPIC_PARTITIONS: Final = gauge(
    "topic_partitions", "partitions", STORE, "the topic's partitions at this store", "topic"
)
TOPIC_RECORDS: Final = gauge(
    "topic_records", "records", STORE, "records that it has of them", "topic"
)
TOPIC_APPENDED_RECORDS: Final = counter(
    "topic_appended_records",
    "records",
    STORE,
    "records appended or staged since it started",
    "topic",
)
TOPIC_APPENDED_BYTES: Final = counter(
    "topic_appended_bytes", "bytes", STORE, "their contents", "topic"
)

# -- Arrow Flight --------------------------------------------------------------------------------

STREAMS: Final = gauge(
    "flight_streams",
    "streams",
    STORE,
    "what it serves over Flight now: `gets`, `puts`, `waits`, `watches`, `commits`",
    "what",
)
STREAMS_WAITING: Final = gauge(
    "flight_waiting_streams", "streams", STORE, "those that wait for their turn", "what"
)
STREAMS_REFUSED: Final = counter(
    "flight_refused_streams", "streams", STORE, "those whose turn did not come in time", "what"
)
FLIGHT_FORBIDDEN: Final = counter(
    "flight_forbidden_requests",
    "requests",
    STORE,
    "those without a key that is allowed, and those beyond what the key allows",
)
FLIGHT_SENT: Final = counter("flight_sent_bytes", "bytes", STORE, "columns sent to readers")

# -- towers --------------------------------------------------------------------------------------

TOWER: Final = ("tower",)

TOWER_NODES: Final = gauge(
    "tower_nodes", "nodes", TOWER, "nodes whose beacons came within the last 10 s"
)
BEACONS: Final = counter("tower_beacons", "beacons", TOWER, "beacons that it passed on")

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
    "producer_acknowledged_offset", "records", PRODUCER, "before it all is acknowledged", "topic"
)
UNACKED_BYTES: Final = gauge(
    "producer_unacknowledged_bytes", "bytes", PRODUCER, "contents it keeps until then", "topic"
)
FENCED: Final = gauge(
    "producer_fenced", "", PRODUCER, "1 when another producer has taken its partition over", "topic"
)
QUEUED_RECORDS: Final = gauge(
    "consumer_queued_records", "records", CONSUMER, "records that wait for the application"
)
QUEUED_BYTES: Final = gauge("consumer_queued_bytes", "bytes", CONSUMER, "their contents")
CONSUMED: Final = counter(
    "consumer_received_records", "records", CONSUMER, "records put in order for the application"
)
CONSUMED_BYTES: Final = counter("consumer_received_bytes", "bytes", CONSUMER, "their contents")
SKIPPED: Final = counter(
    "consumer_skipped_records", "records", CONSUMER, "records left out, as nobody had them (`skip`)"
)
SUBSCRIPTIONS: Final = gauge("consumer_topics", "topics", CONSUMER, "topics that it follows")

TABLE: Final = tuple(each for each in [*globals().values()] if isinstance(each, Metric))
"""All of them, in the order in which they are served and documented."""


class Sample(NamedTuple):
    """``labels`` are the values of the metric's own ones, in their order."""

    metric: Metric
    value: float | Counted
    labels: tuple[str, ...] = ()

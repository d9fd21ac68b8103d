"""The dashboard's panels: their expressions, and how to read them."""

from __future__ import annotations

from typing import Final, NamedTuple

CHOSEN: Final = 'job=~"$job",node=~"$node"'
"""The label filter of every expression, written ``@`` below."""

INTERVAL: Final = "$__rate_interval"


class Line(NamedTuple):
    """A line of a graph: an expression and its legend."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One panel; ``why`` explains how to read it."""

    title: str
    unit: str
    why: str
    lines: tuple[Line, ...]
    is_number: bool = False


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[{INTERVAL}]))"


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket{{@}}', 'node, le')})"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Is all well?": (
        Panel(
            "Nodes that are not ready",
            "none",
            "Their /readyz has the reason. Nodes that do not answer at all are in the alerts.",
            (Line("count(dafka_node_ready{@} == 0) or vector(0)", "not ready"),),
            is_number=True,
        ),
        Panel(
            "Warnings",
            "none",
            "Slow or nearly full disks, silent towers, peers without room: /readyz names them.",
            (Line("sum(dafka_node_warnings{@})", "warnings"),),
            is_number=True,
        ),
        Panel(
            "Stores",
            "none",
            "Stores that are watched. Each has every record.",
            (Line('count(dafka_node_ready{kind="store",@})', "stores"),),
            is_number=True,
        ),
        Panel(
            "Records a second",
            "cps",
            "Of the store that appends most: every store takes every record.",
            (Line(f"max({_rate('dafka_store_appended_records_total{@}', 'node')})", "records"),),
            is_number=True,
        ),
        Panel(
            "Disk free",
            "bytes",
            "Of the store that has least.",
            (Line("min(dafka_store_disk_free_bytes{@})", "free"),),
            is_number=True,
        ),
        Panel(
            "Stores that are missing",
            "none",
            "Known to a store, but unreachable: they may have records that others lack.",
            (Line("max(dafka_store_missing_stores{@})", "missing"),),
            is_number=True,
        ),
    ),
    "Records": (
        Panel(
            "Appended records a second, by store",
            "cps",
            "If rates differ for long, one store is behind or disconnected.",
            (Line(_rate("dafka_store_appended_records_total{@}", "node"), "{{node}}"),),
        ),
        Panel(
            "Appended bytes a second, by store",
            "Bps",
            "Contents without what the log adds.",
            (Line(_rate("dafka_store_appended_bytes_total{@}", "node"), "{{node}}"),),
        ),
        Panel(
            "The ten busiest topics",
            "cps",
            "Of the store that has most of each. Topics beyond --metrics-topics are 'other'.",
            (
                Line(
                    "topk(10, max by (topic) ("
                    f"{_rate('dafka_topic_appended_records_total{@}', 'topic, node')}))",
                    "{{topic}}",
                ),
            ),
        ),
        Panel(
            "Records held, by topic",
            "short",
            "Falls when retention deletes records.",
            (Line("topk(10, max by (topic) (dafka_topic_records{@}))", "{{topic}}"),),
        ),
        Panel(
            "Deleted by retention",
            "cps",
            "Records a second.",
            (Line(_rate("dafka_retention_records_total{@}", "node"), "{{node}}"),),
        ),
        Panel(
            "Partitions",
            "short",
            "Each producer that is started without an address makes one.",
            (Line("dafka_store_partitions{@}", "{{node}}"),),
        ),
    ),
    "Disk": (
        Panel(
            "From memory to disk, synced",
            "s",
            "Acknowledgements wait for it. Milliseconds are normal; a second is too long.",
            (
                Line(_quantile(0.5, "dafka_store_append_seconds"), "half of them, {{node}}"),
                Line(_quantile(0.99, "dafka_store_append_seconds"), "99 %, {{node}}"),
            ),
        ),
        Panel(
            "The sync alone",
            "s",
            "If it is most of that time, the disk is slow; else the store is busy.",
            (Line(_quantile(0.99, "dafka_store_sync_seconds"), "99 %, {{node}}"),),
        ),
        Panel(
            "Log and disk",
            "bytes",
            "The file never shrinks: its free space is reused.",
            (
                Line("dafka_store_file_bytes{@}", "file, {{node}}"),
                Line("dafka_store_file_free_bytes{@}", "free in it, {{node}}"),
                Line("dafka_store_disk_free_bytes{@}", "free on disk, {{node}}"),
            ),
        ),
        Panel(
            "Waiting for the disk",
            "bytes",
            "Near 32 MiB (mesh) or 64 MiB (Flight and Kafka) a store receives no more for a while.",
            (
                Line("dafka_store_pending_bytes{@}", "from the mesh, {{node}}"),
                Line("dafka_store_puts_bytes{@}", "from writers, {{node}}"),
            ),
        ),
        Panel(
            "Merging",
            "percentunit",
            "The share of the time that goes into making large blocks of small ones.",
            (Line(_rate("dafka_store_merge_seconds_total{@}", "node"), "{{node}}"),),
        ),
        Panel(
            "Fences and refused entries",
            "cps",
            "Two producers of one partition, or repeated tasks. Fences set records aside.",
            (
                Line(_rate("dafka_store_fences_total{@}", "node"), "set aside, {{node}}"),
                Line(_rate("dafka_store_promises_total{@}", "node"), "taken over, {{node}}"),
                Line(
                    _rate("dafka_store_refused_entries_total{@}", "error, node"),
                    "{{error}}, {{node}}",
                ),
            ),
        ),
    ),
    "Mesh": (
        Panel(
            "Peers, by kind",
            "short",
            "Every node is connected to every other one; C nodes are 'other'.",
            (Line("max by (peer) (dafka_mesh_peers{@})", "{{peer}}"),),
        ),
        Panel(
            "Sent again",
            "cps",
            "Records that a node had missed, or reads from the beginning. If always many: "
            "queues are too short (high_water_mark), or a network drops packets.",
            (
                Line(
                    _rate('dafka_mesh_sent_records_total{how="direct",@}', "kind, node"),
                    "{{kind}} {{node}}",
                ),
            ),
        ),
        Panel(
            "Fetches and acknowledgements a second",
            "cps",
            "Nodes fetch missed records; producers wait for acknowledgements.",
            (
                Line(
                    _rate(
                        'dafka_mesh_sent_messages_total{message=~"Fetch|FetchBatch",@}',
                        "kind, node",
                    ),
                    "fetches of {{kind}} {{node}}",
                ),
                Line(
                    _rate(
                        'dafka_mesh_sent_messages_total{message=~"Ack|EpochAck",@}', "kind, node"
                    ),
                    "acks of {{kind}} {{node}}",
                ),
            ),
        ),
        Panel(
            "Refused frames",
            "cps",
            "A peer speaks another protocol at this port, or another version of ours.",
            (Line(_rate("dafka_mesh_refused_frames_total{@}", "reason"), "{{reason}}"),),
        ),
        Panel(
            "Seconds since a tower was heard",
            "s",
            "Above some seconds it is away: new nodes are not introduced.",
            (Line("max by (tower) (dafka_mesh_tower_silent_seconds{@})", "{{tower}}"),),
        ),
        Panel(
            "Requests that wait",
            "short",
            "At stores: for records, and for lists of partitions.",
            (
                Line("dafka_store_waiting_requests{@}", "{{node}}"),
                Line(_rate("dafka_store_refused_requests_total{@}", "node"), "refused, {{node}}"),
            ),
        ),
    ),
    "Readers and writers": (
        Panel(
            "Flight: streams",
            "short",
            "Spark's tasks. Tasks wait when the store serves as many streams as it allows.",
            (
                Line("sum by (what, node) (dafka_flight_streams{@})", "{{what}}, {{node}}"),
                Line(
                    "sum by (what, node) (dafka_flight_waiting_streams{@}) > 0",
                    "{{what}} waiting, {{node}}",
                ),
            ),
        ),
        Panel(
            "Flight: sent",
            "Bps",
            "Readers on the store's machine read its file instead, with leases.",
            (Line(_rate("dafka_flight_sent_bytes_total{@}", "node"), "{{node}}"),),
        ),
        Panel(
            "Leases",
            "short",
            "Readers of the file. An idle one keeps space from being reused for 10 s.",
            (Line("dafka_store_leases{@}", "{{node}}"),),
        ),
        Panel(
            "Producers: not acknowledged",
            "short",
            "Grows when stores are slow or unreachable.",
            (
                Line(
                    "sum by (topic, node) (dafka_producer_next_offset{@} "
                    "- dafka_producer_acknowledged_offset{@})",
                    "{{topic}} {{node}}",
                ),
            ),
        ),
        Panel(
            "Consumers: waiting for the application",
            "short",
            "At the limit (max_queued_records) the rest is left to the stores.",
            (Line("dafka_consumer_queued_records{@}", "{{node}}"),),
        ),
        Panel(
            "Kafka's clients",
            "short",
            "Connections, and requests a second by kind.",
            (
                Line("sum(dafka_kafka_connections{@})", "connections"),
                Line(_rate("dafka_kafka_requests_total{@}", "api") + " > 0", "{{api}}"),
            ),
        ),
    ),
    "Processes": (
        Panel(
            "Memory",
            "bytes",
            "Resident, including mapped pages of the log's file.",
            (Line('process_resident_memory_bytes{job=~"$job"}', "{{instance}}"),),
        ),
        Panel(
            "Processor",
            "percentunit",
            "1 is a whole core; Python uses one per process, except for disk and sockets.",
            (Line(f'rate(process_cpu_seconds_total{{job=~"$job"}}[{INTERVAL}])', "{{instance}}"),),
        ),
        Panel(
            "Open files",
            "short",
            "Each peer takes some. At the limit no more peers are taken.",
            (
                Line('process_open_fds{job=~"$job"}', "{{instance}}"),
                Line('process_max_fds{job=~"$job"}', "limit, {{instance}}"),
            ),
        ),
    ),
}

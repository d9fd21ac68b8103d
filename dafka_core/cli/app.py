"""The commands of ``dafka``, with those of installed packages."""

from __future__ import annotations

from typing import Any, Final

from dafka_core.cli.commands import (
    INSPECT,
    MAINTAIN,
    PROGRAM,
    RECORDS,
    RUN,
    SECURITY,
    SPARK,
    Command,
    with_plugins,
)
from dafka_core.config.node_options import (
    ConsumerOptions,
    NodeOptions,
    ProducerOptions,
    ReaderOptions,
    SecurityOptions,
    StoreOptions,
    TowerOptions,
)
from dafka_core.config.options import Options
from dafka_core.ops.metrics_options import MetricsOptions
from dafka_core.ops.store_extension import store_extensions

_STORE_TABLES: Final[tuple[type[Options], ...]] = (
    StoreOptions,
    *(each.options for each in store_extensions()),
    MetricsOptions,
)
_WAITING: Final = ("tower_timeout_s", "wait_for_tower")
"""Options that probes do not have: they don't wait for a tower."""

_NODES_OWN: Final = tuple(row.name for row in NodeOptions.table() if row.name != "tower")
"""Options that ``dafka job`` does not take: jobs have their own."""


def _row(
    function: str, summary: str, section: str = "", *tables: type[Options], **more: Any
) -> Command:
    return Command(f"dafka_core.cli.{function}", summary, section, tables=tables, **more)


_COMMANDS: Final = (
    _row(
        "node_commands:up",
        "Run a tower and a store in one process: a cluster for development.",
        RUN,
        *_STORE_TABLES,
        TowerOptions,
        without=("tower",),
    ),
    _row(
        "node_commands:tower",
        "Run a tower, through which nodes discover each other.",
        RUN,
        *(TowerOptions, MetricsOptions),
    ),
    _row(
        "node_commands:store",
        "Run a store: it keeps the records of every topic on disk and acknowledges them.",
        RUN,
        *_STORE_TABLES,
        commands=(
            _row(
                "backup_commands:backup",
                "Back up a store, running or not, to a new directory.",
                "",
                SecurityOptions,
                without=("insecure",),
            ),
            _row(
                "backup_commands:restore",
                "Turn a backup, or a copy of a store's directory in DIR, into a store of its own.",
            ),
            _row(
                "backup_commands:verify",
                "Read a whole store, running or not, or a backup, and list what is damaged.",
                "",
                SecurityOptions,
                without=("insecure",),
            ),
            _row(
                "node_commands:aside",
                "List the records that a store has set aside; the store must be stopped.",
            ),
            _row(
                "node_commands:forget",
                "Make all running stores, or the stopped store in DIR, forget a store that is "
                "gone for ever.",
                "",
                ReaderOptions,
            ),
            _row(
                "node_commands:replace",
                "Let the stopped store in DIR replace a store that is gone for ever, and take "
                "its address.",
                "",
                ReaderOptions,
            ),
        ),
    ),
    _row(
        "produce_command:produce",
        "Publish each line of files or of standard input as a record; exit once all are "
        "acknowledged.",
        RECORDS,
        *(ProducerOptions, MetricsOptions),
    ),
    _row(
        "consume_command:consume",
        "Print the value of each record on a line, until Ctrl-C or --count.",
        RECORDS,
        *(ConsumerOptions, MetricsOptions),
    ),
    _row(
        "copy_command:copy",
        "Copy a topic to another topic, to another cluster, or to a file; or a file to a topic.",
        RECORDS,
        *(ReaderOptions, ProducerOptions),
        without=("envelope",),
    ),
    _row(
        "cluster_commands:status",
        "Exit with 0 if a tower and all known stores respond, else with 1: for probes.",
        INSPECT,
        ReaderOptions,
        without=_WAITING,
    ),
    _row(
        "cluster_commands:doctor",
        "Diagnose a cluster: towers, stores, topics, clocks, versions, locks and connections.",
        INSPECT,
        ReaderOptions,
        without=_WAITING,
    ),
    _row(
        "cluster_commands:nodes",
        "List the towers, and the producers, consumers, stores and readers with their topics.",
        INSPECT,
        ReaderOptions,
    ),
    _row(
        "list_commands:topics",
        "List topics: number of partitions, records and bytes, first and last timestamp.",
        INSPECT,
        ReaderOptions,
    ),
    _row(
        "list_commands:partitions",
        "List partitions: offsets, bytes, first and last timestamp, complete stores, and client.",
        INSPECT,
        ReaderOptions,
    ),
    _row(
        "list_commands:heads",
        "List a topic's partitions: the earliest offset in stores, and the next one to write.",
        INSPECT,
        ReaderOptions,
    ),
    _row(
        "list_commands:stores",
        "List the stores: size of the log file, free space in it, and readers' leases on it.",
        INSPECT,
        ReaderOptions,
    ),
    _row(
        "list_commands:staged",
        "List the staged records at each store: records of uncommitted transactions.",
        INSPECT,
        ReaderOptions,
    ),
    _row(
        "perf_commands:perf",
        "Measure a cluster's throughput: publish, consume, read in bulk.",
        INSPECT,
        commands=(
            _row(
                "perf_commands:produce",
                "Publish random records, and measure the time until stores have acknowledged them.",
                "",
                ProducerOptions,
            ),
            _row(
                "perf_commands:consume",
                "Read a topic from its earliest record to its current end with a consumer.",
                "",
                ConsumerOptions,
            ),
            _row(
                "perf_commands:store",
                "Read a topic from stores in bulk, as Spark and 'consume --exit-at-end' do.",
                "",
                ReaderOptions,
            ),
        ),
    ),
    _row(
        "retention_commands:retain",
        "Show the retention rules of stores, or set them.",
        MAINTAIN,
        ReaderOptions,
    ),
    _row(
        "retention_commands:trim",
        "Delete the records of a topic that are older than a time, or below an offset.",
        MAINTAIN,
        ReaderOptions,
    ),
    _row(
        "retention_commands:delete",
        "Delete all records of a topic at every store, after confirmation.",
        MAINTAIN,
        ReaderOptions,
    ),
    _row(
        "archive_command:archive",
        "Copy a topic to Parquet files, which Spark reads together with the stores as one topic.",
        MAINTAIN,
        ReaderOptions,
    ),
    _row(
        "bundle_command:bundle",
        "Collect diagnostics for a bug report in one file: versions, settings and cluster state.",
        MAINTAIN,
        ReaderOptions,
    ),
    _row(
        "list_commands:lag",
        "List the lag of Spark's streaming queries that report it (option queryName).",
        SPARK,
        ReaderOptions,
    ),
    _row(
        "checkpoint_commands:checkpoint",
        "Show, copy, change or verify the checkpoint of one of Spark's streaming queries.",
        SPARK,
        commands=(
            _row(
                "checkpoint_commands:show",
                "List a checkpoint's batches, or the offset ranges of one batch.",
            ),
            _row(
                "checkpoint_commands:diff",
                "List the partitions whose end offsets differ between two checkpoints or two "
                "batches.",
            ),
            _row(
                "checkpoint_commands:copy",
                "Copy a checkpoint unchanged, with the id of its query, as a backup or to move it.",
            ),
            _row(
                "checkpoint_commands:fork",
                "Copy a checkpoint for another query, which continues from the same offsets.",
            ),
            _row(
                "checkpoint_commands:rewind",
                "Back up a checkpoint, then remove the batches after an earlier one.",
            ),
            _row(
                "checkpoint_commands:reset",
                "Reset a query: it restarts as a new query from its option startingOffsets.",
            ),
            _row(
                "checkpoint_commands:verify",
                "Verify that stores have the rows that a query wrote, or report the first wrong "
                "batch.",
                "",
                ReaderOptions,
            ),
        ),
    ),
    _row(
        "job_commands:job",
        "Run one of the package's Spark jobs on this machine, or list the jobs.",
        SPARK,
        NodeOptions,
        without=_NODES_OWN,
        settings={"allow_interspersed_args": False},
    ),
    _row(
        "job_commands:notebooks",
        "Copy the package's notebooks to a directory, or list them.",
        SPARK,
    ),
    _row(
        "keys_command:keys",
        "Create and list keys of towers and nodes, and tokens.",
        SECURITY,
        commands=(
            _row(
                "keys_command:new",
                "Create a key: NAME.key_secret for its owner only, and NAME.key for those that "
                "admit it.",
            ),
            _row(
                "keys_command:renew",
                "Write the certificate for Arrow Flight into a file NAME.key that was written by "
                "hand.",
            ),
            _row(
                "keys_command:show",
                "List the keys in a directory: roles, topics, and the state of the secret key "
                "file.",
            ),
            _row(
                "keys_command:token",
                "Create a file with a token for HTTP requests to the console or for metrics.",
            ),
        ),
    ),
    _row(
        "configuration:config",
        "Show the value of each option and its origin: flag, environment, file or default.",
        PROGRAM,
        settings={"ignore_unknown_options": True},
    ),
    _row(
        "version_command:completion",
        "Print a completion script for a shell.",
        PROGRAM,
    ),
)

_dafka: Final = Command(
    "dafka_core.cli.version_command:dafka",
    "Dafka: durable topics over ZeroMQ, without a broker.",
    commands=with_plugins(_COMMANDS),
    settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with 'dafka up'; then 'dafka produce TOPIC' and 'dafka consume TOPIC'. "
    "Exit codes: 0 done, 1 failed, 2 invalid arguments or settings, "
    "130 or 143 stopped by a signal before it was done.",
)
app: Final[Any] = _dafka.load()
"""The group of all commands."""

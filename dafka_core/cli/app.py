"""The commands of ``dafka``, with those of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
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
from dafka_core.cli.flags import add_settings
from dafka_core.config.node_options import (
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    StoreOptions,
    TowerOptions,
)
from dafka_core.ops.metrics_options import MetricsOptions
from dafka_core.ops.store_extension import store_extensions

add_settings(
    StoreOptions,
    *(each.options for each in store_extensions()),
    MetricsOptions,
    TowerOptions,
    ProducerOptions,
    ConsumerOptions,
    ReaderOptions,
)

_COMMANDS: Final = {
    RUN: {
        "node_commands:up": "Run a tower and a store in one process: a cluster for development.",
        "node_commands:tower": "Run a tower, through which nodes discover each other.",
        "node_commands:store": "Run a store: it keeps the records of every topic on disk and "
        "acknowledges them.",
    },
    RECORDS: {
        "produce_command:produce": "Publish each line of files or of standard input as a record; "
        "exit once all are acknowledged.",
        "consume_command:consume": "Print the value of each record on a line, until Ctrl-C or "
        "--count.",
        "copy_command:copy": "Copy a topic to another topic, to another cluster, or to a file; or "
        "a file to a topic.",
    },
    INSPECT: {
        "cluster_commands:status": "Exit with 0 if a tower and all known stores respond, else with "
        "1: for probes.",
        "cluster_commands:doctor": "Diagnose a cluster: towers, stores, topics, clocks, versions, "
        "locks and connections.",
        "cluster_commands:nodes": "List the towers, and the producers, consumers, stores and "
        "readers with their topics.",
        "list_commands:topics": "List topics: number of partitions, records and bytes, first and "
        "last timestamp.",
        "list_commands:partitions": "List partitions: offsets, bytes, first and last timestamp, "
        "complete stores, and client.",
        "list_commands:heads": "List a topic's partitions: the earliest offset in stores, and the "
        "next one to write.",
        "list_commands:stores": "List the stores: size of the log file, free space in it, and "
        "readers' leases on it.",
        "list_commands:staged": "List the staged records at each store: records of uncommitted "
        "transactions.",
        "perf_commands:perf": "Measure a cluster's throughput: publish, consume, read in bulk.",
    },
    MAINTAIN: {
        "retention_commands:retain": "Show the retention rules of stores, or set them.",
        "retention_commands:trim": "Delete the records of a topic that are older than a time, or "
        "below an offset.",
        "retention_commands:delete": "Delete all records of a topic at every store, after "
        "confirmation.",
        "archive_command:archive": "Copy a topic to Parquet files, which Spark reads together with "
        "the stores as one topic.",
        "bundle_command:bundle": "Collect diagnostics for a bug report in one file: versions, "
        "settings and cluster state.",
    },
    SPARK: {
        "list_commands:lag": "List the lag of Spark's streaming queries that report it (option "
        "queryName).",
        "checkpoint_commands:checkpoint": "Show, copy, change or verify the checkpoint of one of "
        "Spark's streaming queries.",
        "job_commands:job": "Run one of the package's Spark jobs on this machine, or list the "
        "jobs.",
        "job_commands:notebooks": "Copy the package's notebooks to a directory, or list them.",
    },
    SECURITY: {
        "keys_command:keys": "Create and list keys of towers and nodes, and tokens.",
    },
    PROGRAM: {
        "configuration:config": "Show the value of each option and its origin: flag, environment, "
        "file or default.",
        "version_command:completion": "Print a completion script for a shell.",
    },
}
"""The functions of commands by section, and the first sentence of each one's help."""

_SUBCOMMANDS: Final = {
    "node_commands:store": {
        "backup_commands:backup": "Back up a store, running or not, to a new directory.",
        "backup_commands:restore": "Turn a backup, or a copy of a store's directory in DIR, into a "
        "store of its own.",
        "backup_commands:verify": "Read a whole store, running or not, or a backup, and list what "
        "is damaged.",
        "node_commands:aside": "List the records that a store has set aside; the store must be "
        "stopped.",
        "node_commands:forget": "Make all running stores, or the stopped store in DIR, forget a "
        "store that is gone for ever.",
        "node_commands:replace": "Let the stopped store in DIR replace a store that is gone for "
        "ever, and take its address.",
    },
    "perf_commands:perf": {
        "perf_commands:produce": "Publish random records, and measure the time until stores have "
        "acknowledged them.",
        "perf_commands:consume": "Read a topic from its earliest record to its current end with a "
        "consumer.",
        "perf_commands:store": "Read a topic from stores in bulk, as Spark and 'consume "
        "--exit-at-end' do.",
    },
    "checkpoint_commands:checkpoint": {
        "checkpoint_commands:show": "List a checkpoint's batches, or the offset ranges of one "
        "batch.",
        "checkpoint_commands:diff": "List the partitions whose end offsets differ between two "
        "checkpoints or two batches.",
        "checkpoint_commands:copy": "Copy a checkpoint unchanged, with the id of its query, as a "
        "backup or to move it.",
        "checkpoint_commands:fork": "Copy a checkpoint for another query, which continues from the "
        "same offsets.",
        "checkpoint_commands:rewind": "Back up a checkpoint, then remove the batches after an "
        "earlier one.",
        "checkpoint_commands:reset": "Reset a query: it restarts as a new query from its option "
        "startingOffsets.",
        "checkpoint_commands:verify": "Verify that stores have the rows that a query wrote, or "
        "report the first wrong batch.",
    },
    "keys_command:keys": {
        "keys_command:new": "Create a key: NAME.key_secret for its owner only, and NAME.key for "
        "those that admit it.",
        "keys_command:renew": "Write the certificate for Arrow Flight into a file NAME.key that "
        "was written by hand.",
        "keys_command:show": "List the keys in a directory: roles, topics, and the state of the "
        "secret key file.",
        "keys_command:token": "Create a file with a token for HTTP requests to the console or for "
        "metrics.",
    },
}
"""The commands of groups."""

_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "job_commands:job": {"allow_interspersed_args": False},
    "configuration:config": {"ignore_unknown_options": True},
}


def _command(function: str, summary: str, section: str = "") -> Command:
    return Command(
        f"dafka_core.cli.{function}",
        summary,
        section,
        commands=tuple(_command(*each) for each in _SUBCOMMANDS.get(function, {}).items()),
        settings=_SETTINGS.get(function, {}),
        runs=function == "node_commands:store",
    )


_dafka: Final = Command(
    "dafka_core.cli.version_command:dafka",
    "Dafka: durable topics over ZeroMQ, without a broker.",
    commands=with_plugins(
        _command(*each, section) for section, rows in _COMMANDS.items() for each in rows.items()
    ),
    settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with 'dafka up'; then 'dafka produce TOPIC' and 'dafka consume TOPIC'. "
    "Exit codes: 0 done, 1 failed, 2 invalid arguments or settings, "
    "130 or 143 stopped by a signal before it was done.",
)
app: Final[Any] = _dafka.load()
"""The group of all commands."""

"""The commands of ``dafka``, with those of installed packages (entry points ``dafka.commands``)."""

from __future__ import annotations

from typing import Final

from dafka_core.cli import (
    backup_commands,
    checkpoint_commands,
    keys_command,
    perf_commands,
)
from dafka_core.cli.archive_command import archive
from dafka_core.cli.bundle_command import bundle
from dafka_core.cli.checkpoint_commands import verify
from dafka_core.cli.cluster_commands import doctor, nodes, status
from dafka_core.cli.configuration import ConfiguredTyper, config
from dafka_core.cli.consume_command import consume
from dafka_core.cli.copy_command import copy
from dafka_core.cli.flags import with_options
from dafka_core.cli.job_commands import OTHER_OPTIONS, job, notebooks
from dafka_core.cli.list_commands import heads, lag, partitions, staged, stores, topics
from dafka_core.cli.node_commands import aside, forget, replace, store, tower, up
from dafka_core.cli.produce_command import produce
from dafka_core.cli.retention_commands import delete, retain, trim
from dafka_core.cli.version_command import completion, dafka
from dafka_core.config.node_options import (
    ConsumerOptions,
    NodeOptions,
    ProducerOptions,
    ReaderOptions,
    SecurityOptions,
    StoreOptions,
    TowerOptions,
)
from dafka_core.ops.metrics_options import MetricsOptions
from dafka_core.ops.store_extension import store_extensions
from dafka_core.system.distribution import plugins

EXTENSIONS: Final = tuple(each.options for each in store_extensions())

app = ConfiguredTyper(
    name="dafka",
    help="Dafka: durable topics over ZeroMQ, without a broker.",
    epilog="Start with 'dafka up'; then 'dafka produce TOPIC' and 'dafka consume TOPIC'. "
    "Exit codes: 0 done, 1 failed, 2 invalid arguments or settings, "
    "130 or 143 stopped by a signal before it was done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.callback()(dafka)
app.command()(
    with_options(
        TowerOptions,
        StoreOptions,
        *EXTENSIONS,
        MetricsOptions,
        without={"tower"},
    )(up)
)
app.command()(with_options(TowerOptions, MetricsOptions)(tower))
store_group = ConfiguredTyper(invoke_without_command=True)
store_group.callback()(with_options(StoreOptions, *EXTENSIONS, MetricsOptions)(store))
for command in (
    with_options(SecurityOptions, without={"insecure"})(backup_commands.backup),
    backup_commands.restore,
    with_options(SecurityOptions, without={"insecure"})(backup_commands.verify),
    aside,
    with_options(ReaderOptions)(forget),
    with_options(ReaderOptions)(replace),
):
    store_group.command()(command)
app.add_typer(store_group, name="store")
app.command()(with_options(ProducerOptions, MetricsOptions)(produce))
app.command()(with_options(ConsumerOptions, MetricsOptions)(consume))
app.command()(with_options(ReaderOptions, ProducerOptions, without={"envelope"})(copy))
app.command()(with_options(ReaderOptions, without={"tower_timeout_s", "wait_for_tower"})(status))
app.command()(with_options(ReaderOptions)(nodes))
app.command()(with_options(ReaderOptions)(topics))
app.command()(with_options(ReaderOptions)(partitions))
app.command()(with_options(ReaderOptions)(heads))
app.command()(with_options(ReaderOptions)(staged))
app.command()(with_options(ReaderOptions)(retain))
app.command()(with_options(ReaderOptions)(trim))
app.command()(with_options(ReaderOptions)(delete))
app.command()(with_options(ReaderOptions)(stores))
app.command()(with_options(ReaderOptions)(lag))
app.command()(with_options(ReaderOptions)(archive))
checkpoint_group = ConfiguredTyper(
    help="Show, copy, change or verify the checkpoint of one of Spark's streaming queries.",
    no_args_is_help=True,
)
for command in (
    checkpoint_commands.show,
    checkpoint_commands.diff,
    checkpoint_commands.copy,
    checkpoint_commands.fork,
    checkpoint_commands.rewind,
    checkpoint_commands.reset,
    with_options(ReaderOptions)(verify),
):
    checkpoint_group.command()(command)
app.add_typer(checkpoint_group, name="checkpoint")
app.command()(with_options(ReaderOptions, without={"tower_timeout_s", "wait_for_tower"})(doctor))
app.command(context_settings={"allow_interspersed_args": False})(
    with_options(NodeOptions, without=OTHER_OPTIONS)(job)
)
app.command(context_settings={"ignore_unknown_options": True})(config)
app.command()(completion)
app.command()(notebooks)
app.command()(with_options(ReaderOptions)(bundle))
keys_group = ConfiguredTyper(
    help="Create and list keys of towers and nodes, and tokens.", no_args_is_help=True
)
keys_group.command()(keys_command.new)
keys_group.command()(keys_command.renew)
keys_group.command()(keys_command.show)
keys_group.command()(keys_command.token)
app.add_typer(keys_group, name="keys")
perf_group = ConfiguredTyper(
    help="Measure a cluster's throughput: publish, consume, read in bulk.", no_args_is_help=True
)
perf_group.command()(with_options(ProducerOptions)(perf_commands.produce))
perf_group.command()(with_options(ConsumerOptions)(perf_commands.consume))
perf_group.command()(with_options(ReaderOptions)(perf_commands.store))
app.add_typer(perf_group, name="perf")
for add_commands in plugins("dafka.commands"):
    add_commands(app)

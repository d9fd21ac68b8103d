"""The commands of ``dafka`` for gateways: ``kafka``, ``groups`` and ``kafka-user``."""

from __future__ import annotations

from typing import Any

from dafka_core.cli.configured import ConfiguredTyper
from dafka_core.cli.flags import ExitWithParent, MaybeDirectory, needed, with_options
from dafka_core.cli.store_commands import run_store
from dafka_core.kafka import user_commands
from dafka_core.kafka.group_commands import groups
from dafka_core.kafka.kafka_options import DEFAULT_PORT, KafkaOptions
from dafka_core.metrics.options import MetricsOptions
from dafka_core.node_options import ReaderOptions, StoreOptions


def add_commands(app: ConfiguredTyper) -> None:
    """Add the commands to those of ``dafka``."""
    app.command()(with_options(KafkaOptions, StoreOptions, MetricsOptions)(kafka))
    app.command()(with_options(ReaderOptions)(groups))
    users = ConfiguredTyper(
        help="Say who may use a gateway for Kafka's clients (extra 'kafka'), and what each may do.",
        no_args_is_help=True,
    )
    for each in (user_commands.add, user_commands.change, user_commands.remove, user_commands.show):
        users.command()(each)
    app.add_typer(users, name="kafka-user")


def kafka(
    *, directory: MaybeDirectory = None, exit_with_parent: ExitWithParent = False, **options: Any
) -> None:
    """Run a store to which Kafka's clients connect (extra 'kafka'), as 'dafka store --kafka'.

    It prints READY and where it is as JSON when it serves. Ctrl-C stops it.
    """
    options["kafka"] = options.pop("listen", f"127.0.0.1:{DEFAULT_PORT}")
    run_store(needed(directory), options, exit_with_parent=exit_with_parent)

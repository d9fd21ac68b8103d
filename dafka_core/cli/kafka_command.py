"""``dafka kafka``, and the gateway that ``dafka store`` and ``dafka up`` have with ``--kafka``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import ExitWithParent, MaybeDirectory, needed, of_table
from dafka_core.cli.metrics_flag import watching
from dafka_core.cli.process import serve_until_stopped, stop_when_input_ends
from dafka_core.errors import ConfigError
from dafka_core.kafka.kafka_options import DEFAULT_PORT, KafkaOptions
from dafka_core.node_options import StoreOptions

if TYPE_CHECKING:
    from dafka_core import Store
    from dafka_core.kafka.gateway import Gateway

Kafka = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        metavar="HOST[:PORT]",
        help="Let Kafka's clients connect here (needs extra 'kafka').",
        show_default=False,
    ),
]

WITHOUT_LISTEN: Final = frozenset({"listen"})
"""An option of gateways that is ``--kafka`` where a command need not have one."""


def kafka(
    *, directory: MaybeDirectory = None, exit_with_parent: ExitWithParent = False, **options: Any
) -> None:
    """Run a store to which Kafka's clients connect; the same as 'dafka store --kafka'.

    It prints READY and where it is as JSON when it serves. Ctrl-C stops it.
    """
    listen = options.pop("listen", f"127.0.0.1:{DEFAULT_PORT}")
    run_store(needed(directory), listen, options, exit_with_parent=exit_with_parent)


def run_store(
    directory: str, listen: str | None, options: dict[str, Any], *, exit_with_parent: bool
) -> None:
    """Runs a store, with a gateway if there is to be one, until it is told to stop."""
    from dafka_core import Store

    if exit_with_parent:
        stop_when_input_ends()
    refuse_unused(listen, options)
    with (
        watching("store", options) as watch,
        Store(directory, announce=False, **of_table(StoreOptions, options)) as node,
        gateway(node, listen, options) as (nodes, facts),
    ):
        watch.add(node, *nodes)
        node.announce()
        output.say(f"store {node.address} in {directory}; Ctrl-C stops it")
        where = {"address": node.address, "dir": directory}
        serve_until_stopped(node, **where, flight=node.locations, **facts, **watch.facts)


@contextmanager
def gateway(
    store: Store, listen: str | None, options: Mapping[str, Any]
) -> Iterator[tuple[tuple[Gateway, ...], dict[str, str]]]:
    """Has the store have a gateway, if ``listen`` says where; gives it, and what READY says."""
    if listen is None:
        from dafka_core.kafka.gateways import retract_former

        retract_former(store)
        yield (), {}
        return
    from dafka_core.kafka.gateway import Gateway

    with Gateway(store, listen=listen, **of_table(KafkaOptions, options)) as node:
        output.say(f"Kafka's clients connect to {node.advertised}")
        yield (node,), {"kafka": str(node.advertised)}


def refuse_unused(listen: str | None, options: Mapping[str, Any]) -> None:
    """Raises ConfigError for options of a gateway where there is none."""
    for name, value in of_table(KafkaOptions, options).items():
        if listen is None:
            raise ConfigError(name, value, "is the gateway's: say where it listens, with --kafka")

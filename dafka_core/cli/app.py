"""The commands of ``dafka``, put together."""

from __future__ import annotations

import typer

from dafka_core.cli.flags import with_options
from dafka_core.cli.list_commands import heads, staged, topics
from dafka_core.cli.node_commands import tower, up
from dafka_core.cli.record_commands import consume, produce
from dafka_core.cli.store_commands import restore, store
from dafka_core.node_options import (
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    StoreOptions,
    TowerOptions,
)

app = typer.Typer(
    name="dafka",
    help="Dafka: durable topics over ZeroMQ, without a broker.",
    epilog="Start with 'dafka up'; then 'dafka produce TOPIC' and 'dafka consume TOPIC'.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(with_options(TowerOptions, StoreOptions, without={"tower"})(up))
app.command()(with_options(TowerOptions)(tower))
stores = typer.Typer(invoke_without_command=True)
stores.callback()(with_options(StoreOptions)(store))
stores.command()(restore)
app.add_typer(stores, name="store")
app.command()(with_options(ProducerOptions)(produce))
app.command()(with_options(ConsumerOptions)(consume))
app.command()(with_options(ReaderOptions)(topics))
app.command()(with_options(ReaderOptions)(heads))
app.command()(with_options(ReaderOptions)(staged))

"""The commands of ``dafka``, put together."""

from __future__ import annotations

import typer

from dafka_core.cli.asking import heads, topics
from dafka_core.cli.options import with_options
from dafka_core.cli.records import consume, produce
from dafka_core.cli.serving import store, tower, up
from dafka_core.node_config import (
    ConsumerConfig,
    ProducerConfig,
    ReaderConfig,
    StoreConfig,
    TowerConfig,
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

app.command()(with_options(TowerConfig, StoreConfig)(up))
app.command()(with_options(TowerConfig)(tower))
app.command()(with_options(StoreConfig)(store))
app.command()(with_options(ProducerConfig)(produce))
app.command()(with_options(ConsumerConfig)(consume))
app.command()(with_options(ReaderConfig)(topics))
app.command()(with_options(ReaderConfig)(heads))

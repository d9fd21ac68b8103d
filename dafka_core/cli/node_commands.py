"""``dafka tower`` and ``dafka up``: nodes that run until they are stopped."""

from __future__ import annotations

from typing import Any, Final

from dafka_core.cli import output
from dafka_core.cli.extensions import check_extensions, extended
from dafka_core.cli.flags import Directory, ExitWithParent, of_table
from dafka_core.cli.metrics_flag import watching
from dafka_core.cli.process import serve_until_stopped, stop_when_input_ends
from dafka_core.node_options import StoreOptions, TowerOptions

DESK_DIRECTORY: Final = "dafka-data"


def tower(*, exit_with_parent: ExitWithParent = False, **options: Any) -> None:
    """Run a tower: nodes find each other through it.

    It prints READY and its ports as JSON when it serves. Ctrl-C stops it.
    """
    from dafka_core import Tower

    if exit_with_parent:
        stop_when_input_ends()
    with watching("tower", options) as watch, Tower(**of_table(TowerOptions, options)) as node:
        watch.add(node)
        output.say(f"tower at {node.tower}; Ctrl-C stops it")
        where = {"sub_port": node.sub_port, "pub_port": node.pub_port, "tower": node.tower}
        serve_until_stopped(node, **where, **watch.facts)


def up(
    *,
    directory: Directory = DESK_DIRECTORY,
    exit_with_parent: ExitWithParent = False,
    **options: Any,
) -> None:
    """Run a tower and a store in one process: a cluster for a desk.

    It prints READY and where it is as JSON when it serves. Ctrl-C stops it.
    """
    from dafka_core import Store, Tower

    if exit_with_parent:
        stop_when_input_ends()
    check_extensions(options)
    stored = of_table(StoreOptions, options) | {"announce": False}
    with (
        watching("tower and store", options) as watch,
        Tower(announce=False, **of_table(TowerOptions, options)) as hub,
        Store(directory, **stored | {"tower": hub.tower}) as node,
        extended(node, options) as (nodes, facts),
    ):
        watch.add(hub, node, *nodes)
        node.announce()
        hub.announce()
        output.say(f"tower at {hub.tower}, store in {directory}; Ctrl-C stops both")
        output.say("other terminals need this, when it is not the default:")
        output.say(f"  export DAFKA_TOWER={hub.tower}")
        where = {"tower": hub.tower, "address": node.address, "dir": directory}
        serve_until_stopped(node, **where, flight=node.locations, **facts, **watch.facts)

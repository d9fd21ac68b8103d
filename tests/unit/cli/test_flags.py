"""The options of commands, made from the tables of the nodes."""

from __future__ import annotations

import inspect
from typing import Any

from dafka_core.cli.flags import of_table, with_options
from dafka_core.cli.output import LogOptions
from dafka_core.config.node_options import ConsumerOptions, StoreOptions, TowerOptions


def test_a_command_is_given_the_options_the_user_gave() -> None:
    calls: list[dict[str, Any]] = []

    def command(*, count: int | None = None, **options: Any) -> None:
        calls.append({"count": count, **options})

    decorated = with_options(ConsumerOptions)(command)
    parameters = inspect.signature(decorated).parameters
    rows = [*ConsumerOptions.table(), *LogOptions.table()]
    assert set(parameters) == {"count"} | {row.name for row in rows}
    decorated(count=None, tower=None, host="127.0.0.1", wire=None, wait_for_tower=None)
    decorated(count=1, log_level="info", tower=["a,b", "c:1:2"])
    assert calls == [{"count": None, "host": "127.0.0.1"}, {"count": 1, "tower": "a,b,c:1:2"}]
    without = inspect.signature(with_options(ConsumerOptions, without={"tower"})(command))
    assert set(parameters) - set(without.parameters) == {"tower"}


def test_options_of_two_tables_are_told_apart() -> None:
    options = {"sub_address": "a", "host": "h"}
    assert of_table(TowerOptions, options) == {"sub_address": "a"}
    assert of_table(StoreOptions, options) == {"host": "h"}

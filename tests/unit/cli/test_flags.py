"""The options of commands, made from the tables of the nodes."""

from __future__ import annotations

from typing import Any

import click
import pytest

from dafka_core.cli.commands import Command
from dafka_core.cli.flags import option, options_of, table_options
from dafka_core.config.node_options import ConsumerOptions, StoreOptions, TowerOptions
from dafka_core.errors import ConfigError

CALLS: list[dict[str, Any]] = []


@option("--count", type=int)
@table_options(ConsumerOptions)
def command(*, count: int | None, **options: Any) -> None:
    CALLS.append({"count": count, **options})


def call(*words: str) -> dict[str, Any]:
    row = Command(f"{__name__}:command")
    row.load().main(list(words), standalone_mode=False)
    return CALLS.pop()


def test_a_command_is_given_the_options_the_user_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAFKA_TOWER", raising=False)
    assert call("--host", "127.0.0.1") == {"count": None, "host": "127.0.0.1"}
    assert call("--count", "1", "--log-level", "info", "--tower", "a,b", "--tower", "c:1:2") == {
        "count": 1,
        "tower": "a,b,c:1:2",
    }
    monkeypatch.setenv("DAFKA_HOST", "10.0.0.1")
    assert call()["host"] == "10.0.0.1"
    assert call("--host", "127.0.0.1")["host"] == "127.0.0.1"
    monkeypatch.setenv("DAFKA_MAX_QUEUED_BYTES", "many")
    with pytest.raises(ConfigError, match="environment variable 'DAFKA_MAX_QUEUED_BYTES' = 'many'"):
        call()


def test_each_row_of_a_table_is_an_option_unless_it_is_left_out() -> None:
    names = {each.name for each in options_of(ConsumerOptions, without={"tower"})}
    assert names == {row.name for row in ConsumerOptions.table()} - {"tower"}
    assert all(isinstance(each, click.Option) for each in options_of(ConsumerOptions))


def test_options_of_two_tables_are_told_apart() -> None:
    options = {"sub_address": "a", "host": "h"}
    assert TowerOptions.declared_in(options) == {"sub_address": "a"}
    assert StoreOptions.declared_in(options) == {"host": "h"}

"""The options of commands, made from the tables of the nodes; offsets and times."""

import time
from typing import Any

import click
import pytest

from dafka_core.cli.commands import Command
from dafka_core.cli.flags import option, options_of, parse_offset, table_options
from dafka_core.config.node_options import ConsumerOptions, StoreOptions, TowerOptions
from dafka_core.errors import ConfigError
from dafka_core.model.positions import parse_time_us
from dafka_core.model.records import PartitionInfo

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


INFO = PartitionInfo("t", "p", 10, 100)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        *(("earliest", 10), ("beginning", 10), ("Latest", 100), ("end", 100)),
        *(("0", 0), ("42", 42), ("+5", 15), ("-5", 95), ("-1000", 10), ("-0", 100)),
    ],
)
def test_an_offset_is_absolute_or_counted_from_an_end(text: str, offset: int) -> None:
    assert parse_offset(text).offset_in(INFO) == offset


@pytest.mark.parametrize("text", ["", "first", "1.5", "--1", "٣", "1" * 20])
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be earliest, latest, an offset"):
        parse_offset(text)


def test_a_time_is_absolute_or_so_long_ago() -> None:
    assert parse_time_us("1970-01-01T00:00:01.5Z") == 1_500_000
    assert parse_time_us("1970-01-01T01:00:01+01:00") == 1_000_000
    assert parse_time_us("1970-01-02") == 86_400_000_000
    now = time.time() * 1e6
    for text, seconds in (
        ("500ms", 0.5),
        ("15m", 900),
        ("2H", 7_200),
        ("1.5h", 5_400),
        ("1d", 86_400),
    ):
        assert abs(parse_time_us(text) + seconds * 1e6 - now) < 60e6


@pytest.mark.parametrize(
    "text", ["", "yesterday", "15", "15x", "2026-13-01T00:00:00Z", "2026-13-01"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time like 2026"):
        parse_time_us(text)
    with pytest.raises(ValueError, match="has no time zone: write Z at its end"):
        parse_time_us("2026-11-23 18:00:00")

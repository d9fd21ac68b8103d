"""Options: values of users, error messages, and the tables."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from dafka_core.config.options import (
    OptionInfo,
    Options,
    option,
    parse_bool,
    parse_float,
    parse_int,
    parse_str,
    unknown,
)
from dafka_core.errors import ConfigError
from scripts.options import markdown_table


def parse_pair(value: Any) -> tuple[int, ...]:
    left, cross, right = str(value).partition("x")
    if not cross:
        raise ValueError("must be like 1x2")
    return int(left), int(right)


def parse_optional(value: Any) -> int | None:
    return None if value in (None, "none") else parse_int(value)


@dataclass(frozen=True)
class Sample(Options):
    count: int = option(3, "how many", unit="records", minimum=1, maximum=268_435_456)
    ratio: float = option(0.5, "which part", minimum=0.25, maximum=1)
    eager: bool = option(False, "whether at once")
    host: str = option("127.0.0.1", "address to bind to")
    layout: str = option("c", "layout of frames", choices=("c", "rfc46"))
    size: tuple[int, ...] = option((1, 2), "two sizes", kind="AxB", parse=parse_pair, minimum=5)
    towers: tuple[str, ...] = option((), "towers", kind="HOST", parse=lambda value: (str(value),))
    limit: int | None = option(None, "most of all", kind="int", parse=parse_optional, minimum=1)
    derived: int = 7


@dataclass(frozen=True)
class Derived(Sample):
    RENAME: ClassVar[Callable[[str], str]] = staticmethod(
        lambda name: re.sub(r"_(\w)", lambda match: match[1].upper(), name)
    )
    fetch_timeout_ms: int = option(100, "how long to wait", unit="ms", minimum=1)


@dataclass(frozen=True)
class Units(Options):
    """Options whose names end with units, or with words that are none."""

    wait_s: float = option(1.0, "how long to wait")
    max_bytes: int = option(1, "the largest size", unit="MB")
    delete_topics: bool = option(False, "whether topics may be deleted")


def refused(given: dict[str, Any], options: type[Options] = Sample) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        options.build(given)
    error = caught.value
    assert (error.option, error.value) == list(given.items())[-1]
    assert str(error).startswith(f"option {error.option!r} = {error.value!r}"[:300])  # cut there
    assert str(error).endswith(f": {error.why}")
    assert len(str(error)) < 500
    # The parser's error is in the sentence; its traceback is useless.
    assert error.__cause__ is None
    return error


def test_defaults() -> None:
    assert Sample.build({}) == Sample()
    assert Sample.build({}).count == 3


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        *(("count", given, 5) for given in (5, "5", " 5 ", np.int64(5))),
        *(("count", bound, bound) for bound in (1, 268_435_456)),
        ("ratio", "0.75", 0.75),
        ("ratio", 1, 1.0),
        ("ratio", Fraction(1, 4), 0.25),
        *(("eager", given, True) for given in (True, "true")),
        ("eager", " FALSE ", False),
        ("host", "example.org", "example.org"),
        ("layout", "rfc46", "rfc46"),
        ("size", "3x4", (3, 4)),
        ("limit", "none", None),
        ("limit", "8", 8),
    ],
)
def test_valid_values(name: str, given: object, expected: object) -> None:
    value = getattr(Sample.build({name: given}), name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "why", "given"),
    [
        ("count", "must be a whole number", ["many", "", "1.0", 1.0, True, None, [1], "9" * 5_000]),
        ("ratio", "must be a number", ["half", True, None, 10**400]),
        ("ratio", "must be a finite number", ["nan", float("inf"), "-inf"]),
        ("eager", "must be true or false", [1, "yes", None]),
        ("host", "must be a string that is not empty", ["", 5, None]),
        ("size", "must be like 1x2", ["3"]),
        ("limit", "must be a whole number", ["all"]),
        ("layout", "must be one of c, rfc46", ["RFC46", "c ", "deployed"]),
        ("count", "must be at least 1", [0, -(10**30)]),
        # All its digits: a rounded bound does not help.
        ("count", "must be at most 268435456", [268_435_457]),
        ("ratio", "must be at least 0.25", [0.2]),
        ("ratio", "must be at most 1", ["1.01"]),
        ("limit", "must be at least 1", [0]),
    ],
)
def test_invalid_values(name: str, why: str, given: list[object]) -> None:
    assert [refused({name: each}).why for each in given] == [why] * len(given)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        *((name, "count") for name in ("counts", "cuont", "COUNT")),
        ("layuot", "layout"),
        ("tower", "towers"),
    ],
)
def test_an_unknown_name_suggests_the_nearest_one(name: str, nearest: str) -> None:
    assert refused({name: 1}).why == f"unknown option; did you mean {nearest!r}?"


def test_an_unknown_name_lists_all_options() -> None:
    assert refused({"zzz": 1}).why == (
        "unknown option; must be one of count, eager, host, layout, limit, ratio, size, towers"
    )
    assert unknown("zzz", ["b", "a"]) == "unknown option; must be one of a, b"


def test_fields_that_are_no_options_cannot_be_given() -> None:
    assert "unknown option" in refused({"derived": 8}).why


def test_the_first_wrong_option_is_named() -> None:
    assert refused({"count": 5, "ratio": 2}).option == "ratio"


def test_renamed_options() -> None:
    assert Derived.build({"fetchTimeoutMs": "5", "count": 4}) == Derived(
        fetch_timeout_ms=5, count=4
    )
    why = "unknown option; did you mean 'fetchTimeoutMs'?"
    assert refused({"fetch_timeout_ms": 5}, Derived).why == why
    assert refused({"fetchtimeoutms": 5}, Derived).why == why
    assert refused({"fetchTimeoutMs": 0}, Derived).why == "must be at least 1"


def test_table() -> None:
    assert [OptionInfo(*row[:5]) for row in Sample.table()] == [
        OptionInfo("count", "int", 3, "records", "how many"),
        OptionInfo("ratio", "float", 0.5, "", "which part"),
        OptionInfo("eager", "bool", False, "", "whether at once"),
        OptionInfo("host", "str", "127.0.0.1", "", "address to bind to"),
        OptionInfo("layout", "c or rfc46", "c", "", "layout of frames"),
        OptionInfo("size", "AxB", (1, 2), "", "two sizes"),
        OptionInfo("towers", "HOST", (), "", "towers"),
        OptionInfo("limit", "int", None, "", "most of all"),
    ]
    assert Derived.table()[-1][:5] == ("fetchTimeoutMs", "int", 100, "ms", "how long to wait")


def test_the_names_of_numbers_give_their_units() -> None:
    assert [row.unit for row in Units.table()] == ["s", "MB", ""]
    # A wait that the system cannot represent.
    assert refused({"wait_s": 10**10}, Units).why == "must be at most 1000000000"


def test_markdown_table() -> None:
    assert markdown_table(Derived).splitlines() == [
        "| option | type | default, unit | meaning |",
        "|---|---|---|---|",
        "| `count` | int | `3` records | how many |",
        "| `ratio` | float | `0.5` | which part |",
        "| `eager` | bool | `False` | whether at once |",
        "| `host` | str | `127.0.0.1` | address to bind to |",
        "| `layout` | c or rfc46 | `c` | layout of frames |",
        "| `size` | AxB | `(1, 2)` | two sizes |",
        "| `towers` | HOST |  | towers |",
        "| `limit` | int |  | most of all |",
        "| `fetchTimeoutMs` | int | `100` ms | how long to wait |",
    ]


@pytest.mark.parametrize(
    ("parse", "good"), [(parse_bool, True), (parse_int, 0), (parse_float, 0.0), (parse_str, "0")]
)
def test_parsers_take_their_own_values(parse: Callable[[Any], object], good: object) -> None:
    assert parse(good) == good
    with pytest.raises(ValueError, match="must be"):
        parse(b"\xff")

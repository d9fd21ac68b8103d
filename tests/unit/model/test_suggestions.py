"""Which name was meant."""

from __future__ import annotations

import pytest

from dafka_core.model.name_limits import nearest_name

COMMANDS = ["up", "tower", "store", "produce", "consume", "topics", "heads", "staged", "stores"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("prodce", COMMANDS, "produce"),
        ("stor", COMMANDS, "store"),
        ("Topics", COMMANDS, "topics"),
        ("hedas", COMMANDS, "heads"),
        ("fligths", ["flights", "sensors"], "flights"),
        ("flights", ["flights-2024", "sensors"], "flights-2024"),
        ("fetch_timeout_ms", ["fetchTimeoutMs", "fetch"], "fetchTimeoutMs"),
        ("--dri", ["--dir", "--host"], "--dir"),
        ("timeout", ["timeout-s", "time"], "timeout-s"),
        ("0123456789ABCDEF0123456789ABCDEX", ["0123456789ABCDEF0123456789ABCDEF"], "0123456789"),
        ("x" * 100 + "y", ["x" * 100], "x" * 100),
    ],
)
def test_a_misspelling_is_recognised(name: str, known: list[str], meant: str) -> None:
    found = nearest_name(name, known)
    assert found is not None
    assert found.startswith(meant)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("others", ["orders"]),
        ("orders", COMMANDS),
        ("others", COMMANDS),
        ("--nope", ["--tower", "--host", "--json"]),
        ("--since", ["--wire", "--dir"]),
        ("x", ["y", "xy"]),
        ("", COMMANDS),
        ("---", ["--dir"]),
        ("A1B2C3D4A1B2C3D4A1B2C3D4A1B2C3D4", ["0123456789ABCDEF0123456789ABCDEF"]),
        ("orders", []),
    ],
)
def test_a_different_name_is_no_misspelling(name: str, known: list[str]) -> None:
    assert nearest_name(name, known) is None


def test_the_nearest_of_several_names_is_suggested() -> None:
    assert nearest_name("sensor", ["sensors-of-1990", "sensors", "censors"]) == "sensors"
    assert nearest_name("topic", ["tonic", "topics", "topic-for-tests"]) == "topics"

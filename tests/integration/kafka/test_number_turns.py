"""A gateway takes the list of numbers over once, and goes on while it is nobody else's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dafka_core import Tower
from dafka_core.kafka import number_turns
from dafka_core.kafka.number_list import LIST
from dafka_core.keys.key_files import new_key
from dafka_core.testing import wait_until
from tests.integration.kafka.numbering import ANY_PORTS, Numbering, agree, meet


@pytest.fixture
def open_() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def tower(open_: ExitStack) -> Tower:
    return open_.enter_context(Tower(**ANY_PORTS))


@pytest.fixture
def one(open_: ExitStack, tower: Tower, tmp_path: Path) -> Numbering:
    return started(open_, tmp_path / "a", tower)


def started(open_: ExitStack, directory: Path, tower: Tower) -> Numbering:
    made = Numbering(directory, tower.tower, 9_000)
    open_.callback(made.close)
    return made


def lives(numbering: Numbering) -> int:
    """How often the list was taken over."""
    return len(numbering.store.log.lives(LIST).history)


def test_a_gateway_takes_the_list_over_once_for_many_topics(one: Numbering) -> None:
    one.create("topic-0", 2)
    before = lives(one)
    for number in range(1, 5):
        one.create(f"topic-{number}", 2)
    assert lives(one) == before
    assert all(len(one.names(f"topic-{number}")) == 2 for number in range(5))


def test_it_goes_on_without_the_tower(one: Numbering, tower: Tower) -> None:
    one.create("flights", 2)
    tower.close()
    one.create("alerts", 1)
    assert len(one.names("alerts")) == 1


def test_gateways_that_take_turns_take_it_over_from_each_other(
    one: Numbering, open_: ExitStack, tower: Tower, tmp_path: Path
) -> None:
    two = started(open_, tmp_path / "b", tower)
    meet(one, two)
    one.create("topic-0", 1)
    for number, numbering in enumerate((two, one, one, two), 1):
        before = lives(numbering)
        numbering.create(f"topic-{number}", 1)
        agree(f"topic-{number}", 1, one, two)
        assert lives(numbering) == before + (number != 3)
        wait_until(lambda: lives(one) == lives(two))


def test_what_was_kept_is_given_up_when_another_gateway_takes_it_over(
    one: Numbering, open_: ExitStack, tower: Tower, tmp_path: Path
) -> None:
    two = started(open_, tmp_path / "b", tower)
    meet(one, two)
    one.create("flights", 1)
    kept = one.numbers._turns._kept
    assert kept is not None
    two.create("alerts", 1)
    wait_until(lambda: not kept.is_open)


def test_it_is_given_up_after_a_while(one: Numbering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_turns, "KEPT_S", 0.0)
    one.create("flights", 1)
    wait_until(lambda: one.numbers._turns._kept is None)
    before = lives(one)
    one.create("alerts", 1)
    assert lives(one) == before + 1


def test_a_store_with_a_key_makes_topics(open_: ExitStack, tmp_path: Path) -> None:
    allowed, away = tmp_path / "allowed", tmp_path / "away"
    allowed.mkdir()
    options = {}
    for name in ("tower", "store"):
        new_key(away, name, (name,))
        shutil.copy(away / f"{name}.key", allowed)
        secret = str(away / f"{name}.key_secret")
        options[name] = {"secret_key_file": secret, "allowed_keys": str(allowed)}
    tower = open_.enter_context(Tower(**ANY_PORTS, **options["tower"]))
    locked = Numbering(tmp_path / "locked", tower.tower, 9_000, **options["store"])
    open_.callback(locked.close)
    locked.create("flights", 2)
    assert len(locked.names("flights")) == 2

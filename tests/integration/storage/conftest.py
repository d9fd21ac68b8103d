"""A log with a clock that tests set, and what of its snapshots is in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from weakref import WeakSet

import pytest

from dafka_core.storage import Log
from dafka_core.storage.environment import Environment, Pin
from tests.integration.storage.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    with Log(tmp_path / "store", clock_us=clock) as opened:
        yield opened


@pytest.fixture
def pins(monkeypatch: pytest.MonkeyPatch) -> WeakSet[Pin]:
    """The snapshots in use, or of which a buffer is."""
    found: WeakSet[Pin] = WeakSet()
    pin = Environment.pin

    def noted(env: Environment) -> Pin:
        made = pin(env)
        found.add(made)
        return made

    monkeypatch.setattr(Environment, "pin", noted)
    return found

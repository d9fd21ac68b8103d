"""A log with a clock that tests set."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.storage import Log
from tests.integration.storage.staged import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Log]:
    with Log(tmp_path / "store", clock_us=clock) as opened:
        yield opened

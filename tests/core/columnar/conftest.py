"""A served log, and clients of it over both ways there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.columnar.client import StoreClient
from tests.core.columnar.hosts import Served, short_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def served(directory: Path) -> Iterator[Served]:
    with Served(directory) as running:
        yield running


@pytest.fixture(params=["unix", "tcp"])
def client(served: Served, request: pytest.FixtureRequest) -> StoreClient:
    return served.client(served.unix if request.param == "unix" else served.tcp)

"""A served log, and its clients over TCP and the socket."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import RecordBatch
from dafka_core.storage import Log
from tests.integration.flight.hosts import BLOCK_BYTES, BLOCKS, TP, Served, short_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def served(directory: Path) -> Iterator[Served]:
    with Served(directory) as running:
        yield running


@pytest.fixture
def large(directory: Path) -> Path:
    """A log of blocks with 200 records each, more than a connection buffers."""
    with Log(directory) as log:
        for block in range(BLOCKS):
            records = [os.urandom(BLOCK_BYTES // 200)] * 200
            log.append([RecordBatch.of(TP, block * 200, records)])
    return directory


@pytest.fixture(params=["unix", "tcp"])
def client(served: Served, request: pytest.FixtureRequest) -> StoreClient:
    return served.client(served.unix if request.param == "unix" else served.tcp)


@pytest.fixture
def logs() -> Iterator[LocalLogs]:
    opened = LocalLogs()
    yield opened
    opened.close()


@pytest.fixture
def filled(served: Served) -> Served:
    for end in (10_000, 20_000, 20_005):
        served.extend(end)
    return served

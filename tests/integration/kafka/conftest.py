"""A store with a gateway, in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from dafka_core import Store, Tower
from dafka_core.testing import wait_until
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.admin import admin_of
from tests.integration.kafka.locked import Locked

OFTEN: dict[str, Any] = {
    "beacon_interval_ms": 200,
    "peer_expiry_ms": 1_500,
    "sync_interval_ms": 200,
}


@pytest.fixture
def live_tower() -> Iterator[Tower]:
    sub, pub = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
    with Tower(sub_address=sub, pub_address=pub) as tower:
        yield tower


@pytest.fixture
def tower(live_tower: Tower) -> str:
    return live_tower.tower


@pytest.fixture
def store(tower: str, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", tower=tower) as store:
        yield store


@pytest.fixture
def other(store: Store, tower: str, tmp_path: Path) -> Iterator[Store]:
    """A second store, without a gateway."""
    with Store(tmp_path / "other", tower=tower) as other:
        wait_until(lambda: other.address in store.known.endpoints, "the stores meet")
        yield other


@pytest.fixture
def gateway(store: Store) -> Iterator[Gateway]:
    with Gateway(store, listen="127.0.0.1:0") as gateway:
        yield gateway


@pytest.fixture
def start(tower: str, tmp_path: Path) -> Iterator[Callable[..., tuple[Store, Gateway]]]:
    """Start a store with a gateway."""
    with ExitStack() as running:

        def make(name: str, **options: Any) -> tuple[Store, Gateway]:
            store = running.enter_context(Store(tmp_path / name, tower=tower, **OFTEN))
            return store, running.enter_context(Gateway(store, listen="127.0.0.1:0", **options))

        yield make


@pytest.fixture
def admin(gateway: Gateway) -> AdminClient:
    return admin_of(gateway)


@pytest.fixture
def locked(store: Store, tmp_path: Path) -> Iterator[Locked]:
    made = Locked(tmp_path, store)
    with made.gateway:
        yield made

"""A slow, stuck or broken disk is visible from outside while the store runs."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dafka_core import MetricsEndpoint, Store, StoreError, Tower, serve_metrics
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes import store_loop
from dafka_core.ops import health
from dafka_core.testing import wait_until
from tests.integration.ops.conftest import ANY_PORTS, ask

TP = TopicPartition("t", "A" * 32)


class Injected(NamedTuple):
    """A store with a log that waits at a gate before it writes, or raises."""

    store: Store
    endpoint: MetricsEndpoint
    gate: threading.Event
    errors: list[Exception]

    def put(self, offset: int) -> Any:
        return self.store.append_queue.put(RecordBatch.of(TP, offset, [b"v"]))


@pytest.fixture
def injected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Injected]:
    monkeypatch.setattr(health, "STUCK_S", 0.3)
    monkeypatch.setattr(store_loop, "SLOW_S", 0.1)
    gate, errors = threading.Event(), list[Exception]()
    gate.set()
    with (
        Tower(**ANY_PORTS) as tower,
        Store(tmp_path, tower=tower.tower) as store,
        serve_metrics(store) as endpoint,
    ):
        write = store.log.write

        def wait_and_write(entries: Any) -> Any:
            assert gate.wait(60.0)
            if errors:
                raise errors[0]
            return write(entries)

        monkeypatch.setattr(store.log, "write", wait_and_write)
        yield Injected(store, endpoint, gate, errors)
        gate.set()


def test_a_write_that_hangs_is_seen_while_it_does_and_its_slowness_afterwards(
    injected: Injected,
) -> None:
    url = injected.endpoint.url
    injected.gate.clear()
    future = injected.put(0)
    wait_until(lambda: "s so far" in ask(f"{url}/readyz").text)
    assert ask(f"{url}/readyz").status == 503
    assert ask(f"{url}/healthz").status == 200  # another start would not cure the disk
    injected.gate.set()
    assert future.result(60.0) == 1
    wait_until(lambda: ask(f"{url}/readyz").status == 200)
    told = json.loads(ask(f"{url}/readyz?json").text)["findings"]
    [warned] = [each for each in told if each["severity"] == "warning"]
    assert "in the last minute a write" in warned["sentence"]
    text = ask(f"{url}/metrics").text
    labels = f'{{kind="store",node="{injected.store.address}"}}'
    assert f"dafka_store_slow_appends_total{labels} 1.0" in text
    assert f"dafka_node_warnings{labels} 1.0" in text


def test_a_write_that_fails_ends_the_store_and_the_reason_is_told(injected: Injected) -> None:
    url = injected.endpoint.url
    injected.errors.append(StoreError("d", "No space left on device"))
    with pytest.raises(StoreError):
        injected.put(0).result(60.0)
    wait_until(lambda: ask(f"{url}/healthz").status == 503)
    assert "No space left on device" in ask(f"{url}/healthz").text
    text = ask(f"{url}/metrics").text
    assert f'dafka_node_healthy{{kind="store",node="{injected.store.address}"}} 0.0' in text
    with pytest.raises(StoreError):
        injected.store.wait(60.0)

"""Requests that end because of limits, or when the service closes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import flight

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight import limits
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.requests import GetRequest, PutRequest, RecordRange
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import (
    BLOCKS,
    PARTITION,
    TOPIC,
    TP,
    Served,
    array,
    everything,
    total,
)


def test_more_streams_than_there_may_be(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("MAX_GETS", 3), ("MAX_PUTS", 2), ("MAX_WAITS", 2)):
        monkeypatch.setattr(limits, name, count)
    monkeypatch.setattr(limits, "QUEUE_S", 0)
    with Served(large) as served:
        client = served.client()
        streams = [everything(client, max_records=10) for _ in range(3)]
        for each in streams:
            next(each)
        with pytest.raises(StoreUnreachableError, match="already serves 3 gets"):
            list(everything(client))
        plain = served.plain()
        request = GetRequest((RecordRange(TOPIC, PARTITION, 0, 1),))
        with pytest.raises(flight.FlightUnavailableError, match="serves 3 gets") as busy:
            plain.do_get(flight.Ticket(request.packed())).read_all()
        assert json.loads(busy.value.extra_info)["error"] == "busy"
        streams[0].close()
        wait_until(lambda: served.service.context.gets.free == 1)
        assert total(everything(client)) == BLOCKS * 200
        for each in streams:
            each.close()

        puts = [client.put(TopicPartition("u", f"P{n}"), 0, timeout_s=PATIENCE_S) for n in range(3)]
        for each in puts[:2]:
            each.write(array(0, 1))
            each.wait_durable(1, timeout_s=PATIENCE_S)
        with pytest.raises(StoreUnreachableError, match="already serves 2 puts"):
            puts[2].finish(PATIENCE_S)
        for each in puts:
            each.close()

        def wait() -> None:
            with pytest.raises(StoreUnreachableError):
                client.wait(TP, 99_999, timeout_s=60)

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: served.service.context.waits.free == 0)
        with pytest.raises(StoreUnreachableError, match="already serves 2 waits"):
            client.wait(TP, 99_999, timeout_s=60)
        served.service.close()
        for thread in threads:
            thread.join()


def test_a_service_closes_at_once_whatever_its_clients_do(large: Path) -> None:
    with Served(large) as served:
        client = served.client()
        reading = everything(client, max_records=10)
        next(reading)
        over_tcp = served.client(served.tcp)
        slow = everything(over_tcp)
        next(slow)
        idle = served.plain()
        list(idle.list_actions())
        writing = client.put(TopicPartition("u", "P"), 0, timeout_s=PATIENCE_S)
        writing.write(array(0, 1))
        writing.wait_durable(1, timeout_s=PATIENCE_S)
        served.backend.open.clear()
        writing.write(array(1, 2))
        descriptor = flight.FlightDescriptor.for_command(PutRequest("v", "P", 0).packed())
        silent = idle.do_put(descriptor, VALUES_SCHEMA)
        waiting = threading.Thread(
            target=_expect_unreachable, args=(lambda: client.wait(TP, 99_999, timeout_s=60),)
        )
        waiting.start()
        wait_until(lambda: served.service.context.waits.free == limits.MAX_WAITS - 1)
        before = time.monotonic()
        served.service.close()
        assert time.monotonic() - before < 3
        assert not (large / "flight.sock").exists()
        waiting.join()
        for stream in (reading, slow):
            with pytest.raises(StoreUnreachableError):
                list(stream)
        with pytest.raises(StoreUnreachableError):
            writing.finish(5)
        writing.close()
        with pytest.raises(flight.FlightUnavailableError):
            silent[0].close()
        served.service.close()
        threads = {thread.name for thread in threading.enumerate()}
        assert "dafka-flight-acks" not in threads


def _expect_unreachable(work: Callable[[], object]) -> None:
    with pytest.raises(StoreUnreachableError):
        work()

"""The addresses of a service, and its shutdown."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.errors import ConfigError, StoreBusyError, StoreError, StoreUnreachableError
from dafka_core.flight import limits, server
from dafka_core.flight.backup_requests import BackupRequest, CheckRequest
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.requests import PutRequest
from dafka_core.flight.server import FlightService
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.storage import PartitionStatistics
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import (
    PARTITION,
    STORE,
    TOPIC,
    TP,
    Served,
    array,
    everything,
    put_all,
    read,
    values,
)


def service(served: Served, **options: Any) -> FlightService:
    given: dict[str, Any] = {"bind_host": "127.0.0.1", "port": 0, "socket_path": None}
    return FlightService(ServerContext(served.log, served.backend, STORE, dict), **given | options)


def test_it_listens_at_a_port_alone(served: Served) -> None:
    with service(served) as alone:
        assert alone.location.locations == (f"grpc://127.0.0.1:{alone.port}",)
        with StoreClient(alone.location) as client:
            assert client.describe(timeout_s=PATIENCE_S) == alone.location


def test_it_listens_at_a_port_that_is_named(served: Served) -> None:
    with service(served) as first:
        port = first.port
    with service(served, port=port) as second:
        assert second.port == port


def test_a_port_or_host_that_cannot_be_had_is_refused(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"cannot listen at 127\.0\.0\.1: .*in use; 0 lets"):
            service(served, port=port)
    with pytest.raises(ConfigError, match=r"cannot listen at 203\.0\.113\.1"):
        service(served, bind_host="203.0.113.1")
    with pytest.raises(ConfigError, match="cannot listen at"):
        service(served, bind_host="no.such.host.invalid")
    assert capfd.readouterr().err == ""


def test_a_socket_that_was_left_behind_is_replaced(served: Served) -> None:
    path = served.directory / "again.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with service(served, socket_path=str(path)) as again:
        location = StoreLocation(
            STORE, again.location.locations[:1], machine=served.location.machine
        )
        assert served.client(location).describe(timeout_s=PATIENCE_S) == again.location
    assert not path.exists()


def test_a_file_that_is_no_socket_stays(served: Served) -> None:
    path = served.directory / "again.sock"
    path.write_text("kept")
    with pytest.raises(ConfigError, match=f"cannot listen at grpc.unix://{path}"):
        service(served, socket_path=str(path))
    assert path.read_text() == "kept"


def test_a_session_that_cannot_be_written_ends_it(served: Served) -> None:
    (served.directory / "session").unlink()
    (served.directory / "session").mkdir()
    path = served.directory / "again.sock"
    with pytest.raises(StoreError, match="file session"):
        service(served, socket_path=str(path))
    assert not path.exists()


def test_signals_are_left_alone(directory: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    got = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: got.append(threading.current_thread()))
    try:
        with Served(directory) as served:
            client = served.client()
            client.describe(timeout_s=PATIENCE_S)
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(lambda: got)
            client.describe(timeout_s=PATIENCE_S)
            now = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
            assert now == before
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert got == [threading.main_thread()]


def test_a_close_does_not_wait_for_ever(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A backend that never answers is abandoned."""
    monkeypatch.setattr(server, "CLOSE_TIMEOUT_S", 0.5)
    released = threading.Event()
    monkeypatch.setattr(served.backend, "wait", lambda *_: released.wait() and 0)
    client = served.client()
    threading.Thread(target=_wait, args=(client,), daemon=True).start()
    wait_until(lambda: served.service.context.waits.free == limits.MAX_WAITS - 1)
    served.service.close()
    assert "do not end; they are left to themselves" in caplog.text
    released.set()
    wait_until(lambda: served.service.context.waits.free == limits.MAX_WAITS)


def _wait(client: StoreClient) -> None:
    with pytest.raises(StoreUnreachableError):
        client.wait(TP, 1, timeout_s=60)


DEFAULT_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@pytest.fixture
def filled(served: Served) -> Served:
    """Two topics, one of which is a prefix of the other, and three partitions."""
    served.extend(3_000)
    served.extend(3_005)
    served.extend(7, partition="Q")
    served.extend(9, topic="tt")
    served.log.trim(TP, 5)
    return served


def path(*names: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_path(*names)


def command(**members: Any) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps({"v": 1} | members).encode())


def test_partitions_are_listed(filled: Served) -> None:
    client = filled.plain()
    found = list(client.list_flights())
    assert [info.descriptor for info in found] == [path("t", "P"), path("t", "Q"), path("tt", "P")]
    assert [info.total_records for info in found] == [3_000, 7, 9]
    for info in found:
        assert info.schema == DEFAULT_SCHEMA
        assert info.total_bytes > 0
        (endpoint,) = info.endpoints
        assert client.do_get(endpoint.ticket).read_all().num_rows == info.total_records
    only = list(client.list_flights(b'{"v": 1, "topic": "tt"}'))
    assert [info.descriptor for info in only] == [path("tt", "P")]
    assert list(client.list_flights(b'{"v": 1, "topic": "other"}')) == []
    assert len(list(client.list_flights(b'{"v": 1}'))) == 3


def test_a_damaged_partition_does_not_hide_the_others(filled: Served) -> None:
    tp = TopicPartition("t", "Q")
    [(_, _, [(_, position, _)])], lease = filled.log.lease([(tp, 0, 1)], max_blocks=1, max_bytes=1)
    assert lease is not None
    filled.log.end_lease(lease.id)
    with (filled.log.directory / "data.mdb").open("r+b") as file:
        file.seek(position)
        assert file.read(4) == b"DafB"
        file.seek(position)
        file.write(b"!")
    with StoreClient(filled.location) as client:
        first, damaged, other = client.facts(None, timeout_s=PATIENCE_S)
    assert damaged == PartitionStatistics(*tp, 0, 7, 7, 0, None, None)
    assert first.size_bytes > 0
    assert other.first_time_us is not None
    assert filled.plain().get_flight_info(path("t")).total_records == 3_007
    assert filled.log.healer.damaged == {tp}


def test_the_info_of_a_partition(filled: Served) -> None:
    client = filled.plain()
    info = client.get_flight_info(path(TOPIC, PARTITION))
    facts = filled.log.statistics(TP)
    assert facts is not None
    expected = {
        "v": 1,
        "topic": TOPIC,
        "partition": PARTITION,
        "earliest": 5,
        "end": 3_005,
        "records": 3_000,
        "bytes": facts.size_bytes,
        "first_time_us": facts.first_time_us,
        "last_time_us": facts.last_time_us,
        "client": "",
    }
    assert json.loads(info.app_metadata) == expected
    assert json.loads(info.endpoints[0].app_metadata) == expected
    assert facts.last_time_us is not None
    assert abs(facts.last_time_us - time.time_ns() // 1_000) < 60_000_000
    assert (info.total_records, info.total_bytes) == (3_000, facts.size_bytes)
    assert info.ordered
    assert info.schema == client.get_schema(path(TOPIC, PARTITION)).schema == DEFAULT_SCHEMA
    assert info.descriptor == path(TOPIC, PARTITION)
    table = client.do_get(info.endpoints[0].ticket).read_all()
    assert table["value"].to_pylist() == values(5, 3_005)
    assert table["offset"].to_pylist() == list(range(5, 3_005))


def test_the_info_of_a_topic_has_an_endpoint_for_each_partition(filled: Served) -> None:
    client = filled.plain()
    info = client.get_flight_info(path(TOPIC))
    told = json.loads(info.app_metadata)
    assert (told["topic"], told["partitions"], told["records"]) == (TOPIC, 2, 3_007)
    assert told["bytes"] == info.total_bytes
    assert told["first_time_us"] <= told["last_time_us"]
    assert [json.loads(each.app_metadata)["partition"] for each in info.endpoints] == ["P", "Q"]
    rows = [client.do_get(each.ticket).read_all().num_rows for each in info.endpoints]
    assert rows == [3_000, 7]
    assert not info.ordered


def test_a_command_says_more_than_a_path(filled: Served) -> None:
    client = filled.plain()
    descriptor = command(
        topic=TOPIC, partition="Q", columns=["offset", "topic"], max_records=2, max_bytes=1_000
    )
    info = client.get_flight_info(descriptor)
    assert info.schema.names == ["offset", "topic"]
    batches = [chunk.data for chunk in client.do_get(info.endpoints[0].ticket)]
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 1]
    assert batches[0].schema == info.schema == client.get_schema(descriptor).schema
    assert client.get_flight_info(command(topic=TOPIC)).total_records == 3_007


def test_a_partition_without_records(filled: Served) -> None:
    filled.log.trim(TopicPartition(TOPIC, "Q"), 7)
    info = filled.plain().get_flight_info(path(TOPIC, "Q"))
    told = json.loads(info.app_metadata)
    assert (told["earliest"], told["end"], told["records"]) == (7, 7, 0)
    assert (told["first_time_us"], told["last_time_us"]) == (None, None)
    assert filled.plain().do_get(info.endpoints[0].ticket).read_all().num_rows == 0


def test_names_that_are_no_texts_are_described_by_commands(filled: Served) -> None:
    odd = b"\xff".decode("utf-8", "surrogateescape")
    filled.extend(3, topic="odd", partition=odd)
    client = filled.plain()
    (info,) = client.list_flights(b'{"v": 1, "topic": "odd"}')
    assert json.loads(info.descriptor.command)["partition"] == odd
    again = client.get_flight_info(info.descriptor)
    assert client.do_get(again.endpoints[0].ticket).read_all()["value"].to_pylist() == values(0, 3)


@pytest.mark.parametrize(
    ("what", "error"),
    [("get_flight_info", flight.FlightServerError), ("get_schema", pa.ArrowInvalid)],
)
def test_what_is_not_there_is_named(filled: Served, what: str, error: type[Exception]) -> None:
    ask = getattr(filled.plain(), what)
    with pytest.raises(error, match="'topic' = 'x': the store has no such"):
        ask(path("x"))
    with pytest.raises(error, match="'partition' = 'x': the store has no such"):
        ask(path("t", "x"))


def test_locations_are_those_that_the_client_can_reach(filled: Served) -> None:
    unix, tcp = filled.location.locations
    for location, expected in ((unix, [unix, tcp]), (tcp, [tcp])):
        with flight.connect(location) as client:
            info = client.get_flight_info(path(TOPIC))
            found = [each.uri.decode() for each in info.endpoints[0].locations]
            assert found == expected
            for uri in found:
                with flight.connect(uri) as other:
                    assert other.do_get(info.endpoints[0].ticket).read_all().num_rows == 3_000


def test_a_client_is_told_the_same(filled: Served) -> None:
    with StoreClient(filled.location) as client:
        everything = client.facts(None, timeout_s=PATIENCE_S)
        topic = client.facts(TOPIC, timeout_s=PATIENCE_S)
        assert client.facts("no such topic", timeout_s=PATIENCE_S) == []
    assert [each.tp for each in everything] == [*(each.tp for each in topic), ("tt", PARTITION)]
    for each in everything:
        facts = filled.log.statistics(each.tp)
        assert facts is not None
        assert each == facts
    filled.close()
    with StoreClient(filled.location) as client, pytest.raises(StoreUnreachableError):
        client.facts(None, timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("streams", "ask"),
    [
        ("gets", lambda client: list(read(client, 0, 5))),
        ("puts", lambda client: put_all(client, 5, array(5, 6))),
        ("waits", lambda client: client.wait(TP, 6, timeout_s=0)),
        ("commits", lambda client: client.commit([], timeout_s=PATIENCE_S)),
        ("backups", lambda client: list(client.get(BackupRequest().packed(), iter, PATIENCE_S))),
        ("backups", lambda client: client.ask(PATIENCE_S, CheckRequest((TP,)))),
    ],
)
def test_more_streams_than_there_may_be(
    served: Served, monkeypatch: pytest.MonkeyPatch, streams: str, ask: Callable[[Any], object]
) -> None:
    monkeypatch.setattr(limits, "QUEUE_S", 0)
    served.extend(5)
    client, limiter = served.client(), getattr(served.service.context, streams)
    permits = [limiter.take() for _ in range(limiter.count)]
    with pytest.raises(StoreBusyError, match=f"already serves {limiter.count} {streams}"):
        ask(client)
    permits.pop().close()
    ask(client)
    wait_until(lambda: limiter.free == 1)


def test_a_service_closes_at_once_whatever_its_clients_do(
    large: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
        served.service.close()
        assert "left to themselves" not in caplog.text
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

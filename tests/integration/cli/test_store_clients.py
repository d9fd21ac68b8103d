"""Commands that list stores' content without a mesh, or behind a firewall."""

from collections.abc import Collection
from pathlib import Path

import pytest

from dafka_core import DafkaError, NoStoreError, Producer, Reader, Store, Tower
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import PartitionInfo
from dafka_core.nodes import addresses, mesh
from tests.integration.cli.processes import PATIENCE_S, listed, refusal, run, succeed
from tests.integration.nodes.peers import ANY_PORTS

COUNT = 3


def uri_of(store: Store) -> str:
    return next(each for each in store.locations if each.startswith("grpc://"))


def fill(tower: Tower, topic: str) -> None:
    with Producer(topic, tower=tower.tower) as producer:
        producer.publish_many([b"x"] * COUNT)
        producer.flush(PATIENCE_S)


def test_stores_are_asked_where_the_option_says(tmp_path: Path) -> None:
    with Tower(**ANY_PORTS) as tower, Store(tmp_path, tower=tower.tower) as store:
        fill(tower, "one")
        at = ("--stores", uri_of(store), "--tower", "127.0.0.1:1:1")  # where no tower is
        assert listed(run("topics", *at))[0][:3] == ["one", "1", "3"]
        assert listed(run("heads", "one", *at))[0][1:] == ["0", "3"]
        assert listed(run("stores", *at))[0][0] == store.address
        succeed("staged", *at)
    assert "no connection to" in refusal(1, "topics", *at)
    assert "must be like grpc://HOST:PORT" in refusal(2, "topics", "--stores", "localhost:1")


def test_that_a_topic_is_unknown_is_said_though_the_others_cannot_be_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Collection[str] | None] = []
    partitions, heads = Reader.partitions, StoreClient.heads

    def of_reader(
        reader: Reader, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        looks.append(topics)
        if topics is None:
            raise NoStoreError([], timeout_s)
        return partitions(reader, topics, timeout_s=timeout_s)

    def of_client(
        client: StoreClient, topics: Collection[str] | None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        looks.append(topics)
        if topics is None:
            raise StoreUnreachableError(client.location.store, "it has gone")
        return heads(client, topics, timeout_s=timeout_s)

    with Tower(**ANY_PORTS) as tower, Store(tmp_path, tower=tower.tower) as store:
        fill(tower, "one")
        monkeypatch.setattr(Reader, "partitions", of_reader)
        monkeypatch.setattr(StoreClient, "heads", of_client)
        for uris in ("", uri_of(store)):
            finder = StoreFinder(uris, PATIENCE_S, {"tower": tower.tower})
            unknown = pytest.raises(DafkaError, match=r"^no store has records of topic 'on'$")
            with unknown, finder.holdings("on"):
                pass
            assert looks.pop() is None


def test_stores_that_cannot_connect_are_asked_by_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def bound_elsewhere(*where: object) -> tuple[str, int]:
        return "127.0.0.9", addresses.bound(*where)[1]  # type: ignore[arg-type] # without a node

    with Tower(**ANY_PORTS) as tower:
        with Store(tmp_path / "d", tower=tower.tower) as store:
            fill(tower, "one")
            monkeypatch.setattr(mesh, "bound", bound_elsewhere)
            options = {"tower": tower.tower}
            finder = StoreFinder("", PATIENCE_S, options)
            with finder.holdings() as ([info], _):
                assert (info.topic, info.end) == ("one", COUNT)
            assert f"{store.address} cannot connect to tcp://127.0.0.9" in capfd.readouterr().err
            with finder.clients() as clients:
                assert len(clients) == 1
            monkeypatch.undo()
        with Store(tmp_path / "e", tower=tower.tower, flight_port="off"):
            monkeypatch.setattr(mesh, "bound", bound_elsewhere)
            failed = pytest.raises(NoStoreError, match="cannot connect to this node")
            with failed, StoreFinder("", 3.0, options).holdings():
                pass
        with Reader(**options) as reader, pytest.raises(NoStoreError, match="no store was heard"):
            reader.partitions(timeout_s=0.1)

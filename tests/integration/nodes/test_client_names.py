"""The name of the client that writes a partition: a producer sends it, stores keep it."""

import os
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from dafka_core import ConfigError, InvalidRequestError, Store
from dafka_core.config.node_options import ProducerOptions
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import NO_VERSION, StagedTransaction, TopicPartition
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.messages import RecordMessage
from dafka_core.protocol.record_limits import announcement
from dafka_core.testing.waiting import wait_until
from tests.integration.nodes.conftest import Produce, Raw
from tests.integration.nodes.peers import PATIENCE_S, new_address


def clients_at(store: Store) -> dict[str, str]:
    """Each partition's client, as the store's Flight service lists it."""
    with StoreClient(StoreLocation(store.address, store.locations)) as client:
        found = client.facts(None, timeout_s=PATIENCE_S)
    return {each.partition: each.client for each in found}


def test_a_store_keeps_the_names_of_producers_that_have_ended(
    tower: str, tmp_path: Path, produce: Produce
) -> None:
    with Store(tmp_path, tower=tower) as store:
        named, plain = produce("t", client_name="été 7"), produce("t")
        for producer in (named, plain):
            producer.publish(b"x")
            producer.close()
        expected = {named.address: "été 7", plain.address: f"{socket.gethostname()}:{os.getpid()}"}
        wait_until(lambda: clients_at(store) == expected)
    with Store(tmp_path, tower=tower) as store:
        assert clients_at(store) == expected
        again = produce("t", address=named.address, client_name="its successor")
        again.publish(b"y")
        again.flush(PATIENCE_S)
        expected[named.address] = "its successor"
        wait_until(lambda: clients_at(store) == expected)


def test_a_node_without_a_name_is_stored_without_one(tower: str, tmp_path: Path, raw: Raw) -> None:
    with Store(tmp_path, tower=tower) as store:
        peer = raw()
        # As an attacker: a name with a line's end makes the announcement invalid.
        peer.subscribe(announcement("producer", peer.address, max_taken_bytes(0), "a\nb"))
        peer.wait_until_subscribed(subscription(RecordMessage))
        peer.send(RecordMessage("t", peer.address, 0, b"x"))
        wait_until(lambda: clients_at(store) == {peer.address: ""})


def test_a_put_over_flight_names_its_client(tower: str, tmp_path: Path) -> None:
    with Store(tmp_path, tower=tower) as store:
        location = StoreLocation(store.address, store.locations)
        with StoreClient(location) as client:
            tps = [TopicPartition("t", new_address()) for _ in range(2)]
            for tp, name, attempt in zip(tps, ("an app", "a task"), ("", "A" * 32), strict=True):
                with client.put(
                    tp, 0, client_name=name, attempt=attempt, timeout_s=PATIENCE_S
                ) as put:
                    put.write(pa.array([b"x"], pa.binary()))
                    put.finish(PATIENCE_S)
            client.commit(
                [StagedTransaction(*tps[1], "A" * 32, 0, 1, NO_VERSION)], timeout_s=PATIENCE_S
            )
            expected = {tps[0].partition: "an app", tps[1].partition: "a task"}
            wait_until(lambda: clients_at(store) == expected)
            for name in ("a\x1bb", "é" * 65):
                with pytest.raises(InvalidRequestError, match="client"):
                    client.put(tps[0], 1, client_name=name, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("name", ["a\nb", "x" * 129, 7])
def test_an_unusable_name_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="client_name"):
        ProducerOptions.build({"client_name": name})

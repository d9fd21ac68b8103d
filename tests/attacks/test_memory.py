"""One peer cannot fill the memory of a tower or a store, and honest nodes continue beside it.

Each victim is a process; its memory is compared with that before the attack.
"""

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
import zmq
from pyarrow import flight

from dafka_core import Consumer, Producer, Reader
from dafka_core.config.node_options import NodeOptions
from dafka_core.flight.requests import PutRequest
from dafka_core.security.key_files import SERVER_NAME, tls_pair
from dafka_core.testing import wait_until
from tests.attacks.bare import (
    MORE,
    announced,
    connected,
    endpoint_of_node,
    frame,
    send_until_ended,
    subscriptions,
)
from tests.attacks.world import Attacker, attacked
from tests.integration.cli.processes import ANY_PORTS, Dafka
from tests.integration.nodes.peers import PATIENCE_S
from tests.key_files import KeyDirectory

TINY = frame(b"x", MORE) * 20_000
LARGE = frame(bytes(4_000), MORE) * 20
"""Parts of a message that does not end."""

TOPIC_BYTES = 200
MAX_SUBSCRIBED_BYTES = NodeOptions().max_subscribed_bytes


class Victim(NamedTuple):
    """A process that is attacked."""

    process: Dafka
    host: str
    ports: tuple[int, ...]

    def memory_mib(self, line: str) -> int:
        path = Path(f"/proc/{self.process.process.pid}/status")
        return int(path.read_text(encoding="ascii").partition(f"{line}:")[2].split()[0]) >> 10

    def begin(self) -> int:
        """Count the largest size of the process from now on; return its size."""
        Path(f"/proc/{self.process.process.pid}/clear_refs").write_text("5", encoding="ascii")
        return self.memory_mib("VmRSS")


class World(NamedTuple):
    """A cluster in the open."""

    tower: str
    victims: dict[str, Victim]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Dafka("tower", *ANY_PORTS) as hub:
        tower = hub.ready()["tower"]
        host, *ports = tower.split(":")
        directory = tmp_path_factory.mktemp("store")
        with Dafka("store", "--dir", str(directory), "--tower", tower) as store:
            store.ready()
            at, port = endpoint_of_node(tower)
            towers = Victim(hub, host, tuple(map(int, ports)))
            yield World(tower, {"tower": towers, "store": Victim(store, at, (port,))})


def check_honest_work(world: World, topic: str) -> None:
    with Producer(topic, tower=world.tower) as producer:
        producer.publish_many([b"1", b"2"])
        producer.flush(PATIENCE_S)
    with Consumer(tower=world.tower, start="earliest") as consumer:
        consumer.subscribe(topic)
        found = [consumer.poll(PATIENCE_S) for _ in range(2)]
    assert [each and each.value for each in found] == [b"1", b"2"]


@pytest.mark.parametrize("part", [TINY, LARGE], ids=["tiny frames", "large frames"])
@pytest.mark.parametrize(
    ("name", "door", "kind"), [("tower", 0, b"PUB"), ("tower", 1, b"SUB"), ("store", 0, b"SUB")]
)
def test_a_message_without_an_end_ends_its_connection(
    world: World, name: str, door: int, kind: bytes, part: bytes
) -> None:
    """Memory grows by what arrives between two checks: 85 MiB here, more if a check is late."""
    victim = world.victims[name]
    before_mib = victim.begin()
    send_until_ended(connected(victim.host, victim.ports[door], kind), repeat(part))
    assert victim.memory_mib("VmHWM") - before_mib < 250
    check_honest_work(world, f"beside-{name}-{door}-{len(part)}")


@pytest.mark.parametrize(
    ("part", "most_mib"), [(TINY, 700), (LARGE, 1_500)], ids=["tiny frames", "large frames"]
)
def test_a_message_without_an_end_of_a_peer_that_is_announced_ends_its_connection(
    world: World, part: bytes, most_mib: int
) -> None:
    """It may be a record of 256 MiB, so that the quota is larger."""
    victim = world.victims["store"]
    before_mib = victim.begin()
    with announced(world.tower) as peer:
        send_until_ended(peer, repeat(part))
    assert victim.memory_mib("VmHWM") - before_mib < most_mib
    check_honest_work(world, f"beside-announced-{len(part)}")


@pytest.mark.parametrize(("name", "door"), [("tower", 1), ("store", 0)])
def test_subscriptions_without_an_end_end_their_connection(
    world: World, name: str, door: int
) -> None:
    """What arrives between two checks takes up to 500 MiB."""
    victim = world.victims[name]
    others_mib = {each: other.begin() for each, other in world.victims.items()}
    peer = connected(victim.host, victim.ports[door], b"SUB")
    send_until_ended(peer, subscriptions(TOPIC_BYTES))
    check_honest_work(world, f"beside-subscriptions-{name}")
    for each, before_mib in others_mib.items():
        most_mib = 1_500 if each == name else 50
        assert world.victims[each].memory_mib("VmHWM") - before_mib < most_mib


def test_a_tower_passes_on_only_subscriptions_to_beacons(world: World) -> None:
    """Subscriptions of strangers at a tower take no memory of nodes."""
    host, sub_port, pub_port = world.tower.split(":")
    with zmq.Context() as context, context.socket(zmq.XPUB) as node:
        node.set(zmq.RCVTIMEO, int(1_000 * PATIENCE_S))
        node.connect(f"tcp://{host}:{sub_port}")
        assert {node.recv() for _ in range(2)} == {b"\1A", b"\1B"}
        with context.socket(zmq.SUB) as stranger:
            stranger.subscribe(b"Bmade up")
            stranger.subscribe(b"B")
            stranger.connect(f"tcp://{host}:{pub_port}")
            endpoint_of_node(world.tower)  # a later subscription has been read
            assert stranger.poll(int(1_000 * PATIENCE_S))
        assert not node.poll(100)


@pytest.mark.parametrize("who", [Attacker.IN_THE_OPEN, Attacker.INSIDER])
def test_quotas_are_those_of_owners_of_keys_too(
    who: Attacker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Subscriptions count even if the key does not allow them, as ZeroMQ keeps them."""
    with attacked(tmp_path, who, b"M") as (world, raw):
        assert world.store is not None
        raw.wait_until_met(world.store.address)
        for number in range(MAX_SUBSCRIBED_BYTES // TOPIC_BYTES + 1):
            raw.subscribe(b"M%d" % number + bytes(TOPIC_BYTES))
        wait_until(lambda: "which subscribes to more than" in caplog.text)

        def is_refused() -> bool:
            raw.send_frames([b"M" + bytes(10)] * 4)
            return "sends a message of too many frames" in caplog.text

        wait_until(is_refused)
        if who is Attacker.INSIDER:
            assert "with key mallory, which" in caplog.text
        world.publish()


def test_a_compressed_batch_is_refused_and_its_memory_is_returned(world: World) -> None:
    """13 kB of zstd take 400 MiB of memory once they are opened."""
    victim = world.victims["store"]
    before_mib = victim.begin()
    with Reader(tower=world.tower) as reader:
        wait_until(reader.endpoints, "the store is discovered")
        ((*_, uri),) = reader.endpoints().values()
    schema = pa.schema([("value", pa.binary())])
    batch = pa.record_batch([pa.array([bytes(1 << 20)] * 400, pa.binary())], schema)
    command = flight.FlightDescriptor.for_command(PutRequest("compressed", "P", 0).packed())
    write_options = pa.ipc.IpcWriteOptions(compression="zstd")
    with flight.connect(uri) as client:
        options = flight.FlightCallOptions(write_options=write_options)
        writer, _ = client.do_put(command, schema, options)
        with pytest.raises(flight.FlightError, match="400 records, 419430400 bytes"):  # noqa: PT012
            writer.write_batch(batch)
            writer.close()
    wait_until(lambda: victim.memory_mib("VmRSS") - before_mib < 250, "the memory is returned")
    check_honest_work(world, "beside-compressed")


@pytest.mark.parametrize("name", [None, "other"])
def test_a_request_of_a_stranger_is_not_read(name: str | None, tmp_path: Path) -> None:
    """gRPC would read 100 MB before it asks whether the sender may send them."""
    keys = KeyDirectory(tmp_path)
    keys.make("other", "admin")
    own = {} if name is None else tls_pair(keys.pair(name).secret)._asdict()
    pair = {"cert_chain": own["certificate"], "private_key": own["private_key"]} if own else {}
    roots = tls_pair(keys.pair("store").secret).certificate
    given = {
        who: [f"--{key.replace('_', '-')}={value}" for key, value in keys.of(who).items()]
        for who in ("tower", "store")
    }
    with (
        Dafka("tower", *ANY_PORTS, *given["tower"]) as hub,
        Dafka(
            *("store", "--dir", str(tmp_path / "log"), "--tower", hub.ready()["tower"]),
            *given["store"],
        ) as store,
    ):
        uri = store.ready()["flight"][-1]
        victim = Victim(store, "", ())
        before_mib = victim.begin()
        with flight.FlightClient(
            uri, tls_root_certs=roots, override_hostname=SERVER_NAME, **pair
        ) as client:
            for _ in range(3):
                with pytest.raises(flight.FlightUnavailableError, match="Socket closed"):
                    list(client.do_action(flight.Action("dafka.heads.v1", bytes(100 << 20))))
        assert victim.memory_mib("VmHWM") - before_mib < 30

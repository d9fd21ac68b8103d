"""The addresses at which nodes can be reached."""

import re
from math import inf

import pytest

from dafka_core import ConfigError, Producer, Reader, Store, Tower
from dafka_core.config.node_options import NodeOptions, ReaderOptions, StoreOptions
from dafka_core.nodes.addresses import new_address, options_beside, own_host
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S


def test_addresses_look_like_those_of_c_nodes() -> None:
    assert re.fullmatch(r"[0-9A-F]{32}", new_address())
    assert new_address() != new_address()


@pytest.mark.parametrize(
    ("tower", "host", "own"),
    [
        ("127.0.0.1", "auto", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.2", "127.0.0.2"),
        ("nosuch.invalid,127.0.0.1", "auto", "127.0.0.1"),
        ("[::1]", "auto", "[::1]"),
    ],
)
def test_auto_takes_the_address_that_reaches_the_tower(tower: str, host: str, own: str) -> None:
    assert own_host(NodeOptions.build({"tower": tower, "host": host})) == own


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])
def test_a_wildcard_address_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="is not an address that peers can connect to"):
        Reader(host=host)


def test_a_node_with_a_port_of_its_own_is_met_at_once_when_it_is_started_again(
    tmp_path: object,
) -> None:
    with Tower(**ANY_PORTS) as tower, Store(str(tmp_path), tower=tower.tower) as store:
        with Reader(tower=tower.tower) as first:
            port = first.mesh.beacon.port
        for _ in range(3):
            with Reader(tower=tower.tower, port=port) as reader:
                assert reader.mesh.beacon.port == port
                assert reader.partitions(timeout_s=PATIENCE_S) == []
                assert reader.stores() == [store.address]
        with Producer("t", tower=tower.tower, port=port) as producer:
            producer.publish(b"reached")
            producer.flush(PATIENCE_S)


def test_a_peer_with_a_host_name_may_restart_without_a_warning(
    tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"host": "localhost", "port": "0"}
    with Tower(**ANY_PORTS) as tower, Reader(tower=tower.tower) as reader:
        peers = reader.mesh.peers
        for _ in range(3):
            with Store(str(tmp_path), tower=tower.tower, **options) as store:
                assert reader.partitions(timeout_s=PATIENCE_S) == []
                endpoint = store.mesh.beacon.port
                options["port"] = str(endpoint)
                connection = peers._connections[f"tcp://localhost:{endpoint}"]
                wait_until(lambda: connection.made_at < inf)  # noqa: B023
            wait_until(lambda: connection.made_at == inf)  # noqa: B023
            wait_until(lambda: not peers._doubtful)
    assert peers.renewal_count == 0
    assert "made anew" not in caplog.text


def test_towers_that_cannot_be_found_are_named() -> None:
    with pytest.raises(ConfigError, match=r"none can be reached \(nosuch.invalid: .+\)") as refused:
        Reader(tower="nosuch.invalid", host="auto")
    assert (refused.value.option, refused.value.value) == ("tower", "nosuch.invalid:5556:5557")


@pytest.mark.parametrize(
    ("given", "port"), [("0", "0"), ("5000", "0"), ("5000-5000", "0"), ("5000-5009", "5000-5009")]
)
def test_a_node_beside_a_store_has_its_options_and_an_own_port(given: str, port: str) -> None:
    store = StoreOptions.build({"tower": "h", "port": given, "high_water_mark": 2_000})
    options = options_beside(store)
    other = ReaderOptions.build(options)
    assert (other.port, other.high_water_mark, other.tower) == (port, 2_000, store.tower)

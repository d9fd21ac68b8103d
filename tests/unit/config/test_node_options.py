"""Options of nodes: towers, ports, names, keys and limits."""

import pickle
from typing import Any

import pytest

from dafka_core.config.missing_stores import (
    EVERY_STORE,
    check_min_stores,
    described,
    parse_min_stores,
    warning,
)
from dafka_core.config.node_options import (
    NodeOptions,
    ReaderOptions,
    StoreLimitError,
    StoreOptions,
    TowerAddress,
    TowerOptions,
    parse_flight_port,
    parse_ports,
    parse_towers,
)
from dafka_core.errors import ConfigError
from dafka_core.model.name_limits import parse_partition, parse_topic
from dafka_core.model.records import KnownStore

HERE = TowerAddress("127.0.0.1", 5556, 5557)


@pytest.fixture(autouse=True)
def _no_tower_in_the_environment(no_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAFKA_TOWER", raising=False)


@pytest.mark.parametrize(
    ("given", "towers"),
    [
        (None, [HERE]),
        ("h", [TowerAddress("h", 5556, 5557)]),
        ("h:1:65535", [TowerAddress("h", 1, 65_535)]),
        ("[::1]", [TowerAddress("[::1]", 5556, 5557)]),
        ("[::1]:1:2", [TowerAddress("[::1]", 1, 2)]),
        ("a, b:1:2", [TowerAddress("a", 5556, 5557), TowerAddress("b", 1, 2)]),
        (["a", " b:1:2"], [TowerAddress("a", 5556, 5557), TowerAddress("b", 1, 2)]),
        (HERE, [HERE]),
        ((HERE, "b:1:2"), [HERE, TowerAddress("b", 1, 2)]),
    ],
)
def test_valid_towers(given: Any, towers: list[TowerAddress]) -> None:
    assert parse_towers(given) == tuple(towers)


@pytest.mark.parametrize(
    ("says", "given"),
    [
        ("must be HOST", ["", "a,", "a b", "h:1", "::1", "[::1", "tcp://h:1:2", "h:1:2\n3"]),
        ("must be HOST", ["h:1:-2", "h:1:123456", "h:٣:4"]),
        ("must have ports in 1 to 65535", ["h:0:1", "h:1:65536"]),
        ("must name at least one tower", [[], b"h", 5]),
    ],
)
def test_invalid_towers(says: str, given: list[Any]) -> None:
    for each in given:
        with pytest.raises(ValueError, match=says):
            parse_towers(each)


def test_the_environment_names_the_default_towers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_TOWER", "a:1:2,b:3:4")
    named = (TowerAddress("a", 1, 2), TowerAddress("b", 3, 4))
    assert NodeOptions.build({}).tower == NodeOptions().tower == named
    assert NodeOptions.build({"tower": "c:5:6"}).tower == (TowerAddress("c", 5, 6),)
    monkeypatch.setenv("DAFKA_TOWER", "")
    assert NodeOptions.build({}).tower == (HERE,)
    monkeypatch.setenv("DAFKA_TOWER", "a:b")
    for given in ({}, {"tower": None}):
        with pytest.raises(ConfigError, match=r"^environment variable 'DAFKA_TOWER' = 'a:b': must"):
            NodeOptions.build(given)


def test_duplicate_towers_are_dropped() -> None:
    assert parse_towers(f"a, {HERE}, a:5556:5557") == (TowerAddress("a", 5556, 5557), HERE)


@pytest.mark.parametrize("given", ["auto", "*", "0.0.0.0", "a.b-c.example.", "[::1]", "x" * 63])
def test_a_host_is_a_name_or_an_address(given: str) -> None:
    assert NodeOptions.build({"host": given}).host == given
    assert NodeOptions.build({"host": "::1"}).host == "[::1]"


@pytest.mark.parametrize("given", ["", " ", "a b", "a..b", "-", "x" * 64, "h:1", "tcp://h", "ä"])
def test_invalid_hosts(given: str) -> None:
    with pytest.raises(ConfigError, match="must be HOST"):
        NodeOptions.build({"tower": f"{given}:1:2"})
    with pytest.raises(ConfigError, match="must be a host name, an address or auto"):
        NodeOptions.build({"host": given})


@pytest.mark.parametrize(
    "option", ["tower_timeout_s", "beacon_interval_ms", "peer_expiry_ms", "high_water_mark"]
)
def test_numbers_above_the_limits_of_the_system_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="must be at most"):
        NodeOptions.build({option: "9" * 20})


def test_a_tower_has_two_endpoints() -> None:
    [tower] = parse_towers("[::1]:1:2")
    assert (tower.sub_endpoint, tower.pub_endpoint) == ("tcp://[::1]:1", "tcp://[::1]:2")
    assert parse_towers(str(tower)) == (tower,)


def test_names_respect_the_limits_of_the_wire() -> None:
    assert parse_topic("t" * 255) == "t" * 255
    assert parse_partition("P") == "P"
    assert parse_topic(r"a\x0a\xff\x5cb\c") == "a\n\udcff\\b\\c"
    for parse in (parse_topic, parse_partition):
        for name in ("", "x" * 256, "é" * 128, "a\0b", "\ud800", r"a\x00"):
            with pytest.raises(ValueError, match=r"(topic|address).* must "):
                parse(name)
        for other in (b"t", None, 7):
            with pytest.raises(ValueError, match="must be a text"):
                parse(other)


@pytest.mark.parametrize(
    ("given", "port"), [("0", "0"), (5_000, "5000"), (" 65535 ", "65535"), ("OFF", "off")]
)
def test_valid_ports_of_flight(given: object, port: str) -> None:
    assert parse_flight_port(given) == port
    assert StoreOptions.build({"flight_port": given}).flight_port == port


@pytest.mark.parametrize(
    "given", ["", "65536", "-1", "1.0", "on", None, 1.0, "²", "٣", "9" * 5_000]
)
def test_invalid_ports_of_flight(given: object) -> None:
    with pytest.raises(ConfigError, match=r"must be a port \(0 lets the system choose\) or off"):
        StoreOptions.build({"flight_port": given})


@pytest.mark.parametrize("given", ["a,", ",", "a, ,b", " "])
def test_no_query_without_a_name_is_waited_for(given: str) -> None:
    with pytest.raises(ConfigError, match="must be names or patterns, separated by commas"):
        StoreOptions.build({"protected_queries": given})


def test_a_tower_has_no_option_tower() -> None:
    with pytest.raises(ConfigError, match="unknown option"):
        TowerOptions.build({"tower": "h"})


@pytest.mark.parametrize(
    ("given", "ports"), [(0, [0]), ("5000", [5_000]), (" 20000-20002 ", [20_000, 20_001, 20_002])]
)
def test_valid_ports(given: object, ports: list[int]) -> None:
    assert list(NodeOptions.build({"port": given}).ports) == ports


@pytest.mark.parametrize("given", ["", "x", "-1", "0-5", "7-6", "65536", "1-65536", "1-2-3", "٣"])
def test_invalid_ports(given: str) -> None:
    with pytest.raises(ValueError, match="must be a port"):
        parse_ports(given)


def test_one_option_without_the_other_is_refused() -> None:
    for table in (ReaderOptions, TowerOptions):
        with pytest.raises(ConfigError, match="must name the directory of allowed keys"):
            table.build({"secret_key_file": "f"})
        with pytest.raises(ConfigError, match="set option secret_key_file"):
            table.build({"allowed_keys": "d"})


def test_limits_have_names() -> None:
    limits = StoreOptions.build({"max_topics": "7"}).store_limits
    assert limits["max_topics"] == 7
    assert limits["max_key_bytes"] == 0
    assert all(name.startswith("max_") for name in limits)


def test_an_invalid_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="'max_partitions' = 0: must be at least 1"):
        StoreOptions.build({"max_partitions": 0})


def test_the_error_names_the_limit_and_the_remedy() -> None:
    error = StoreLimitError("t", "P", "O", "max_topics", 7)
    assert str(pickle.loads(pickle.dumps(error))) == (
        "topic 't', partition P: the store accepts no records of it, by its option max_topics = 7 "
        "(owner O): free space there with retention or a deletion, or raise the option"
    )


AWAY = KnownStore("A" * 32, "tcp://10.0.0.7:40101", 1_700_000_000_000_000)
ONLY_NAME = KnownStore("B\n")


def test_a_store_is_described_by_its_endpoint_and_last_sign_of_life() -> None:
    heard = "last seen 2023-11-14T22:13:20Z"
    assert described(AWAY) == f"store {'A' * 32} (tcp://10.0.0.7:40101, {heard})"
    assert described(ONLY_NAME) == "store B\\x0a (never seen)"
    never = KnownStore("S", "", 2**63 - 1)
    assert described(never) == "store S (last seen 9223372036854775 ms after 1970)"
    assert "records that only it has are missing from this result" in warning(AWAY)
    assert f"'dafka store forget {'A' * 32}'" in warning(AWAY)


@pytest.mark.parametrize(("given", "meant"), [("all", EVERY_STORE), (" ALL ", EVERY_STORE), (3, 3)])
def test_valid_numbers_of_stores(given: object, meant: int) -> None:
    assert parse_min_stores(given) == meant


@pytest.mark.parametrize("given", ["0", "-1", "some", "", 1.5])
def test_invalid_numbers_of_stores(given: object) -> None:
    with pytest.raises(ValueError, match="or all"):
        parse_min_stores(given)


@pytest.mark.parametrize(
    ("least", "there", "missing"),
    [(None, 0, [AWAY]), (EVERY_STORE, 1, []), (1, 1, [AWAY]), (2, 2, [])],
)
def test_enough_stores(least: int | None, there: int, missing: list[KnownStore]) -> None:
    check_min_stores("minStores", least, there, missing)


@pytest.mark.parametrize(
    ("least", "there", "missing", "sentence"),
    [
        (EVERY_STORE, 1, [AWAY], "'minStores' = 'all': 1 store has answered; away: store AAAA"),
        (3, 2, [], "'minStores' = 3: 2 stores have answered; away: no other store is known"),
        (20, 2, [AWAY] * 13, " and 3 more"),
    ],
)
def test_too_few_stores(least: int, there: int, missing: list[KnownStore], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_min_stores("minStores", least, there, missing)
    assert sentence in str(caught.value)

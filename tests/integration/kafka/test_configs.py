"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource, ConfigSource
from confluent_kafka.cimpl import NewTopic

from dafka_core import Store
from dafka_core.config.topic_rules import parse_rules
from dafka_core.flight.requests import RetentionRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.testing.waiting import wait_until
from dafka_kafka import configs
from dafka_kafka.api import Api
from dafka_kafka.configs import CHANGEABLE
from dafka_kafka.errors import MAX_WHY, KafkaError
from dafka_kafka.gateway import Gateway
from dafka_kafka.gateways import node_id
from dafka_kafka.produce import ALL
from tests.integration.kafka.admin import PATIENCE_S, admin_of, create, delete, make, refusal
from tests.integration.kafka.locked import Locked, librdkafka
from tests.integration.kafka.one_request import Connection, tell
from tests.integration.kafka.produce_client import ProduceClient
from tests.unit.kafka.messages import NEWEST, rows, versions
from tests.unit.kafka.records.batches import batch

TOPIC, BROKER = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER
ERROR_AND_WHY = ("error_code", "error_message")


@pytest.fixture(autouse=True)
def _topic(request: pytest.FixtureRequest) -> None:
    if {"admin", "gateway"} & {*request.fixturenames}:
        make(request.getfixturevalue("admin"), "t")


def described(client: AdminClient, kind: Any, name: str) -> dict[str, Any]:
    resource = ConfigResource(kind, name)
    found = client.describe_configs([resource], request_timeout=PATIENCE_S)[resource]
    return dict(found.result(PATIENCE_S))


def produced(gateway: Gateway, topic: str, acks: int, *values: bytes) -> int:
    with ProduceClient(gateway.listens) as client:
        (answer,) = client.ask({(topic, 0): batch(values or [b"a"])}, acks=acks)
    return answer.error


def test_a_topics_configs_are_what_is_true_of_it(admin: AdminClient, store: Store) -> None:
    found = described(admin, TOPIC, "t")
    assert {name: each.value for name, each in found.items()} == {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed",
        "flush.messages": "1",
        "follower.replication.throttled.replicas": "",
        "leader.replication.throttled.replicas": "",
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.message.bytes": str(store.options.max_record_bytes),
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": str(2**63 - 1),
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "1",
        "remote.storage.enable": "false",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }
    assert all(each.is_default for each in found.values())
    changeable = {name for name, each in found.items() if not each.is_read_only}
    assert changeable == {*CHANGEABLE}
    with pytest.raises(KafkaException, match="topic 'u' does not exist"):
        described(admin, TOPIC, "u")
    store.retention.rules = parse_rules("u=1h t=7d,1GiB")
    found = described(admin, TOPIC, "t")
    assert found["retention.ms"].value == str(7 * 86_400_000)
    assert found["retention.bytes"].value == str(1 << 30)


def test_many_topics_are_described_while_others_are_served(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, threads = configs.topic_configs, set[str]()

    def noted(*args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return found(*args)

    monkeypatch.setattr(configs, "topic_configs", noted)
    topic = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    hidden = {"resource_type": 8, "resource_name": "t", "configuration_keys": None}
    for version in versions(Api.DESCRIBE_CONFIGS):
        resources = [topic] * 100 + [hidden]
        answer = tell(gateway, Api.DESCRIBE_CONFIGS, version, resources=resources)
        assert rows(answer, "results", "error_code") == [KafkaError.NONE] * 100 + [42]
        assert {len(each.configs) for each in answer.results[:100]} == {15}
    assert "dafka-kafka" not in threads  # the event loop's


def test_a_gateways_configs_are_its_options(store: Store) -> None:
    own = str(node_id(store.address))
    with Gateway(store, listen="127.0.0.1:0", num_partitions=3) as gateway:
        found = described(admin_of(gateway), BROKER, own)
    assert (found["num.partitions"].value, found["broker.id"].value) == ("3", own)
    for name in ("auto.create.topics.enable", "delete.topic.enable"):
        assert found[name].value == "true"
    is_static = ConfigSource.STATIC_BROKER_CONFIG.value
    static = {name for name, each in found.items() if each.source == is_static}
    told = {"advertised.listeners", "broker.id", "listeners", "node.id"}
    assert static == told | {"num.partitions"}


def test_a_gateways_listeners_say_how_to_connect(locked: Locked, store: Store) -> None:
    found = described(AdminClient(librdkafka(locked)), BROKER, str(node_id(store.address)))
    listeners = found["listeners"].value, found["advertised.listeners"].value
    assert listeners == ("SASL_SSL://127.0.0.1:0", f"SASL_SSL://{locked.gateway.listens}")


def test_each_version_is_answered(gateway: Gateway) -> None:
    keys = ["retention.ms", "colour"]
    wanted = (2, "t", keys), (4, "7", None), (4, "", None), (8, "0", None)
    fields = ("resource_type", "resource_name", "configuration_keys")
    asked = [dict(zip(fields, each, strict=True)) for each in wanted]
    for version in versions(Api.DESCRIBE_CONFIGS):
        answer = tell(gateway, Api.DESCRIBE_CONFIGS, version, resources=asked)
        assert rows(answer, "results", "error_code") == [0, 42, 0, 42]
        found = rows(answer.results[0], "configs", "name", "value", "read_only")
        assert found == [("retention.ms", "-1", False)]
        assert answer.results[2].configs == []
        all_ = asked[0] | {"configuration_keys": []}
        answer = tell(gateway, Api.DESCRIBE_CONFIGS, version, resources=[all_])
        assert len(answer.results[0].configs) > len(keys)


def changes(*configs: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that changes configs of topic t."""
    resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
    return {"resources": [resource], "validate_only": False}


def retain(value: str) -> dict[str, Any]:
    return changes({"name": "retention.ms", "value": value})


VALUES = [
    ("retention.ms", "-1", 0),
    ("segment.bytes", "1000", 0),
    ("segment.bytes", "large", 40),
    ("preallocate", "maybe", 40),
    ("retention.ms", str(2**63 - 1), 0),
    ("max.message.bytes", "1000", 0),
    ("max.message.bytes", str(2**31 - 1), 40),
    ("min.insync.replicas", "1", 0),
    ("min.insync.replicas", "2", 40),
    ("message.timestamp.after.max.ms", "3600001", 40),
    ("message.timestamp.before.max.ms", "1000", 0),
    ("local.retention.ms", "1000", 0),
    ("remote.storage.enable", "false", 0),
    ("remote.storage.enable", "true", 40),
    ("follower.replication.throttled.replicas", "0:1", 0),
    ("retention.ms", "0", 40),
    ("retention.ms", "soon", 40),
    ("retention.bytes", str(2**63), 40),
    ("cleanup.policy", "compact", 40),
    ("colour", "red", 40),
]


def alter(
    gateway: Gateway, api: Api, version: int = NEWEST, *, only: bool = False, **config: Any
) -> list[tuple[int, str]]:
    """Change a config of topics t and u, and of broker 7; return the errors."""
    named = (2, "t"), (2, "u"), (4, "7")
    resources = [
        {"resource_type": kind, "resource_name": name, "configs": [config]} for kind, name in named
    ]
    answer = tell(gateway, api, version, resources=resources, validate_only=only)
    return rows(answer, "responses", *ERROR_AND_WHY)


@pytest.mark.parametrize("api", [Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS])
def test_a_config_is_set_if_that_changes_nothing(
    admin: AdminClient, gateway: Gateway, api: Api
) -> None:
    for name, value, error in VALUES:
        for version in versions(api):
            found = alter(gateway, api, version, name=name, value=value)
            assert [code for code, _ in found] == [error, 3, 42]
            assert error == 0 or name in found[0][1]
    assert described(admin, TOPIC, "t")["retention.ms"].value == "-1"


def test_the_limit_of_a_batch_is_kept_and_applied(
    admin: AdminClient, gateway: Gateway, store: Store
) -> None:
    def write(topic: str) -> int:
        return produced(gateway, topic, 1, bytes(1000))

    def change(value: str | None) -> str:
        """Set or reset the limit of topic t; return it as a client sees it."""
        config = {"name": "max.message.bytes", "config_operation": int(value is None)}
        answer = tell(gateway, Api.INCREMENTAL_ALTER_CONFIGS, **changes(config | {"value": value}))
        assert rows(answer, "responses", "error_code") == [KafkaError.NONE]
        return str(described(admin, TOPIC, "t")["max.message.bytes"].value)

    usual = str(store.options.max_record_bytes)
    assert (change("1000"), produced(gateway, "t", 1)) == ("1000", KafkaError.NONE)
    assert write("t") == KafkaError.MESSAGE_TOO_LARGE
    assert (change(None), write("t")) == (usual, KafkaError.NONE)
    make(admin, "u", {"max.message.bytes": "500"})
    assert write("u") == KafkaError.MESSAGE_TOO_LARGE
    alter(gateway, Api.ALTER_CONFIGS, name="retention.ms", value="-1")  # resets all others
    assert write("u") == KafkaError.NONE
    change("500")
    delete(admin, "t")
    make(admin, "t")
    assert write("t") == KafkaError.NONE


def test_a_config_is_set_back_and_none_is_added_to(gateway: Gateway) -> None:
    for operation, error in ((1, 0), (2, 40), (3, 0), (99, 40)):
        config = {"name": "cleanup.policy", "config_operation": operation, "value": "compact"}
        found = alter(gateway, Api.INCREMENTAL_ALTER_CONFIGS, 0, only=True, **config)
        assert found[0][0] == error


def test_what_a_topic_keeps_is_changed_and_set_back(
    admin: AdminClient, gateway: Gateway, store: Store
) -> None:
    control = store.retention_control
    control.replace(parse_rules("audit=forever t*=7d,10GiB"))
    some, all_ = Api.INCREMENTAL_ALTER_CONFIGS, Api.ALTER_CONFIGS  # which resets all others

    def change(api: Api, **limits: str | None) -> tuple[str, ...]:
        """Set limits, or reset those without a value; return both."""
        configs: list[dict[str, Any]] = [
            {"name": f"retention.{name}", "value": value} for name, value in limits.items()
        ]
        for each in configs if api is some else ():
            each["config_operation"] = int(each["value"] is None)
        answer = tell(gateway, api, **changes(*configs))
        assert rows(answer, "responses", "error_code") == [KafkaError.NONE]
        found = described(admin, TOPIC, "t")
        is_own = len(control.rules) > 2
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG if is_own else ConfigSource.STATIC_BROKER_CONFIG
        names = ("retention.ms", "retention.bytes")
        assert {found[each].source for each in names} == {source.value}
        return tuple(found[each].value for each in names)

    def rules() -> list[str]:
        return list(map(str, control.rules))

    week, size = str(7 * 86_400_000), str(10 << 30)
    assert change(some, ms="1500") == ("1500", size)
    assert rules() == ["t=1.5s,10GiB", "audit=forever", "t*=1w,10GiB"]
    assert change(some, ms="1001") == ("1001", size)
    assert change(some, bytes="-1") == ("1001", "-1")
    assert change(all_, bytes="1000") == (week, "1000")
    assert change(some, bytes=None) == (week, size)
    assert rules() == ["audit=forever", "t*=1w,10GiB"]
    assert change(some, ms="-1", bytes="-1") == ("-1", "-1")
    assert control.rules[0] == parse_rules("t=forever")[0]
    assert change(all_) == (week, size)
    make(admin, "t2", {"retention.ms": "9"})
    assert rules() == ["t2=0.009s,10GiB", "audit=forever", "t*=1w,10GiB"]


def test_what_others_change_of_the_rules_meanwhile_is_kept(
    gateway: Gateway, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, ask = (store, other), StoreClient.ask
    changed = list[StoreClient]()

    def asked(client: StoreClient, timeout_s: float, *sent: Any) -> Any:
        found = ask(client, timeout_s, *sent)
        if isinstance(sent[0], RetentionRequest) and not changed:
            for each in stores:
                each.retention_control.replace(parse_rules("u=1d"))
            changed.append(client)
        return found

    monkeypatch.setattr(StoreClient, "ask", asked)
    answer = tell(gateway, Api.INCREMENTAL_ALTER_CONFIGS, **retain("3600000"))
    assert rows(answer, "responses", "error_code") == [KafkaError.NONE]
    rules = [[*map(str, each.retention_control.rules)] for each in stores]
    assert rules == [["t=1h", "u=1d"]] * 2


def test_no_change_overtakes_that_of_a_client_that_has_gone(
    gateway: Gateway, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    set_at_all = configs.set_at_all

    def wait(*args: Any, **named: Any) -> None:
        if not begun.is_set():
            begun.set()
            may_go_on.wait(PATIENCE_S)
        set_at_all(*args, **named)

    monkeypatch.setattr(configs, "set_at_all", wait)
    api, count = Api.INCREMENTAL_ALTER_CONFIGS, gateway.connection_count
    with Connection(gateway.listens) as gone:
        gone.send_request(api, 0, **retain("1000"))
        assert begun.wait(PATIENCE_S)
    wait_until(lambda: gateway.connection_count == count)
    (feature,) = (each for each in gateway.server._features if isinstance(each, configs.Configs))
    assert feature._node.rules_turn.locked()
    with Connection(gateway.listens) as client:
        client.send_request(api, 0, **retain("2000"))
        wait_until(lambda: gateway.server.requests.counts[api] == 2)
        may_go_on.set()
        client.receive_response(api, 0)
    assert [*map(str, store.retention_control.rules)] == ["t=2s"]


def test_all_configs_that_cannot_be_set_are_named_at_once(admin: AdminClient) -> None:
    asked = {"cleanup.policy": "compact", "colour": "red", "retention.ms": "soon"}
    fine = {"segment.ms": "1", "retention.bytes": "1000"}
    _, why = refusal(create(admin, NewTopic("u", 1, config=asked | fine))["u"])
    assert all(name in why for name in asked)
    assert not any(name in why for name in fine)
    assert all(way in why for way in ("withLoggingDisabled()", "connect-standalone"))


def test_a_config_that_is_named_twice_or_has_no_value_is_refused(
    gateway: Gateway, store: Store
) -> None:
    some, all_ = Api.INCREMENTAL_ALTER_CONFIGS, Api.ALTER_CONFIGS
    value, deleted = {"value": "1000"}, {"value": None, "config_operation": 1}
    for api, named, why in (
        (some, (value, deleted), "config 'retention.ms' is named twice"),
        (all_, (value, value), "config 'retention.ms' is named twice"),
        (some, ({"value": None},), "config retention.ms has no value"),
        (all_, ({"value": None},), "config retention.ms has no value"),
    ):
        answer = tell(gateway, api, **changes(*({"name": "retention.ms"} | e for e in named)))
        ((error, said),) = rows(answer, "responses", *ERROR_AND_WHY)
        assert (error, said.startswith(why)) == (KafkaError.INVALID_CONFIG, True)
    assert store.retention.rules == ()


@pytest.mark.parametrize(
    "asked", [{"retention.ms": "9" * 5_000}, {"x" * 20_000: "1", "y" * 20_000: "1"}]
)
def test_long_configs_are_refused(admin: AdminClient, asked: dict[str, str]) -> None:
    error, why = refusal(create(admin, NewTopic("u", 1, config=asked))["u"])
    assert (error, min(asked) in why) == ("INVALID_CONFIG", len(min(asked)) < MAX_WHY)


def test_as_many_copies_can_be_asked_for_as_there_are_stores(
    admin: AdminClient, gateway: Gateway, store: Store, other: Store
) -> None:
    make(admin, "u2", {"min.insync.replicas": "2"})
    three = create(admin, NewTopic("u3", 1, config={"min.insync.replicas": "3"}))["u3"]
    assert "at most the number of stores" in refusal(three)[1]
    found = described(admin, TOPIC, "u2")["min.insync.replicas"]
    assert (found.value, found.source) == ("2", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    wait_until(lambda: store.known.endpoints)
    assert produced(gateway, "u2", ALL) == KafkaError.NONE
    other.close()
    wait_until(lambda: not store.known.endpoints)
    assert produced(gateway, "u2", ALL) == KafkaError.NOT_ENOUGH_REPLICAS
    assert produced(gateway, "u2", 1) == produced(gateway, "t", ALL) == KafkaError.NONE


def test_a_majority_of_three_stores_is_the_default_of_copies(
    admin: AdminClient, store: Store, other: Store, gateway: Gateway, tower: str, tmp_path: Path
) -> None:
    name, broker = "min.insync.replicas", f"{node_id(store.address)}"

    def shown() -> tuple[str | None, str | None]:
        topic = described(admin, TOPIC, "t")[name].value
        return topic, described(admin, BROKER, broker)[name].value

    assert shown() == ("1", "1")
    with Store(tmp_path / "third", tower=tower):
        wait_until(lambda: len(store.known.names) == 2)
        assert shown() == ("2", "2")

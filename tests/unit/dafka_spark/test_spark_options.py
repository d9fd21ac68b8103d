"""What the options of reading and writing have in common."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from dafka_core.config.node_options import (
    NO_KEYS,
    KeyFiles,
    ProducerOptions,
    ReaderOptions,
    StoreOptions,
)
from dafka_core.errors import HIDDEN, ConfigError
from dafka_spark.cluster import connections
from dafka_spark.kafka_options import KAFKA_OPTIONS, Decision, kafka_option
from dafka_spark.option_types import ALL_STORES
from dafka_spark.options import (
    MeshAddress,
    SinkOptions,
    SourceOptions,
    settings_of,
    sides,
    user_options,
)
from scripts.options import kafka_table


def test_there_are_two_sides_which_know_each_other() -> None:
    assert sides() == [SourceOptions, SinkOptions]


def test_a_tables_options_are_told_from_its_properties() -> None:
    given = {"owner": "me", "ab": "x", "option.ab": "x", "provider": "dafka", "pp": "q"}
    assert user_options(given) == {"ab": "x"}
    assert user_options({"ab": "x"}) == {"ab": "x"}


def test_keys_are_options_or_of_the_drivers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"subscribe": "t"}
    assert SourceOptions.of(given).keys == NO_KEYS
    monkeypatch.setenv("DAFKA_SECRET_KEY_FILE", "/k/own")
    monkeypatch.setenv("DAFKA_ALLOWED_KEYS", "/k")
    found = SourceOptions.of(given | {"stores": "grpc://127.0.0.1:1"})
    assert found.keys == found.mesh_address.keys == KeyFiles("/k/own", "/k")
    own = given | {"dafka.secretKeyFile": "/o/own", "dafka.allowed_keys": "/o"}
    assert SourceOptions.of(own).keys == KeyFiles("/o/own", "/o")
    with pytest.raises(ConfigError, match="nobody joins a mesh with option stores"):
        SourceOptions.of(own | {"stores": "grpc://127.0.0.1:1", "dafka.peer_expiry_ms": "1000"})


PREFIXES = ("kafka.", "dafka.", "option.", "KAFKA.CONSUMER.")


def read(**given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "tower": "host", **given})


def test_a_jobs_options_but_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    """All of them in one job; what means nothing here is named once."""
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        options = read(
            **{
                "kafkaConsumer.pollTimeoutMs": "7000",
                "KAFKA.GROUP.ID": "g",
                "groupIdPrefix": "p",
                "fetchOffset.numRetries": "3",
                "kafka.session.timeout.ms": "1",
                "kafka.fetch.max.bytes": "1",
                "kafka.security.protocol": "plaintext",
                "failOnDataLoss": "false",
            }
        )
    assert options.fetch_timeout_ms == read().fetch_timeout_ms  # one poll's is another thing
    assert options.fail_on_data_loss is False
    (warning,) = [each.getMessage() for each in caplog.records]
    assert warning.startswith("options of Kafka's are passed over: fetchOffset.numRetries (stores")
    assert "kafka.group.id (each query keeps its own offsets" in warning
    assert "kafka.fetch.* (it tunes Kafka's clients)" in warning


def test_ours_counts_where_both_are_given() -> None:
    assert SinkOptions.of({"kafka.acks": "all", "acks": "1"}).acks_needed == 1


@pytest.mark.parametrize(
    ("kafkas", "acks"), [("all", ALL_STORES), ("-1", ALL_STORES), ("1", 1), ("0", 1), ("2", 2)]
)
def test_acks(kafkas: str, acks: int) -> None:
    assert SinkOptions.of({"kafka.acks": kafkas}).acks_needed == acks


def test_a_producers_options() -> None:
    given = {
        "topic": "t",
        "kafka.delivery.timeout.ms": "9000",
        "kafka.linger.ms": "5",
        "kafka.compression.type": "zstd",
        "kafkaConsumer.pollTimeoutMs": "1",
        "kafka.enable.idempotence": "true",
    }
    assert SinkOptions.of(given).delivery_timeout_ms == 9_000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.bootstrap.servers": "a:9092"}, "= 'a:9092': name a tower in its place, with opti"),
        ({"kafka.auto.offset.reset": "earliest"}, "say with startingOffsets where a new query"),
        ({"kafka.enable.auto.commit": "true"}, "a query's offsets are in its checkpoint"),
        ({"kafka.value.deserializer": "x"}, "keys and values are binary columns"),
        ({"kafka.partitioner.class": "x"}, "each task writes to a partition of its own"),
        ({"kafka.transactional.id": "x"}, "each batch is written exactly once anyway"),
        ({"kafka.security.protocol": "SASL_SSL"}, "a key says who this is, and encrypts"),
        ({"kafka.ssl.truststore.location": "/x"}, "a key says who this is, and encrypts"),
        ({"kafka.grup.id": "g"}, "did you mean 'kafka.group.id'?"),
        ({"kafka.bootstrap.server": "a:9092"}, "did you mean 'kafka.bootstrap.servers'?"),
        ({"kafka.no.such.thing": "a"}, "known here; docs/from_kafka.md has them"),
    ],
)  # fmt: skip
def test_what_is_refused(given: Any, says: str) -> None:
    for use in (lambda: read(**given), lambda: SinkOptions.of(given)):
        with pytest.raises(ConfigError) as caught:
            use()
        assert says in str(caught.value)
        assert f"option {next(iter(given))!r}" in str(caught.value)


def test_a_secret_is_not_shown() -> None:
    """Errors go into logs."""
    names = ("sasl.jaas.config", "ssl.key.password", "sasl.jas.config.x", "ssl.keystore.key")
    for name in ["paswd", "apiToken", *names, *(prefix + n for n in names for prefix in PREFIXES)]:
        with pytest.raises(ConfigError) as caught:
            read(**{name: "password='hunter2'"})
        assert "hunter2" not in repr(caught.value) + str(caught.value)
        with pytest.raises(ConfigError) as caught:
            ReaderOptions.build({name: "password='hunter2'"})
        assert "hunter2" not in repr(caught.value) + str(caught.value)


def test_no_option_of_ours_is_taken_for_a_secret() -> None:
    for side in (SourceOptions, SinkOptions, ReaderOptions, ProducerOptions, StoreOptions):
        for row in side.table():
            is_file_of_one = row.name == "secret_key_file"  # who errs gives the key itself
            shown = ConfigError(row.name, "shown", "").value
            assert shown == (HIDDEN if is_file_of_one else "shown")


def test_the_table() -> None:
    """Each option is decided once, and what it becomes is an option."""
    known = {row.name for side in (SourceOptions, SinkOptions) for row in side.table()}
    for row in KAFKA_OPTIONS:
        assert kafka_option(row.name) is row
        assert (row.to in known) is (row.decision is Decision.MAPPED)
        assert row.why or row.to
        assert f"| `{row.name}` | {row.decision}" in kafka_table()
    assert kafka_option("subscribe") is None


@pytest.mark.parametrize(
    "name", ["dafka.peer_expiry_ms", "DAFKA.PEER_EXPIRY_MS", "dafka.peerExpiryMs"]
)
def test_the_reader_of_a_query_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = pickle.loads(pickle.dumps(read(**{name: "9000", "dafka.wire": "rfc46"})))
    address = options.mesh_address
    assert address.node == (("peer_expiry_ms", "9000"), ("wire", "rfc46"))
    assert address != read().mesh_address  # it is no other query's reader
    opened: dict[str, Any] = {}

    def reader(**given: Any) -> None:
        opened.update(given)

    monkeypatch.setattr(connections, "Reader", reader)
    connections._join(MeshAddress("host", node=address.node))
    assert ReaderOptions.build(opened).peer_expiry_ms == 9_000


def test_a_sink_has_those_of_producers_too() -> None:
    given = {"dafka.max_unacked_records": "7", "dafka.max_queued_bytes": "8", "dafka.wire": "rfc46"}
    options = SinkOptions.of(given)
    assert options.mesh_address.node == (("max_queued_bytes", "8"), ("wire", "rfc46"))
    producer = settings_of(ProducerOptions, options.node)
    assert producer == {"max_unacked_records": "7", "wire": "rfc46"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dafka.peer_expire_ms": "1"}, "did you mean 'dafka.peer_expiry_ms'?"),
        ({"dafka.peer_expiry_ms": "soon"}, "option 'dafka.peer_expiry_ms' = 'soon': must be a who"),
        ({"dafka.peerExpiryMs": "1"}, "option 'dafka.peer_expiry_ms' = '1': must be at least 100"),
        ({"dafka.tower": "x"}, "option 'dafka.tower' = 'x': is option 'tower' here"),
        ({"dafka.max_unacked_records": "7"}, "there is no such option"),
        (
            {"dafka.peerExpiryMs": "900", "dafka.peer_expiry_ms": "900"},
            "option 'dafka.peer_expiry_ms' = '900': is option 'dafka.peerExpiryMs' in another spel",
        ),
        ({"dafka.secret_key": "Z"}, "'dafka.secret_key' = '(not shown)': there is no such option"),
        ({"dafka.": "7"}, "there is no such option"),
        ({"dafka.wire": "rfc46", "stores": "grpc://h:1"}, "nobody joins a mesh with option stores"),
    ],
)  # fmt: skip
def test_what_is_refused_of_node_settings(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**given)
    assert says in str(caught.value)

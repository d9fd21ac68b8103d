"""Kafka's options: each has an equivalent, is ignored with a warning, or is refused."""

import logging

import pytest

from dafka_core.config.missing_stores import EVERY_STORE
from dafka_core.config.node_options import ProducerOptions, ReaderOptions, StoreOptions
from dafka_core.errors import HIDDEN, ConfigError
from dafka_spark.options import KAFKA_OPTIONS, Decision, SinkOptions, SourceOptions, kafka_option
from scripts.options import kafka_table


def test_a_jobs_options_are_mapped_or_ignored(caplog: pytest.LogCaptureFixture) -> None:
    kept = {"subscribe": "t", "tower": "host", "failOnDataLoss": "false"}
    given = {
        "kafkaConsumer.pollTimeoutMs": "7000",
        "KAFKA.GROUP.ID": "g",
        "groupIdPrefix": "p",
        "fetchOffset.numRetries": "3",
        "kafka.session.timeout.ms": "1",
        "kafka.group.protocol": "consumer",
        "kafka.group.remote.assignor": "uniform",
        "kafka.auto.commit.interval.ms": "5000",
        "kafka.enable.metrics.push": "false",
        "kafka.auto.include.jmx.reporter": "false",
        "kafka.config.providers.file.class": "x",
        "kafka.fetch.max.bytes": "1",
        "kafka.security.protocol": "plaintext",
    }
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        assert SourceOptions.of({**given, **kept}) == SourceOptions.of(kept)
    (warning,) = caplog.messages
    assert warning.startswith("Kafka's options are ignored: KAFKA.GROUP.ID (a query keeps its own")
    assert "kafka.fetch.max.bytes (it tunes Kafka's clients)" in warning
    assert "kafka.security.protocol" not in warning


@pytest.mark.parametrize(
    ("kafkas", "acks"), [("all", EVERY_STORE), ("-1", EVERY_STORE), ("1", 1), ("0", 1), ("2", 2)]
)
def test_a_producers_options(kafkas: str, acks: int, caplog: pytest.LogCaptureFixture) -> None:
    assert SinkOptions.of({"kafka.acks": kafkas}).acks_needed == acks
    given = {"kafka.delivery.timeout.ms": "9000", "kafka.linger.ms": "5", "kafka.acks": kafkas}
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        options = SinkOptions.of({**given, "acks": "3"})
    assert options.delivery_timeout_ms == 9_000
    assert options.acks_needed == 3  # our own option takes precedence
    assert caplog.messages == [
        "Kafka's options are ignored: kafka.acks; kafka.linger.ms (it tunes Kafka's clients)"
    ]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("kafka.bootstrap.servers", "a:9092", "= 'a:9092': name a tower instead, with option"),
        ("kafka.partitioner.class", "x", "each task writes to its own partition"),
        ("kafka.security.protocol", "SASL_SSL", "keys authenticate and encrypt instead"),
        ("kafka.sasl.mechanism", "PLAINTEXT", "keys authenticate and encrypt instead"),
        ("kafka.grup.id", "hunter2", "did you mean 'kafka.group.id'?"),
        ("kafka.no.such.thing", "hunter2", "known option of Kafka; docs/from_kafka.md lists the"),
    ],
)
def test_refused_options(name: str, value: str, error: str) -> None:
    for options in (SourceOptions, SinkOptions):
        with pytest.raises(ConfigError, match=f"option {name!r}") as caught:
            options.of({name: value})
        assert error in str(caught.value)
        assert "hunter2" not in str(caught.value)  # an unknown option may be a secret


PREFIXES = ("", "kafka.", "dafka.", "option.", "KAFKA.CONSUMER.")
SECRETS = ("sasl.jaas.config", "ssl.key.password", "sasl.jas.config.x", "ssl.keystore.key")


@pytest.mark.parametrize(
    "name", ["paswd", "apiToken", *(prefix + name for prefix in PREFIXES for name in SECRETS)]
)
def test_errors_hide_secrets(name: str) -> None:
    for parse in (SourceOptions.of, ReaderOptions.build):
        with pytest.raises(ConfigError) as caught:
            parse({name: "password='hunter2'"})
        assert "hunter2" not in repr(caught.value) + str(caught.value)
    for side in (SourceOptions, SinkOptions, ReaderOptions, ProducerOptions, StoreOptions):
        for row in side.table():
            is_secret = row.name == "secret_key_file"  # users mistakenly give the key itself
            assert ConfigError(row.name, "x", "").value == (HIDDEN if is_secret else "x")


def test_the_table_has_each_option_once_with_an_existing_equivalent() -> None:
    known = {row.name for side in (SourceOptions, SinkOptions) for row in side.table()}
    for row in KAFKA_OPTIONS:
        assert all(kafka_option(name) is row for name in row.names)
        assert (row.to in known) is (row.decision is Decision.MAPPED)
        assert row.why or row.to
        assert all(f"`{name}`" in kafka_table() for name in row.names)
    assert kafka_option("subscribe") is None

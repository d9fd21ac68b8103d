"""Retention set at one gateway applies to all known stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from dafka_core import Producer, Store
from dafka_core.config.topic_rules import parse_rules
from dafka_core.errors import DafkaError
from dafka_core.testing import wait_until
from tests.integration.kafka.admin import (
    PATIENCE_S,
    counts,
    create,
    delete,
    deletion,
    make,
    refusal,
)


@pytest.fixture
def third(store: Store, tower: str, tmp_path: Path) -> Iterator[Store]:
    """A third one: with it a majority stays when one ends."""
    with Store(tmp_path / "third", tower=tower) as third:
        wait_until(lambda: third.address in store.known.endpoints)
        yield third


def held(store: Store) -> list[tuple[int, int]]:
    return [(info.earliest, info.end) for info in store.log.partitions("t")]


def test_other_stores_do_it_too(
    admin: AdminClient, store: Store, other: Store, third: Store
) -> None:
    make(admin, "without")
    with Producer("t", tower=store.options.tower, acks=3) as producer:
        producer.publish_many([b"%d" % number for number in range(10)])
    wait_until(lambda: "t" in counts(admin))
    before = TopicPartition("t", 0, 4)
    low = admin.delete_records([before], request_timeout=PATIENCE_S)[before]
    assert low.result(PATIENCE_S).low_watermark == 4
    assert held(store) == held(other) == [(4, 10)]

    def keep(value: str) -> Any:
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])[resource]

    keep("3600000").result(PATIENCE_S)
    rules = [list(map(str, each.retention_control.rules)) for each in (store, other, third)]
    assert rules == [["t=1h"]] * 3
    delete(admin, "t")
    wait_until(lambda: held(store) == held(other) == [(10, 10)])
    with Producer("t", tower=store.options.tower) as producer:
        producer.publish(b"again")
    wait_until(lambda: "t" in counts(admin))
    # The rule was deleted with the topic.
    assert [each.retention_control.rules for each in (store, other, third)] == [()] * 3
    keep("3600000").result(PATIENCE_S)
    other.close()
    wait_until(lambda: store.known.here == {third.address})
    error, why = refusal(keep("1000"))
    assert (error, other.address in why) == ("NOT_ENOUGH_REPLICAS", True)
    assert list(map(str, store.retention_control.rules)) == ["t=1h"]
    assert refusal(deletion(admin, "t"))[0] == "NOT_ENOUGH_REPLICAS"
    delete(admin, "without")
    assert counts(admin) == {"t": 1}
    # A request without limits changes no rule, whatever the topic's position.
    store.retention_control.replace(parse_rules(["x*=1d", "u=1h"]))
    make(admin, "u")
    assert counts(admin) == {"t": 1, "u": 1}


def test_a_store_that_keeps_a_deleted_topics_rule_is_told_again(
    admin: AdminClient, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(admin, "t", {"retention.ms": "3600000"})

    def fail(*_: object) -> None:
        raise DafkaError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(other.retention_control, "replace", fail)
        assert refusal(deletion(admin, "t"))[0] == "REQUEST_TIMED_OUT"
        assert counts(admin) == {}
    delete(admin, "t")
    assert [each.retention_control.rules for each in (store, other)] == [()] * 2


def test_a_topic_that_another_store_does_not_keep_as_asked_for_is_not_made(
    admin: AdminClient, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DafkaError("no disk")

    monkeypatch.setattr(other.retention_control, "replace", fail)
    made = create(admin, NewTopic("t", 1, config={"retention.ms": "1000"}))["t"]
    error, why = refusal(made)
    assert (error, "so the topic is not made" in why) == ("REQUEST_TIMED_OUT", True)
    assert [each.retention_control.rules for each in (store, other)] == [()] * 2
    assert counts(admin) == {}

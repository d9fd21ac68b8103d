"""Permissions of roles, patterns and addresses."""

import pytest

from dafka_core.model.names import AUDIT_TOPIC, DELETIONS_TOPIC, INTERNAL, QUERIES_TOPIC
from dafka_core.security.permissions import (
    EVERYBODY,
    SHARED_BY_STORES,
    Permissions,
    address_prefix,
    parse_patterns,
    parse_roles,
)


def test_roles_are_named_in_any_order() -> None:
    assert parse_roles(["consume, store", "tower"]) == ("tower", "store", "consume")
    for words, why in (
        (["stroe"], "did you mean 'store'"),
        (["x"], "must be one of tower, store"),
        ([" "], "no role"),
    ):
        with pytest.raises(ValueError, match=why):
            parse_roles(words)


def test_roles_and_patterns_both_have_to_allow_a_topic() -> None:
    both = Permissions("b", frozenset({"produce", "consume"}), ("orders.*", "x"), ("logs-?",))
    topics = ("orders.eu", "x", "orders", "xx", "logs-1", "logs-12", "Logs-1")
    assert [t for t in topics if both.may_produce(t)] == ["orders.eu", "x"]
    assert [t for t in topics if both.may_consume(t)] == ["logs-1"]
    # A name that continues after a newline is another name.
    assert not both.may_produce("x\ny")
    assert not both.may_produce("x\n")
    reader = Permissions("r", frozenset({"consume"}))
    assert reader.may_consume("any\nthing")
    assert not reader.may_produce("anything")
    assert not Permissions("n", frozenset({"produce"}), produce=()).may_produce("t")


def test_a_store_may_have_and_forward_all() -> None:
    store = Permissions("s", frozenset({"store"}), produce=(), consume=())
    assert store.may_produce("t")
    assert store.may_consume("t")
    assert store.owns("anybody's")
    assert (store.is_store, store.is_admin) == (True, False)
    assert EVERYBODY.is_admin
    assert EVERYBODY.owns("anybody's")


def test_an_address_proves_whose_it_is() -> None:
    one, two = address_prefix(b"1" * 40), address_prefix(b"2" * 40)
    assert one != two
    assert len(one) == 12
    assert one == one.upper()
    owner = Permissions("o", frozenset({"produce"}), addresses=("OLD*", "AB"), prefix=one)
    own = [one + "0" * 16, "OLD1", "AB"]
    assert [a for a in (*own, "ABC", two + "0" * 16) if owner.owns(a)] == own
    assert not Permissions("user", frozenset({"produce"})).owns("")


def test_internal_topics_are_stores_own() -> None:
    writer = Permissions("w", frozenset({"produce"}), prefix="A")
    reader = Permissions("r", frozenset({"consume"}), prefix="A")
    both = Permissions("b", frozenset({"produce", "consume"}), prefix="A")
    store = Permissions("s", frozenset({"store"}))
    for topic in (DELETIONS_TOPIC, f"{INTERNAL}kafka.partitions", f"{INTERNAL}anything"):
        assert not both.may_produce(topic)
        assert not both.may_write(topic, "A1")
        assert store.may_write(topic, "A1")
        assert Permissions("a", frozenset({"admin"})).may_produce(topic)
    # Queries report as readers and are audited as writers, in partitions of their own key.
    for topic, own in ((QUERIES_TOPIC, reader), (AUDIT_TOPIC, writer)):
        may = [each.may_write(topic, "A1") for each in (writer, reader, store)]
        assert may == [own is writer, own is reader, True]
        assert not both.may_write(topic, "Q")
    assert not both.may_write("t", "Q")
    assert both.may_write("t", "A1")


def test_stores_take_turns_at_one_partition() -> None:
    store = Permissions("s", frozenset({"store"}), prefix="A")
    assert store.is_own(SHARED_BY_STORES)
    assert not store.is_own("B1")
    assert not Permissions("p", frozenset({"produce"}), prefix="A").is_own(SHARED_BY_STORES)


def test_what_is_made_for_somebody_is_his() -> None:
    owner = Permissions("o", frozenset({"produce"}), addresses=("OLD*",), prefix="ABCD")
    assert owner.made_own("0123456789") == "ABCD456789"
    assert owner.made_own("ABCD456789") == "ABCD456789"
    assert owner.made_own("OLD3456789") == "OLD3456789"
    assert EVERYBODY.made_own("0123456789") == "0123456789"


def test_patterns_are_named_once() -> None:
    assert parse_patterns(["a, b", " b ,", "c*"]) == ("a", "b", "c*")
    assert parse_patterns([""]) == ()

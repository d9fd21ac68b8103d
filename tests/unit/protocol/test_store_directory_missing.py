"""Which stores a directory misses, by what the others say of them."""

from __future__ import annotations

from dafka_core.model.records import KnownStore
from dafka_core.protocol import timing
from dafka_core.protocol.messages import StoresKnown
from dafka_core.protocol.role import PeerNews
from dafka_core.protocol.store_directory import StoreDirectory
from tests.unit.protocol.test_store_directory import ME, answered, ask, directory, greet, reply

AWAY = KnownStore("S3", "tcp://h:3", 5)


def tell(of: StoreDirectory, teller: str, *known: KnownStore) -> None:
    assert of.on_message(0.0, StoresKnown(ME, teller, known)) == []


def test_what_is_known_and_does_not_greet_is_missing() -> None:
    stores = directory()
    greet(stores, "S1")
    tell(stores, "S1", AWAY, KnownStore("S2", "tcp://h:2", 7, here=True), KnownStore(ME))
    assert [each.store for each in stores.missing] == ["S2", "S3"]
    greet(stores, "S2")
    assert stores.missing == [AWAY]
    greet(stores, "S3")
    assert stores.missing == []
    stores.on_peer_lost("S3")
    assert stores.missing == [AWAY]


def test_a_store_that_was_lost_is_not_waited_for_by_hearsay() -> None:
    stores = directory()
    for each in ("S1", "S2"):
        greet(stores, each)
    stores.on_peer_lost("S2")
    tell(stores, "S1", KnownStore("S2", "tcp://h:2", 7, here=True))
    assert not stores.discovery.waits(0.0)


def test_the_newest_word_counts() -> None:
    stores = directory()
    for teller, heard_us in (("S1", 5), ("S2", 9), ("S4", 7)):
        greet(stores, teller)
        tell(stores, teller, AWAY._replace(heard_us=heard_us))
    assert stores.missing == [AWAY._replace(heard_us=9)]


def test_a_store_that_one_has_forgotten_is_known_as_long_as_another_knows_it() -> None:
    stores = directory()
    for teller in ("S1", "S2"):
        greet(stores, teller)
        tell(stores, teller, AWAY)
    tell(stores, "S1")
    assert stores.missing == [AWAY]
    # Also of one that is away: it may be the only one that has not forgotten.
    stores.on_peer_lost("S2")
    assert stores.missing == [AWAY]
    tell(stores, "S2")
    assert stores.missing == []


def test_stores_of_before_say_nothing_of_others() -> None:
    stores = directory()
    greet(stores, "S1")
    greet(stores, "S2")
    assert stores.missing == []
    stores.on_peer_lost("S2")
    assert stores.missing == [KnownStore("S2")]
    greet(stores, "S2")
    assert stores.missing == []
    # A store with a list decides: stores outside of it are not missing.
    tell(stores, "S1")
    stores.on_peer_lost("S2")
    assert stores.missing == []


def test_only_those_that_have_not_greeted_are_waited_for_beyond_a_time_out() -> None:
    stores = directory()
    stores.on_peer(0.0, PeerNews("N", "tcp://h:9"))
    question = ask(stores, now=1.0)
    assert not stores.waits_for_others(question)  # without any store
    greet(stores, "S1", 1.0)
    assert not stores.waits_for_others(question)
    reply(stores, question, "S1", now=1.0)
    assert stores.waits_for_others(question)
    assert not answered(stores, question, timing.STORE_TIMEOUT_S - 0.1)
    assert answered(stores, question, timing.STORE_TIMEOUT_S)

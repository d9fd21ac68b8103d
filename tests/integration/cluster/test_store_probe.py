"""What a store says of itself by Arrow Flight."""

from __future__ import annotations

from pathlib import Path

from dafka_core.config.node_options import NO_KEYS, keys_in
from dafka_core.flight.store_location import SESSION_FILE
from dafka_core.model.records import TopicPartition
from dafka_core.ops.checks import FileAccess, StoreFacts
from dafka_core.ops.gathering import asked
from dafka_core.testing import StoreDouble
from tests.integration.cluster.stores import Serve
from tests.integration.nodes.locked import Keys

FLIGHTS = TopicPartition("flights", "AB12")
TIMEOUT_S = 30.0


def test_a_store_says_all_of_itself(serve: Serve) -> None:
    store = serve("one")
    store.add(FLIGHTS, 5)
    known = StoreFacts(store.address, locations=store.location.locations)
    ((facts, heads),) = asked([known], None, TIMEOUT_S, NO_KEYS)
    assert facts.failure == ""
    assert (facts.lacks, facts.more) == ((), ())
    assert facts.ahead_s is not None
    assert abs(facts.ahead_s) <= facts.unsure_s + 0.1  # it is this machine's clock
    assert facts.file is FileAccess.READABLE
    assert [(info.tp, info.end) for info in heads] == [(FLIGHTS, 5)]


def test_a_key_that_is_not_told_of_all_is_told_of_the_rest(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    with StoreDouble(tmp_path / "store", keys=keys_in(keys.of("store"))) as store:
        known = StoreFacts(store.address, locations=store.location.locations)
        ((facts, _),) = asked([known], None, TIMEOUT_S, keys_in(keys.of("tower")))
    assert (facts.failure, facts.rules) == ("", None)
    assert facts.ahead_s is not None


def test_a_store_that_is_named_by_its_uri_says_who_it_is(serve: Serve) -> None:
    store = serve("one")
    uri = store.location.locations[-1]
    ((facts, _),) = asked([StoreFacts(uri, locations=(uri,))], [], TIMEOUT_S, NO_KEYS)
    assert facts.store == store.address
    assert facts.locations == (uri,)


def test_a_file_that_is_another_stores_cannot_be_read(serve: Serve) -> None:
    """As in a container, where the directory has the same name."""
    store = serve("one")
    (store.directory / SESSION_FILE).write_text("another", "ascii")
    known = StoreFacts(store.address, locations=store.location.locations)
    assert asked([known], [], TIMEOUT_S, NO_KEYS)[0][0].file is FileAccess.UNREADABLE


def test_one_that_serves_no_flight_or_is_gone(serve: Serve) -> None:
    store = serve("one")
    gone = StoreFacts(store.address, locations=store.location.locations[-1:])
    store.stop()
    without = StoreFacts("B")
    (first, _), (second, _) = asked([gone, without], [], TIMEOUT_S, NO_KEYS)
    assert "refused" in first.failure.lower()
    assert first.stranger == ""
    assert second == without
    assert asked([], [], TIMEOUT_S, NO_KEYS) == []


def test_a_store_that_others_have_taken_the_place_of(serve: Serve) -> None:
    store = serve("one")
    known = StoreFacts("ANOTHER", locations=store.location.locations)
    ((facts, _),) = asked([known], [], TIMEOUT_S, NO_KEYS)
    assert "store ANOTHER was meant" in facts.failure

"""The facts that ``dafka doctor`` collects from a store by Arrow Flight."""

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


def probed(known: StoreFacts) -> StoreFacts:
    ((facts, _),) = asked([known], [], TIMEOUT_S, NO_KEYS)
    return facts


def test_a_store_reports_all_facts(serve: Serve) -> None:
    store = serve("one")
    store.add(FLIGHTS, 5)
    known = StoreFacts(store.address, locations=store.location.locations)
    ((facts, heads),) = asked([known], None, TIMEOUT_S, NO_KEYS)
    assert (facts.failure, facts.lacks, facts.more) == ("", (), ())
    assert facts.ahead_s is not None
    assert abs(facts.ahead_s) <= facts.unsure_s + 0.1  # it is this machine's clock
    assert facts.file is FileAccess.READABLE
    assert [(info.tp, info.end) for info in heads] == [(FLIGHTS, 5)]
    uri = store.location.locations[-1]
    named = probed(StoreFacts(uri, locations=(uri,)))
    assert (named.store, named.locations) == (store.address, (uri,))
    # As in a container, where the directory has the same name.
    (store.directory / SESSION_FILE).write_text("another", "ascii")
    assert probed(known).file is FileAccess.UNREADABLE


def test_a_key_without_permission_for_some_facts_gets_the_others(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    with StoreDouble(tmp_path / "store", keys=keys_in(keys.of("store"))) as store:
        known = StoreFacts(store.address, locations=store.location.locations)
        ((facts, _),) = asked([known], None, TIMEOUT_S, keys_in(keys.of("tower")))
    assert (facts.failure, facts.rules) == ("", None)
    assert facts.ahead_s is not None


def test_stores_without_an_answer(serve: Serve) -> None:
    store = serve("one")
    replaced = probed(StoreFacts("ANOTHER", locations=store.location.locations))
    assert "store ANOTHER was meant" in replaced.failure
    gone = StoreFacts(store.address, locations=store.location.locations[-1:])
    store.stop()
    without = StoreFacts("B")
    (first, _), (second, _) = asked([gone, without], [], TIMEOUT_S, NO_KEYS)
    assert "refused" in first.failure.lower()
    assert first.stranger == ""
    assert second == without
    assert asked([], [], TIMEOUT_S, NO_KEYS) == []

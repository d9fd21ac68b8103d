"""A store's list of the others, and its messages about them."""

from dafka_core.model.log_entries import LogEntry, StoreSeen
from dafka_core.model.records import KnownStore
from dafka_core.protocol import timing
from dafka_core.protocol.limits import MAX_STORES, RecentNames
from dafka_core.protocol.messages import StoreEndpoints, StoresKnown
from dafka_core.protocol.store_directory import KnownStores

ME, OTHER, READER = "S1", "S2", "R"
AT = "tcp://h:2"


class Kept:
    """A store's list, with the entries that it has written and a clock."""

    def __init__(self, *known: StoreSeen) -> None:
        self.written: list[LogEntry] = []
        self.wall_us = 1_000
        self.known = KnownStores(ME, known, lambda: self.wall_us, self.written.append)
        self.known.on_tick(0.0)

    def settle(self) -> None:
        self.known.on_tick(timing.KNOWN_STORE_GRACE_S)

    def news(self) -> tuple[KnownStore, ...] | None:
        """Return the list sent to a reader now; None if it has not changed."""
        news = self.known.changes_for(READER)
        return None if news is None else news.entries


def test_the_endpoints_of_a_lost_store_are_forgotten() -> None:
    known = Kept().known
    for store in (OTHER, "S3"):
        known.on_endpoints(StoreEndpoints(READER, store, (f"grpc://{store}",)))
    before = known.endpoints
    known.on_peer_lost(OTHER)
    assert known.endpoints == {"S3": ("grpc://S3",)}
    assert before.keys() == {OTHER, "S3"}  # another thread may be reading it


def test_present_stores_are_written_at_an_interval() -> None:
    kept = Kept(StoreSeen("S3"))
    kept.known.add(OTHER)
    kept.wall_us = 9_000
    kept.settle()
    due = kept.known.deadline()
    assert due == timing.KNOWN_STORE_GRACE_S + timing.KNOWN_STORE_WRITE_S
    kept.known.on_tick(due)
    assert kept.written == [StoreSeen(OTHER, "", 1_000), StoreSeen(OTHER, "", 9_000)]
    assert kept.known.deadline() == due + timing.KNOWN_STORE_WRITE_S


def test_a_requestor_receives_the_list_when_it_subscribes_and_changes_later() -> None:
    kept = Kept(StoreSeen(OTHER, AT, 7))
    kept.settle()
    assert kept.known.changes_for(READER) is None  # it has not announced that it understands them
    greeting = kept.known.greeting(StoresKnown, READER)
    assert greeting == StoresKnown(READER, ME, (KnownStore(OTHER, AT, 7),))
    assert kept.news() is None
    kept.known.on_announced(OTHER, "tcp://h:3")
    kept.known.add(OTHER)
    assert kept.news() == (KnownStore(OTHER, AT, 7, here=True),)
    assert kept.news() is None
    kept.known.on_peer_lost(OTHER)
    assert kept.news() == (KnownStore(OTHER, "tcp://h:3", 1_000),)


def test_a_starting_store_assumes_that_all_known_stores_are_present() -> None:
    kept = Kept(StoreSeen(OTHER, AT, 7), StoreSeen(ME, AT, 7))
    greeting = kept.known.greeting(StoresKnown, READER)
    assert greeting == StoresKnown(READER, ME, (KnownStore(OTHER, AT, 7, here=True),))
    kept.known.on_announced("N", AT)
    assert kept.news() is None
    assert kept.known.deadline() == timing.KNOWN_STORE_GRACE_S
    kept.settle()
    assert kept.news() == (KnownStore(OTHER, AT, 7),)


def test_stores_are_bounded() -> None:
    kept = Kept()
    for number in range(MAX_STORES + 5):
        kept.known.add(f"N{number}")
    assert len(kept.known.names) == len(kept.written) == MAX_STORES
    kept.known.add("N0")
    assert len(kept.written) == MAX_STORES


def test_an_absent_store_is_forgotten_until_it_returns() -> None:
    kept = Kept(StoreSeen(OTHER, AT, 7))
    kept.settle()
    kept.known.greeting(StoresKnown, READER)
    kept.known.on_announced(OTHER, AT)
    assert not kept.known.forget(OTHER)  # it would be known again at once
    kept.known.on_peer_lost(OTHER)
    assert kept.news() == (KnownStore(OTHER, AT, 1_000),)
    assert kept.known.forget(OTHER)
    assert kept.news() == ()
    assert kept.known.forget("unknown")
    assert kept.news() is None
    kept.known.add(OTHER)
    assert kept.news() == (KnownStore(OTHER, "", 1_000, here=True),)


def test_the_oldest_name_is_dropped() -> None:
    names = RecentNames[int](2)
    for number, name in enumerate("abac"):
        names.keep(name, number)
    assert names == {"a": 2, "c": 3}

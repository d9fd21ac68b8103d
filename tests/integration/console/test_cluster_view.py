"""The view of a cluster, updated in the background."""

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest

from dafka_console import cluster_view
from dafka_console.cluster_view import ANSWER_S, ClusterView, QueryWatch, StoreLink
from dafka_console.snapshot import POINTS, RECORDS, PartitionTable, Snapshot
from dafka_console.windows import topic_row
from dafka_core import Consumer, EmbeddedCluster, Producer
from dafka_core.cli.store_clients import located
from dafka_core.config.node_options import NO_KEYS
from dafka_core.errors import InvalidRequestError
from dafka_core.flight.requests import RetentionRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S, StoreDouble, wait_until

QUICK_S = 0.05


def records(snapshot: Snapshot, topic: str) -> int:
    row = topic_row(snapshot, topic)
    return 0 if row is None else int(row["records"])


def test_who_is_there_what_is_written_and_who_follows_it(
    cluster: EmbeddedCluster, dafka_topic: str
) -> None:
    with (
        ClusterView({"tower": cluster.tower}, interval_s=QUICK_S) as view,
        Producer(dafka_topic, tower=cluster.tower) as producer,
        Consumer(tower=cluster.tower) as consumer,
    ):
        consumer.subscribe(dafka_topic)
        producer.publish_many([b"x" * 100] * 50)
        wait_until(lambda: records(view.snapshot, dafka_topic) == 50, "the records are counted")
        wait_until(lambda: sum(each.here for each in view.snapshot.stores) == 2, "two stores")

        def kinds() -> dict[str, tuple[str, tuple[str, ...]]]:
            return {each.node: (each.kind, each.topics) for each in view.snapshot.nodes}

        wait_until(
            lambda: (
                kinds().get(producer.address, ("",))[0] == "producer"
                and kinds().get(consumer.address, ("",))[0] == "consumer"
            ),
            "both are seen",
        )
        assert kinds()[consumer.address][1] == (dafka_topic,)
        assert view.snapshot.towers == (cluster.tower,)
        wait_until(
            lambda: all(each.behind == 0 for each in view.snapshot.stores), "both stores have all"
        )
        assert [each.rules for each in view.snapshot.stores] == [(), ()]
        producer.publish(b"more")
        seen = view.snapshot.number
        assert view.wait(seen + 2, PATIENCE_S).number >= seen + 2
        wait_until(lambda: records(view.snapshot, dafka_topic) == 51, "one more")


def test_a_store_that_is_gone_is_told_and_what_it_had_stays_until_it_is_back(
    tmp_path: Path,
) -> None:
    with StoreDouble(tmp_path) as store:
        began_us = time.time() * 1e6
        store.append(TopicPartition("t", "A" * 32), [b"x"] * 3)
        (location,) = located(store.location.locations[-1], NO_KEYS, ANSWER_S)
        with ClusterView({}, [location], interval_s=QUICK_S) as view:
            wait_until(lambda: records(view.snapshot, "t") == 3, "the records are counted")
            assert [client.location.store for client in view.clients()] == [store.address]
            port = store.port
            store.stop()
            wait_until(lambda: not view.snapshot.stores[0].here, "the store is gone")
            assert (records(view.snapshot, "t"), view.clients()) == (3, [])
            (state,) = view.snapshot.stores
            assert (state.partitions, bool(state.failure), view.snapshot.live) == (1, True, False)
            assert began_us <= state.since_us <= time.time() * 1e6
            store.append(TopicPartition("t", "A" * 32), [b"y"])
            store.start(port)
            wait_until(lambda: records(view.snapshot, "t") == 4, "the store is back")
            assert view.snapshot.live
            assert not any(view.snapshot.rates.last(RECORDS, POINTS))


def test_a_store_that_stands_still_holds_up_none_of_the_others(
    own: EmbeddedCluster, dafka_topic: str
) -> None:
    with (
        ClusterView({"tower": own.tower}, interval_s=QUICK_S) as view,
        Producer(dafka_topic, tower=own.tower) as producer,
    ):
        producer.publish(b"v")
        wait_until(lambda: sum(each.here for each in view.snapshot.stores) == 2, "two stores")
        wait_until(lambda: records(view.snapshot, dafka_topic) == 1, "the record is seen")
        with own.paused_store(1):
            producer.publish(b"v")
            wait_until(lambda: records(view.snapshot, dafka_topic) == 2, "the next one, too")
            seen = view.snapshot.number
            assert view.wait(seen + 2, PATIENCE_S).number >= seen + 2
        wait_until(lambda: all(each.behind == 0 for each in view.snapshot.stores), "both go on")


def test_a_store_that_is_forgotten_is_away_no_more(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "MISSING_EVERY_S", QUICK_S)
    stays, goes = own.stores
    with ClusterView({"tower": own.tower}, interval_s=QUICK_S) as view:

        def states() -> dict[str, bool]:
            return {each.store: each.here for each in view.snapshot.stores}

        wait_until(lambda: states() == {stays: True, goes: True}, "two stores")
        own.kill_store(1)
        missing = "the other one misses it"
        wait_until(lambda: [each.store for each in view.snapshot.missing] == [goes], missing)
        assert states() == {stays: True, goes: False}
        with StoreClient(StoreLocation(stays, own.locations(0))) as client:

            def forgets() -> bool:
                with contextlib.suppress(InvalidRequestError):  # the store has not missed it yet
                    client.forget(goes, timeout_s=PATIENCE_S)
                return states() == {stays: True}

            wait_until(forgets, "it is forgotten")
        assert not view.snapshot.missing


def test_a_view_survives_a_thread_that_cannot_start(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise RuntimeError("can't start new thread")

    with ClusterView({}, [store.location], interval_s=QUICK_S) as view:
        with monkeypatch.context() as patch:
            patch.setattr(view._pool, "submit", fail)
            assert failed.wait(PATIENCE_S)
        seen = view.snapshot.number
        assert view.wait(seen + 2, PATIENCE_S).number >= seen + 2


def test_rates_are_right_when_a_slow_store_answers_fast_again(
    store: StoreDouble, behind: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written while it was waited for was written in that time."""
    monkeypatch.setattr(cluster_view, "LOOK_S", 10 * QUICK_S)
    going, ask, tick = threading.Event(), StoreLink.ask, PartitionTable.tick
    passed: list[tuple[PartitionTable, float]] = []

    def wait(link: StoreLink) -> None:
        if link.location.store == behind.address:
            going.wait(PATIENCE_S)
        ask(link)

    def note(table: PartitionTable, passed_s: float, now_us: int) -> tuple[float, float]:
        passed.append((table, passed_s))
        return tick(table, passed_s, now_us)

    monkeypatch.setattr(StoreLink, "ask", wait)
    monkeypatch.setattr(PartitionTable, "tick", note)
    locations = [store.location, behind.location]
    with ClusterView({}, locations, interval_s=5 * QUICK_S) as view:
        view.wait(3)
        going.set()
        view.wait(6)
    _, *later = (passed_s for table, passed_s in passed if table is view._table)
    assert len(later) >= 5
    assert min(later) >= 5 * QUICK_S


def test_what_is_not_known_of_queries_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    queries = QueryWatch()
    with StoreClient(StoreLocation("S", ("grpc://127.0.0.1:1",))) as client:
        for _ in range(3):
            queries.look([client])
    assert len(caplog.records) == 1


def test_what_stores_keep_of_a_topic_is_told_as_soon_as_it_is_set(
    cluster: EmbeddedCluster, dafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "SPACE_EVERY_S", QUICK_S)

    def kept() -> list[str]:
        row = topic_row(view.snapshot, dafka_topic)
        return [] if row is None else list(row["kept"])

    with (
        Producer(dafka_topic, tower=cluster.tower) as producer,
        ClusterView({"tower": cluster.tower}, interval_s=QUICK_S) as view,
    ):
        producer.publish(b"v")
        wait_until(lambda: kept() == ["forever"], "without rules all is kept")
        wait_until(lambda: len(view.clients()) == 2, "two stores")
        client = view.clients()[0]
        rules = RetentionRequest(rules=(f"{dafka_topic}=12h,10GiB",))
        client.ask(PATIENCE_S, rules)
        wait_until(lambda: kept() == ["12h,10GiB", "forever"], "one store has a rule")
        client.ask(PATIENCE_S, RetentionRequest(reset=True))
        wait_until(lambda: kept() == ["forever"], "and has it no more")


def test_who_waits_is_woken_by_the_end(tmp_path: Path) -> None:
    with StoreDouble(tmp_path) as store:
        view = ClusterView({}, [store.location], interval_s=QUICK_S)
        view.wait(1, PATIENCE_S)

        async def wait() -> Snapshot:
            waiting = asyncio.create_task(view.wait_async(10**9))
            await asyncio.sleep(0)
            await asyncio.to_thread(view.close)
            return await waiting

        assert asyncio.run(wait()).number >= 1
        assert view.closed
        view.close()


TP = TopicPartition("t", "A" * 32)


def test_what_has_changed_is_told_and_what_all_takes_seldom(tmp_path: Path) -> None:
    with StoreDouble(tmp_path) as store, StoreLink(store.location, NO_KEYS) as link:
        store.append(TP, [b"x" * 100] * 5)
        link.ask()
        assert link.heads is not None
        assert link.heads.complete
        assert [(info.tp, info.end) for info in link.heads.heads] == [(TP, 5)]
        assert link.is_facts_due(are_new=False)
        (fact,) = link.ask_facts()
        assert (fact.records, link.is_facts_due(are_new=False)) == (5, False)
        # A new partition is asked for sooner.
        wait_until(lambda: link.is_facts_due(are_new=True))
        assert not link.is_facts_due(are_new=False)
        state = link.state
        assert state.here
        assert state.space is not None
        assert state.space.file_bytes > 0
        link.ask()
        assert link.heads is not None
        assert (link.heads.complete, link.heads.heads) == (False, ())


def test_a_store_that_is_gone_is_said_and_asked_for_everything_when_it_is_back(
    tmp_path: Path,
) -> None:
    with StoreDouble(tmp_path) as store, StoreLink(store.location, NO_KEYS) as link:
        store.append(TP, [b"x"])
        link.ask()
        assert len(link.ask_facts()) == 1
        port = store.port
        store.stop()
        link.ask()
        state = link.state
        assert (state.here, link.heads, link.ask_facts()) == (False, None, [])
        assert state.store in state.failure
        store.start(port)

        def answers() -> bool:
            link.ask()
            return link.heads is not None

        wait_until(answers, "gRPC connects again")
        assert link.heads is not None
        assert link.heads.complete
        assert link.state.failure == ""

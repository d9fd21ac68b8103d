"""The view of a cluster: it polls stores and queries in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final

from dafka_console.snapshot import (
    BYTES,
    NO_FLIGHT,
    NOTHING,
    RECORDS,
    PartitionTable,
    Snapshot,
    StoreState,
    TimeSeries,
)
from dafka_core.config.node_options import ALL_NODES, KeyFiles, keys_in
from dafka_core.errors import (
    ClosedError,
    DafkaError,
    InvalidRequestError,
    NodeFailedError,
    NoStoreError,
    NotAllowedError,
)
from dafka_core.flight.requests import (
    HeadsSince,
    PeersRequest,
    RetentionRequest,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import KnownStore, Neighbour
from dafka_core.nodes.node import InterruptibleCondition, NodeThread, weakly
from dafka_core.nodes.reader import Reader
from dafka_core.queries.query_progress import PartitionLag, QueryLag, query_lags
from dafka_core.storage import PartitionStatistics
from dafka_core.system.closing import Closing, ProcessBound
from dafka_kafka.groups.group_lag import GroupLag

ANSWER_S: Final = 5.0  # time for a store's answer
SPACE_EVERY_S: Final = 5.0  # interval between questions about a store's file and connections

FACTS_EVERY_S: Final = 30.0
FACTS_SHARE: Final = 0.02
"""Interval between questions about disk usage by partition, and the share of time that they may
take: with 10,000 partitions a store reads as many rows."""

NEW_FACTS_EVERY_S: Final = 1.0  # the interval while some partitions are unknown


class StoreLink(Closing):
    """A store and its last answers.

    One thread at a time asks for changes, and one for disk usage.
    """

    def __init__(self, location: StoreLocation, keys: KeyFiles) -> None:
        self.location = location
        self.client = StoreClient(location, keys)
        # Changes since the last question; None without an answer.
        self.heads: HeadsSince | None = None
        # Pending questions, for the caller, which also counts the partitions in the state.
        self.asking: Future[None] | None = None
        self.asking_facts: Future[Sequence[PartitionStatistics]] | None = None
        self.state = StoreState(location.store, location.locations)
        self._cursor = ""
        self._space_due = self._facts_due = self._new_facts_due = 0.0

    def ask(self) -> None:
        """Ask the store; keep its answer, or why it has none."""
        began = time.monotonic()
        try:
            heads = self.client.watch(None, self._cursor, wait_s=0, timeout_s=ANSWER_S)
            self._cursor = heads.cursor
            state = self.state._replace(answered_s=time.monotonic() - began)
            if began >= self._space_due:
                state = state._replace(space=self.client.space(timeout_s=ANSWER_S))
                with suppress(NotAllowedError):
                    (found,) = self.client.ask(ANSWER_S, PeersRequest())
                    state = state._replace(peers=found.peers)
                with suppress(InvalidRequestError):  # it has no rules
                    (active,) = self.client.ask(ANSWER_S, RetentionRequest())
                    state = state._replace(rules=active.rules)
                self._space_due = began + SPACE_EVERY_S
            self.heads = heads
            self.state = state._replace(here=True, failure="", since_us=time.time_ns() // 1000)
        except DafkaError as error:
            self.heads, self._cursor = None, ""
            self.state = self.state._replace(here=False, failure=str(error))
            self._facts_due = self._new_facts_due = 0.0

    def close(self) -> None:
        """Disconnect."""
        self.client.close()

    def is_facts_due(self, *, are_new: bool) -> bool:
        """Return whether disk usage is due, possibly for new partitions."""
        due_s = self._new_facts_due if are_new else self._facts_due
        return self.heads is not None and time.monotonic() >= due_s

    def ask_facts(self) -> Sequence[PartitionStatistics]:
        """Return the disk usage of partitions; empty without an answer."""
        began = time.monotonic()
        try:
            found = self.client.facts(None, timeout_s=6 * ANSWER_S)
        except DafkaError:
            found = []
        now = time.monotonic()
        pause_s = (now - began) / FACTS_SHARE
        self._facts_due = now + max(FACTS_EVERY_S, pause_s)
        self._new_facts_due = now + max(NEW_FACTS_EVERY_S, pause_s)
        return found


EVERY_S: Final = 3.0
SHARE: Final = 0.05
"""Interval between lag measurements, and the share of time that they may take: stores read every
partition for them."""

MOST_RUNS: Final = 1_000  # runs that are kept: any client can write reports

_log: Final = logging.getLogger("dafka.console")


def behind(lag: QueryLag | PartitionLag | GroupLag) -> dict[str, Any]:
    """The lag, for programs and pages."""
    seconds = lag.seconds_behind
    return {
        "records_behind": lag.records_behind,
        "bytes_behind": lag.bytes_behind,
        "seconds_behind": None if seconds is None else round(seconds, 1),
    }


class QueryWatch:
    """Keeps the lag of each run of a query; ``look`` is called by one thread at a time."""

    def __init__(self) -> None:
        self.runs: Sequence[QueryLag] = ()  # the last result
        self.lags = TimeSeries()
        self._due = 0.0
        self._failure = ""  # the last one, logged once

    @property
    def is_due(self) -> bool:
        """Return whether the next measurement is due."""
        return time.monotonic() >= self._due

    def look(self, clients: Sequence[StoreClient]) -> None:
        """Ask the stores; keep the last result if one does not answer."""
        began = time.monotonic()
        try:
            self.keep(query_lags(clients, QUERIES_TOPIC, timeout_s=ANSWER_S), time.time())
            self._failure = ""
        except DafkaError as error:
            if str(error) != self._failure:
                _log.warning("how far queries are behind is not known: %s", error)
            self._failure = str(error)
        ended = time.monotonic()
        self._due = ended + max(EVERY_S, (ended - began) / SHARE)

    def keep(self, lags: Sequence[QueryLag], time_s: float) -> None:
        """Add a measurement; forget runs that it does not contain."""
        self.runs = lags[:MOST_RUNS]
        names = [(each.query, each.run) for each in self.runs]
        self.lags.add(time_s, names, [each.records_behind for each in self.runs])


HEAR_S: Final = 2.0  # time in which reachable stores are discovered
LOOK_S: Final = 1.0  # time that an update waits for stores: a slow one must not delay the others

MISSING_EVERY_S: Final = 10.0
"""Interval between questions about missing stores, which concern the whole mesh."""

MOST_ASKED: Final = 16  # stores asked at a time, with a thread each


class ClusterView(ProcessBound):
    """Asks the stores every ``interval_s`` seconds for changes, and makes a snapshot.

    Args:
        options: how to join the mesh, as for ``Reader``, whose errors it raises.
        locations: stores to ask instead of those of a mesh.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        locations: Sequence[StoreLocation] = (),
        *,
        interval_s: float = 1.0,
    ) -> None:
        self._keys = keys_in(options)
        # So all nodes connect to this one, and report what they are.
        everything = {**options, "connect_to": ALL_NODES}
        self._reader = None if locations else Reader(**everything)
        self._named = {each.store: each for each in locations}
        self._interval_s = interval_s
        self.snapshot = NOTHING  # the newest one
        self._links: dict[str, StoreLink] = {}
        self._table = PartitionTable()
        self._rates = TimeSeries()
        self._looked_at = time.monotonic()
        self._queries = QueryWatch()
        self._looking: Future[None] | None = None  # for queries
        self._missing: tuple[KnownStore, ...] = ()
        self._missing_due = 0.0
        self.closed = False  # or it can no longer be updated
        self._news = InterruptibleCondition()
        self._pool = ThreadPoolExecutor(MOST_ASKED, "dafka-console")
        self._thread = NodeThread("dafka-view", weakly(self._run, None))
        self._thread.start()

    def clients(self) -> list[StoreClient]:
        """Clients of the stores that answered last; the view closes them."""
        here = {each.store for each in self.snapshot.stores if each.here}
        return [link.client for store, link in [*self._links.items()] if store in here]

    def wait(self, number: int, timeout_s: float | None = None) -> Snapshot:
        """Return the first snapshot with at least this number, or the newest after the timeout."""
        self._news.wait_until(lambda: self.closed or self.snapshot.number >= number, timeout_s)
        return self.snapshot

    async def wait_async(self, number: int) -> Snapshot:
        """Wait as ``wait`` does, in an event loop, without a timeout, and until closed."""
        await self._news.wait_until_async(lambda: self.closed or self.snapshot.number >= number)
        return self.snapshot

    def close(self) -> None:
        """Stop, and leave the mesh; may be repeated."""
        self.closed = True
        self._news.notify()
        self._thread.join()
        for link in self._links.values():
            link.close()  # ends pending questions
        self._pool.shutdown(cancel_futures=True)
        if self._reader is not None:
            self._reader.close()

    # -- in the view's thread --------------------------------------------------------------------

    def _run(self) -> None:
        if self._reader is not None:
            with suppress(NoStoreError, ClosedError, NodeFailedError):
                self._reader.wait_for_stores(timeout_s=HEAR_S)
        while not self.closed:
            began = time.monotonic()
            try:
                self.snapshot = self._look(began)
            except (ClosedError, NodeFailedError) as error:
                _log.error("the console sees no more of the cluster: %s", error)
                self.closed = True
            except Exception as error:  # noqa: BLE001 -- also of a thread that cannot start
                _log.warning("the cluster's state could not be updated: %s", error)
            self._news.notify()
            left_s = max(began + self._interval_s - time.monotonic(), 0.05)
            self._news.wait_until(lambda: self.closed, left_s)

    def _look(self, began: float) -> Snapshot:
        self._find_stores()
        links = [*self._links.values()]
        self._ask(links)
        now, time_s = time.monotonic(), time.time()
        if answered := [link.client for link in links if link.heads is not None]:
            # Between beginnings: of one that waits for a slow store the others' answers are as old.
            rates = self._table.tick(began - self._looked_at, int(time_s * 1e6))
            self._looked_at = began
        columns = self._table.columns()
        if answered:  # otherwise the last rates stay
            names = [RECORDS, BYTES, *columns.topics]
            self._rates.add(time_s, names, [*rates, *columns.topic_rates])
        found: list[StoreState] = []
        for link in links:
            store = link.location.store
            behind = columns.behind(store) if store in columns.stores else 0
            found.append(link.state._replace(partitions=self._table.held(store), behind=behind))
        nodes, towers, own, missing = self._mesh(found)
        self._look_for_queries(answered)
        return Snapshot(
            self.snapshot.number + 1,
            time_s,
            now - began,
            columns,
            tuple(found),
            nodes,
            towers,
            own,
            missing,
            self._queries.runs,
            self._rates,
            self._queries.lags,
        )

    def _ask(self, links: Sequence[StoreLink]) -> None:
        """Ask the stores for changes; a slow one is awaited by later updates."""
        for link in links:
            if link.asking is None:
                link.asking = self._pool.submit(link.ask)
        wait([link.asking for link in links if link.asking], LOOK_S)
        for link in links:
            if link.asking is not None and link.asking.done():
                link.asking.result()
                link.asking = None
                if (heads := link.heads) is None:
                    self._table.drop(link.location.store)
                else:
                    self._table.hear(link.location.store, heads.heads, complete=heads.complete)
            are_new = self._table.lacks_facts()
            if link.asking_facts is None and link.is_facts_due(are_new=are_new):
                link.asking_facts = self._pool.submit(link.ask_facts)
                wait([link.asking_facts], LOOK_S / 2)
            if link.asking_facts is not None and link.asking_facts.done():
                self._table.learn(link.asking_facts.result())
                link.asking_facts = None

    def _look_for_queries(self, clients: Sequence[StoreClient]) -> None:
        """Separately: with many partitions it takes seconds."""
        if self._looking is not None and self._looking.done():
            self._looking = None
        if self._looking is None and self._queries.is_due and clients:
            self._looking = self._pool.submit(self._queries.look, clients)

    def _find_stores(self) -> None:
        """Keep a link to each reachable store, and of one that has gone until it is forgotten."""
        found = dict(self._named)
        if self._reader is not None:
            for store, uris in self._reader.endpoints().items():
                found[store] = StoreLocation(store, uris)
        for store, location in found.items():
            link = self._links.get(store)
            if link is not None and link.location.locations != location.locations:
                link.close()  # restarted elsewhere
                link = None
            if link is None:
                self._links[store] = StoreLink(location, self._keys)

    def _forget(self, known: Set[str]) -> None:
        """Drop the silent stores that no other store knows any more."""
        for store in self._links.keys() - known - self._named.keys():
            if not self._links[store].state.here:
                self._links.pop(store).close()
                self._table.forget(store)

    def _mesh(
        self, found: list[StoreState]
    ) -> tuple[Sequence[Neighbour], Sequence[str], str, Sequence[KnownStore]]:
        """Return nodes, towers, this view's own address, and missing stores.

        Stores without Arrow Flight are added to the ones ``found``.
        """
        reader = self._reader
        if reader is None:
            return (), (), "", ()
        known = {each.store for each in found}
        found += [
            StoreState(store, failure=NO_FLIGHT) for store in reader.stores() if store not in known
        ]
        if (now := time.monotonic()) >= self._missing_due:
            self._missing = tuple(reader.missing_stores(timeout_s=0.01))
            self._missing_due = now + MISSING_EVERY_S
            if here := reader.stores():
                self._forget({*here, *(each.store for each in self._missing)})
        return tuple(reader.neighbours()), tuple(reader.towers()), reader.address, self._missing

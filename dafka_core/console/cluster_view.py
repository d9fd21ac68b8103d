"""Looks at a cluster in the background, once for all who want to see it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final

from dafka_core.closing import ProcessBound
from dafka_core.console.partition_table import PartitionTable
from dafka_core.console.query_watch import QueryWatch
from dafka_core.console.snapshot import NO_FLIGHT, NOTHING, Moment, Snapshot, StoreState
from dafka_core.console.store_link import ANSWER_S, StoreLink
from dafka_core.errors import ClosedError, DafkaError, NodeFailedError, NoStoreError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.nodes.reader import Reader
from dafka_core.nodes.threads import InterruptibleCondition, NodeThread, weakly
from dafka_core.records import KnownStore, Neighbour
from dafka_core.security_options import KeyFiles, keys_in

HEAR_S: Final = 2.0
"""Stores that are there are heard of in less."""

LOOK_S: Final = 1.0
"""How long a look waits for stores: one that is slow holds up none of the others."""

MISSING_EVERY_S: Final = 10.0
"""How often stores are asked whom they miss: it is a question to the whole mesh."""

MOST_MOMENTS: Final = 600
"""Of the history of how much was written: ten minutes at the usual interval."""

MOST_ASKED: Final = 16
"""Stores asked at one time: each holds a thread."""

_log: Final = logging.getLogger("dafka.console")


class ClusterView(ProcessBound):
    """Asks the stores every ``interval_s`` seconds what has changed, and makes a snapshot of it.

    Args:
        options: how to join the mesh, as ``Reader`` takes them.
        locations: stores to ask in place of those of a mesh.
        interval_s: how often.

    Raises:
        ConfigError: an option cannot be used.
        TowerNotFoundError: no tower answered.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        locations: Sequence[StoreLocation] = (),
        *,
        interval_s: float = 1.0,
    ) -> None:
        self._keys = keys_in(options)
        self._reader = None if locations else Reader(**options)
        self._named = {each.store: each for each in locations}
        self._interval_s = interval_s
        self._snapshot = NOTHING
        self._links: dict[str, StoreLink] = {}
        self._table = PartitionTable()
        self._history: deque[Moment] = deque(maxlen=MOST_MOMENTS)
        self._looked_at = time.monotonic()
        self._queries = QueryWatch()
        self._looking: Future[None] | None = None  # for queries
        self._missing: tuple[KnownStore, ...] = ()
        self._missing_due = 0.0
        self._stopping = False
        self._news = InterruptibleCondition()
        self._pool = ThreadPoolExecutor(MOST_ASKED, "dafka-console")
        self._thread = NodeThread("dafka-view", weakly(self._run, None))
        self._thread.start()

    @property
    def snapshot(self) -> Snapshot:
        """The newest one."""
        return self._snapshot

    def clients(self) -> list[StoreClient]:
        """Clients of the stores that answered last; they are the view's, and not to be closed."""
        here = {each.store for each in self._snapshot.stores if each.here}
        return [link.client for store, link in [*self._links.items()] if store in here]

    def wait(self, number: int, timeout_s: float | None = None) -> Snapshot:
        """The first snapshot with this number or a higher one, or the newest when time is over."""
        self._news.wait_until(lambda: self._stopping or self._snapshot.number >= number, timeout_s)
        return self._snapshot

    async def wait_async(self, number: int) -> Snapshot:
        """The same in an event loop, and without a limit; also when the view is closed."""
        await self._news.wait_until_async(lambda: self._stopping or self._snapshot.number >= number)
        return self._snapshot

    @property
    def closed(self) -> bool:
        """Whether it looks no more."""
        return self._stopping

    def close(self) -> None:
        """Looks no more, and leaves the mesh; may be repeated."""
        self._stopping = True
        self._news.notify()
        self._thread.join()
        for link in self._links.values():
            link.close()  # which ends what they are asked
        self._pool.shutdown(cancel_futures=True)
        if self._reader is not None:
            self._reader.close()

    # -- in the view's thread --------------------------------------------------------------------

    def _run(self) -> None:
        if self._reader is not None:
            with suppress(NoStoreError, ClosedError, NodeFailedError):
                self._reader.hear_stores(timeout_s=HEAR_S)
        while not self._stopping:
            began = time.monotonic()
            try:
                self._snapshot = self._look(began)
            except (ClosedError, NodeFailedError) as error:
                _log.error("the console sees no more of the cluster: %s", error)
                self._stopping = True
            except DafkaError as error:
                _log.warning("the cluster could not be looked at: %s", error)
            self._news.notify()
            left_s = max(began + self._interval_s - time.monotonic(), 0.05)
            self._news.wait_until(lambda: self._stopping, left_s)

    def _look(self, began: float) -> Snapshot:
        self._find_stores()
        links = [*self._links.values()]
        self._ask(links)
        now, time_s = time.monotonic(), time.time()
        rates = self._table.tick(now - self._looked_at, int(time_s * 1e6))
        self._looked_at = now
        self._history.append(Moment(time_s, *rates))
        columns = self._table.columns()
        found: list[StoreState] = []
        for link in links:
            behind = columns.behind(link.store) if link.store in columns.stores else 0
            found.append(link.state(self._table.held(link.store), behind))
        nodes, towers, own, missing = self._mesh(found)
        self._look_for_queries([link.client for link in links if link.heads is not None])
        return Snapshot(
            self._snapshot.number + 1,
            time_s,
            now - began,
            columns,
            tuple(found),
            nodes,
            towers,
            own,
            missing,
            self._queries.states,
            tuple(self._history),
        )

    def _ask(self, links: Sequence[StoreLink]) -> None:
        """Asks the stores what has changed; one that is slow is waited for in later looks."""
        for link in links:
            if link.asking is None:
                link.asking = self._pool.submit(link.ask)
        wait([link.asking for link in links if link.asking], LOOK_S)
        for link in links:
            if link.asking is not None and link.asking.done():
                link.asking.result()
                link.asking = None
                if link.heads is None:
                    self._table.drop(link.store)
                else:
                    self._table.hear(link.store, link.heads.heads, complete=link.heads.complete)
            are_new = self._table.lacks_facts()
            if link.asking_facts is None and link.is_facts_due(are_new=are_new):
                link.asking_facts = self._pool.submit(link.ask_facts)
                wait([link.asking_facts], LOOK_S / 2)
            if link.asking_facts is not None and link.asking_facts.done():
                self._table.learn(link.asking_facts.result())
                link.asking_facts = None

    def _look_for_queries(self, clients: Sequence[StoreClient]) -> None:
        """Beside everything else: with many partitions it takes seconds."""
        if self._looking is not None and self._looking.done():
            self._looking = None
        if self._looking is None and self._queries.is_due and clients:
            self._looking = self._pool.submit(self._queries.look, clients)

    def _find_stores(self) -> None:
        """Has a link to each store that is there; one that has gone keeps its link, silent."""
        found = dict(self._named)
        if self._reader is not None:
            for store, uris in self._reader.endpoints().items():
                found[store] = StoreLocation(store, uris)
        for store, location in found.items():
            link = self._links.get(store)
            if link is not None and link.location.locations != location.locations:
                link.close()  # it was started again, elsewhere
                link = None
            if link is None:
                self._links[store] = StoreLink(location, self._keys)

    def _mesh(
        self, found: list[StoreState]
    ) -> tuple[Sequence[Neighbour], Sequence[str], str, Sequence[KnownStore]]:
        """Nodes, towers, the address of this view's own node, and stores that are missing.

        Stores that serve no Arrow Flight are added to those that were ``found``.
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
        return tuple(reader.neighbours()), tuple(reader.towers()), reader.address, self._missing


def located(uris: Sequence[str], keys: KeyFiles) -> list[StoreLocation]:
    """The stores at some URIs, each as it describes itself.

    Raises:
        StoreUnreachableError: one does not answer.
    """
    found = []
    for uri in uris:
        with StoreClient(StoreLocation("", (uri,)), keys) as client:
            location = client.describe(timeout_s=ANSWER_S)
        found.append(location.found_at([uri]))
    return found

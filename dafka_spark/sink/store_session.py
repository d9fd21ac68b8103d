"""The stores of one task or one driver call: clients, found again after a failure."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple, TypeVar

from dafka_core.config.missing_stores import EVERY_STORE
from dafka_core.errors import ConfigError, NoStoreError, NotAcknowledgedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import NO_VERSION, TopicPartition, Transaction, TransactionState
from dafka_core.system.closing import Closing
from dafka_spark.cluster import cluster_reader, connections, timing
from dafka_spark.cluster.cluster_reader import remember, remembered
from dafka_spark.cluster.store_registry import StoreRegistry
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import MeshAddress

_log = logging.getLogger("dafka_spark")

T = TypeVar("T")

Answers = list[tuple[StoreClient, T]]
Written = Sequence[tuple[TopicPartition, Transaction]]

_registries: Final[dict[MeshAddress, StoreRegistry]] = {}
"""The stores of each mesh that this process knows; a forked child starts without any."""

os.register_at_fork(after_in_child=_registries.clear)


class PickedStore(NamedTuple):
    """The store that the driver has picked, where all tasks of a batch stage their rows.

    ``locations`` are those of all stores, so that tasks need not discover them.
    """

    store: str
    locations: tuple[StoreLocation, ...]


class StoreSession(Closing):
    """Clients of the stores of one mesh; ``locations`` are those that another process knows."""

    def __init__(self, address: MeshAddress, locations: Sequence[StoreLocation] = ()) -> None:
        self._address = address
        self._stack = ExitStack()
        registry = _registries.get(address)
        if registry is None or not _endpoints(locations) <= _endpoints(registry.locations):
            # Their age is unknown, so ``clients`` verifies them.
            known = remembered(address.name)
            if not known:  # this machine is new
                remember(address.name, locations)
            registry = StoreRegistry(locations or known, keys=address.keys)
            _registries[address] = registry
        self._registry = registry

    def close(self) -> None:
        """Return the clients to the pool."""
        self._stack.close()

    @property
    def locations(self) -> list[StoreLocation]:
        """The locations of the stores that answered last time."""
        return self._registry.locations

    @property
    def silent(self) -> list[str]:
        """Stores that stopped answering less than ``STORE_TIMEOUT_S`` ago: they may come back."""
        return self._registry.silent(timing.STORE_TIMEOUT_S)

    def clients(self) -> list[StoreClient]:
        """Return the known stores if one of them confirms the list; otherwise ``refresh``.

        Without a confirmation, commits of a store that has returned would be missed.
        """
        registry, locations = self._registry, self._registry.locations
        if locations and time.monotonic() < registry.updated_at + timing.REGISTRY_MAX_AGE_S:
            return self._borrowed(locations)
        if locations and not registry.silent():
            clients = self._borrowed(locations)
            with suppress(StoreUnreachableError):
                confirmed = clients[0].stores(timeout_s=timing.REQUEST_TIMEOUT_S)
                if _endpoints(confirmed) == _endpoints(locations):
                    return clients
        return self.refresh()

    def refresh(self) -> list[StoreClient]:
        """Discover the stores in the mesh and return those that answer, if any."""
        registry = self._registry
        with connections.borrow_reader(self._address) as reader:
            with suppress(NoStoreError):
                reader.wait_for_stores(timeout_s=timing.DISCOVERY_TIMEOUT_S)
            registry.update(reader.endpoints(), reader.stores())
        registry.ask(lambda client: None, max_age_s=0.0, again=True)
        remember(self._address.name, registry.locations)
        return self._borrowed(registry.locations)

    def require(self, acks: int, deadline: Deadline) -> None:
        """Wait for as many stores as must acknowledge, at least one; log once what is missing."""
        has_logged = False
        for attempt in deadline.attempts():
            found = len(self.refresh() if attempt else self.clients())
            if found >= max(acks, 1):
                return
            if not found and self._registry.others:
                if deadline.waited_s >= timing.FLIGHT_ANNOUNCE_TIMEOUT_S:
                    break
            elif deadline.waited_s >= timing.DISCOVERY_TIMEOUT_S and not (
                has_logged or deadline.is_over
            ):
                has_logged = True
                if found:
                    error = self._too_few(found, acks, round(deadline.waited_s, 1))
                    _log.warning("%s. The query waits for up to %g s", error, deadline.timeout_s)
                    continue
                no_store = NoStoreError((self._address.name,), deadline.waited_s)
                with connections.borrow_reader(self._address) as reader:
                    cluster_reader.explain(reader, self._address, no_store, deadline)
        raise self._too_few(found, acks, deadline.timeout_s)

    def _too_few(self, found: int, acks: int, waited_s: float) -> ConfigError:
        if found:
            why = f"there are only {found} stores with Arrow Flight after {waited_s:g} s"
            return ConfigError("acks", acks, f"{why}: start more of them, or lower acks")
        why = f"no store with Arrow Flight answers within {waited_s:g} s"
        if others := self._registry.others:
            why = f"none of the stores here ({', '.join(others)}) serves Arrow Flight"
        cure = "start a store that does beside them, with 'dafka store --dir DIR'"
        why = f"Spark cannot write there, as {why}: {cure}"
        return ConfigError("tower", self._address.name, why)

    def ask(self, request: Callable[[StoreClient], T], deadline: Deadline) -> Answers[T]:
        """Return the answers of all stores, at least of one.

        Waits for a store that does not answer until the mesh has given it up: it may return at
        once, with more records than the others.
        """
        given_up = Deadline(timing.STORE_TIMEOUT_S)
        lost = StoreUnreachableError("", "no store with Arrow Flight is reachable")
        for attempt in deadline.attempts():
            clients = self.refresh() if attempt or self.silent else self.clients()
            answers: Answers[T] = []
            failures: list[StoreUnreachableError] = []
            for client in clients:
                try:
                    answers.append((client, request(client)))
                except StoreUnreachableError as error:
                    failures.append(error)
            if not given_up.is_over:
                why = "it does not answer, and may have more than those that do"
                failures += [StoreUnreachableError(store, why) for store in self.silent]
            if answers and not failures:
                return answers
            lost = failures[0] if failures else lost
        raise lost

    def do_at(self, store: str, work: Callable[[StoreClient], T], deadline: Deadline) -> T:
        """Do some work at a store, again after each loss of the store until the deadline."""
        lost = StoreUnreachableError(store, "it is unreachable")
        for client in self.clients_at(store, deadline):
            try:
                if client is not None:
                    return work(client)
            except StoreUnreachableError as error:
                lost = error
        raise lost

    def clients_at(self, store: str, deadline: Deadline) -> Iterator[StoreClient | None]:
        """Yield a client of a store for each attempt until the deadline; None while it is away."""
        for attempt in deadline.attempts():
            # Known stores need no confirmation here: the store itself answers or does not.
            known = self._borrowed(self.locations) if not attempt else []
            clients = known or self.refresh()
            yield next((each for each in clients if each.location.store == store), None)

    def has_given_up(self, store: str) -> bool:
        """Return True if the mesh has given up a store and other stores are reachable."""
        others = {each.store for each in self.locations}
        return bool(others) and store not in others.union(self.silent)

    def wait_for_acks(
        self, written: Written, acks: int, holder: str | None, deadline: Deadline
    ) -> None:
        """Wait until ``acks`` stores have all of these transactions on disk.

        ``EVERY_STORE`` means the stores of the session, renewed when one is lost; one store is
        enough when the others are gone.  A store that catches up is waited for while it makes
        progress.  ``holder`` has committed them, if it is known.
        """
        have = {holder} if holder else set()
        behind: dict[str, _Behind] = {}
        given_up = Deadline(timing.STORE_TIMEOUT_S)
        clients = self.clients()
        while True:
            is_lost = False
            for client in clients:
                store = client.location.store
                if store in have or (acks != EVERY_STORE and len(have) >= acks):
                    continue
                before = behind.get(store, _Behind(written, 0))
                try:
                    wait_s = min(deadline.left_s, timing.POLL_INTERVAL_S)
                    now = _missing_at(client, before.transactions, wait_s)
                except StoreUnreachableError:
                    is_lost = True
                    continue
                if not now.transactions:
                    have.add(store)
                    continue
                is_new = len(now.transactions) < len(before.transactions)
                if store in behind and (is_new or now.end > before.end):
                    deadline.restart()
                behind[store] = now
            others = {client.location.store for client in clients} - have
            all_have = bool(have) and not others and (given_up.is_over or not self.silent)
            if all_have if acks == EVERY_STORE else len(have) >= acks:
                return
            if deadline.is_over:
                tp, last = written[-1]
                error = NotAcknowledgedError(*tp, last.end - last.start, deadline.timeout_s)
                for store in sorted(others & behind.keys()):
                    error.add_note(f"store {store} {behind[store]}")
                raise error
            if is_lost or not others:
                deadline.pause()
                clients = self.refresh()

    def _borrowed(self, locations: Sequence[StoreLocation]) -> list[StoreClient]:
        borrow, keys = connections.borrow_client, self._address.keys
        return [self._stack.enter_context(borrow(location, keys)) for location in locations]


class _Behind(NamedTuple):
    """The transactions that a store lacks, and the end of the last one's partition there."""

    transactions: Written
    end: int

    def __str__(self) -> str:
        tp, last = self.transactions[-1]
        why = f"has {tp} up to offset {self.end}, and others up to {last.end}"
        return f"{why}: repair or stop it, or lower option acks"


def _missing_at(client: StoreClient, written: Written, wait_s: float) -> _Behind:
    """Wait for the last of the transactions, then ask for the others in one request."""
    tp, last = written[-1]
    wanted = None if last.version == NO_VERSION else last
    end = client.wait(tp, last.end, transaction=wanted, timeout_s=wait_s)
    if end < last.end:
        return _Behind(written, end)
    others = written[:-1]
    tps = [tp for tp, _ in others]
    states = client.transaction_states(tps, timeout_s=timing.REQUEST_TIMEOUT_S)
    pairs = zip(others, states, strict=True)
    left = [(each, state.end) for each, state in pairs if not _has(state, each[1])]
    return _Behind([each for each, _ in left], left[-1][1] if left else end)


def _has(state: TransactionState, transaction: Transaction) -> bool:
    last = state.transaction
    is_known = transaction.version == NO_VERSION or (
        last is not None and (last == transaction or last.version > transaction.version)
    )
    return is_known and state.end >= transaction.end


def _endpoints(locations: Sequence[StoreLocation]) -> set[tuple[str, tuple[str, ...]]]:
    return {(each.store, each.locations) for each in locations}

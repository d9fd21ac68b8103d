"""The stores that one task or one driver call uses: clients, found again after a failure."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple, TypeVar

from dafka_core.errors import ConfigError, NoStoreError, NotAcknowledgedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import NO_VERSION, TopicPartition, Transaction, TransactionState
from dafka_core.system.closing import Closing
from dafka_spark.cluster import connections, preflight, timing
from dafka_spark.cluster.known_stores import remember, remembered
from dafka_spark.cluster.store_registry import StoreRegistry
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_types import ALL_STORES
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
    """Clients of the stores of one mesh; to be closed.

    Args:
        address: how to join the mesh.
        locations: the stores' locations, as another process knows them.
    """

    def __init__(self, address: MeshAddress, locations: Sequence[StoreLocation] = ()) -> None:
        self._address = address
        self._stack = ExitStack()
        registry = _registries.get(address)
        if registry is None or not _endpoints(locations) <= _endpoints(registry.locations):
            # Their age is unknown, so ``current`` verifies them.
            found = locations or remembered(address.name)
            registry = _registries[address] = StoreRegistry(found, keys=address.keys)
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

    def known(self) -> list[StoreClient]:
        """Return the known stores without contacting them; discover them if there are none."""
        locations = self._registry.locations
        return self._clients(locations) if locations else self.refresh()

    def current(self) -> list[StoreClient]:
        """Return the known stores if one of them confirms the list; otherwise ``refresh``.

        Otherwise the commits of a store that has returned could be missed, and written again.
        """
        registry, locations = self._registry, self._registry.locations
        if not locations:
            return self.refresh()
        clients = self._clients(locations)
        if time.monotonic() - registry.updated_at < timing.REGISTRY_MAX_AGE_S:
            return clients
        if not registry.silent():
            with suppress(StoreUnreachableError):
                confirmed = clients[0].stores(timeout_s=timing.REQUEST_TIMEOUT_S)
                if _endpoints(confirmed) == _endpoints(locations):
                    return clients
        return self.refresh()

    def refresh(self) -> list[StoreClient]:
        """Discover the stores in the mesh and return those that answer, if any."""
        registry = self._registry
        with connections.lend(self._address) as reader:
            with suppress(NoStoreError):
                reader.hear_stores(timeout_s=timing.DISCOVERY_TIMEOUT_S)
            registry.update(reader.endpoints(), reader.stores())
        registry.ask(lambda client: None, max_age_s=0.0, again=True)
        remember(self._address.name, registry.locations)
        return self._clients(registry.locations)

    def require(self, acks: int, deadline: Deadline) -> list[StoreClient]:
        """Return the stores as soon as there are as many as must acknowledge, at least one.

        Logs once what is missing while it waits.

        Raises:
            ConfigError: too few stores serve Arrow Flight.
            NoStoreError: no store answers at the addresses in option ``stores``.
        """
        found: list[StoreClient] = []
        has_logged = False
        for attempt in deadline.attempts():
            found = self.refresh() if attempt else self.current()
            if len(found) >= max(acks, 1):
                return found
            if not found and self._registry.others:
                if deadline.waited_s >= timing.FLIGHT_ANNOUNCE_TIMEOUT_S:
                    break
            elif deadline.waited_s >= timing.DISCOVERY_TIMEOUT_S and not (
                has_logged or deadline.is_over
            ):
                has_logged = True
                self._log_missing(len(found), acks, deadline)
        raise self._too_few(len(found), acks, deadline.timeout_s)

    def _log_missing(self, found: int, acks: int, deadline: Deadline) -> None:
        if not found:
            no_store = NoStoreError((self._address.name,), deadline.waited_s)
            with connections.lend(self._address) as reader:
                preflight.explain(reader, self._address, no_store, deadline)
        else:
            error = self._too_few(found, acks, round(deadline.waited_s, 1))
            _log.warning("%s. The query waits for up to %g s", error, deadline.timeout_s)

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
        """Return the answers of all stores.

        Waits for a store that does not answer until the mesh has given it up: it may return at
        once, with more records than the others.

        Raises:
            StoreUnreachableError: a store that may have more does not answer until the deadline,
                or no store does.
        """
        given_up = Deadline(timing.STORE_TIMEOUT_S)
        lost = StoreUnreachableError("", "no store with Arrow Flight is reachable")
        for attempt in deadline.attempts():
            clients = self.refresh() if attempt or self.silent else self.current()
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

    def clients_at(self, store: str, deadline: Deadline) -> Iterator[StoreClient | None]:
        """Yield a client of one store for each attempt until the deadline; None while it is away.

        Each attempt after the first discovers where the store is then.
        """
        for attempt in deadline.attempts():
            clients = self.refresh() if attempt else self.known()
            yield next((each for each in clients if each.location.store == store), None)

    def has_given_up(self, store: str) -> bool:
        """Return True if the mesh has given up a store and other stores are reachable."""
        others = {each.store for each in self.locations}
        return bool(others) and store not in others.union(self.silent)

    def wait_for_acks(
        self, written: Written, acks: int, holder: str | None, deadline: Deadline
    ) -> None:
        """Wait until ``acks`` stores have all of these transactions on disk.

        With ``ALL_STORES`` one store is enough when the others are gone.  A store that catches up
        is waited for as long as it makes progress.

        Args:
            holder: the store that has committed them, if it is known.

        Raises:
            NotAcknowledgedError: they don't have them at the deadline; a note names each store
                that is behind.
        """
        have = {holder} if holder else set()
        given_up = Deadline(timing.STORE_TIMEOUT_S)
        missing: dict[str, _Missing] = {}
        clients = self.current()
        while True:
            is_lost = False
            for client in clients:
                store = client.location.store
                if store in have or (acks != ALL_STORES and len(have) >= acks):
                    continue
                pending = missing.get(store, _Missing(written, 0))
                try:
                    wait_s = min(deadline.left_s, timing.POLL_INTERVAL_S)
                    left = _missing_at(client, pending.transactions, wait_s)
                except StoreUnreachableError:
                    is_lost = True
                    continue
                if left is None:
                    have.add(store)
                    continue
                is_new = len(left.transactions) < len(pending.transactions)
                if store in missing and (is_new or left.end > pending.end):
                    deadline.restart()
                missing[store] = left
            others = {client.location.store for client in clients} - have
            is_done = len(have) >= acks
            if acks == ALL_STORES:
                is_done = bool(have) and not others and (given_up.is_over or not self.silent)
            if is_done:
                return
            if deadline.is_over:
                behind = {store: missing[store] for store in others & missing.keys()}
                raise _not_acknowledged(written, behind, deadline)
            if is_lost or not others:
                deadline.pause()
                clients = self.refresh()

    def _clients(self, locations: Sequence[StoreLocation]) -> list[StoreClient]:
        lend, keys = connections.lend_client, self._address.keys
        return [self._stack.enter_context(lend(location, keys)) for location in locations]


class _Missing(NamedTuple):
    """The transactions that a store lacks, and the end of the last one's partition there."""

    transactions: Written
    end: int


def _missing_at(client: StoreClient, written: Written, wait_s: float) -> _Missing | None:
    """Wait for the last of the transactions, then ask for the others in one request."""
    tp, last = written[-1]
    wanted = None if last.version == NO_VERSION else last
    end = client.wait(tp, last.end, transaction=wanted, timeout_s=wait_s)
    if end < last.end:
        return _Missing(written, end)
    if others := written[:-1]:
        tps = [tp for tp, _ in others]
        states = client.transaction_states(tps, timeout_s=timing.REQUEST_TIMEOUT_S)
        pairs = zip(others, states, strict=True)
        if left := [(each, state.end) for each, state in pairs if not _has(state, each[1])]:
            return _Missing([each for each, _ in left], left[-1][1])
    return None


def _has(state: TransactionState, transaction: Transaction) -> bool:
    last = state.transaction
    is_known = transaction.version == NO_VERSION or (
        last is not None and (last == transaction or last.version > transaction.version)
    )
    return is_known and state.end >= transaction.end


def _not_acknowledged(
    written: Written, missing: dict[str, _Missing], deadline: Deadline
) -> NotAcknowledgedError:
    tp, last = written[-1]
    error = NotAcknowledgedError(*tp, last.end - last.start, deadline.timeout_s)
    for store, (transactions, end) in sorted(missing.items()):
        tp, last = transactions[-1]
        why = f"has {tp} up to offset {end}, and others up to {last.end}"
        error.add_note(f"store {store} {why}: repair or stop it, or lower option acks")
    return error


def _endpoints(locations: Sequence[StoreLocation]) -> set[tuple[str, tuple[str, ...]]]:
    return {(each.store, each.locations) for each in locations}

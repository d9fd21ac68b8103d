"""The stores that one task or job writes to: clients of them, found anew when they fail."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final, TypeVar

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
from dafka_spark.options import AT_LEAST_ONCE, EXACTLY_ONCE, MeshAddress

_log = logging.getLogger("dafka_spark")

T = TypeVar("T")

_registries: Final[dict[MeshAddress, StoreRegistry]] = {}
"""What this process knows of the stores of each mesh; a forked child finds out for itself."""

os.register_at_fork(after_in_child=_registries.clear)


class StoreSession(Closing):
    """Clients of the stores of one mesh, for one task; to be closed.

    Args:
        address: how to join the mesh.
        picked: where stores were when the driver looked.
        hints: where they may be, for a process that knows nothing.
    """

    def __init__(
        self,
        address: MeshAddress,
        picked: Sequence[StoreLocation] = (),
        hints: Sequence[StoreLocation] = (),
    ) -> None:
        self._address = address
        self._stack = ExitStack()
        registry = _registries.get(address)
        if registry is None or not _where(picked) <= _where(registry.locations):
            # When anyone looked is not known, so ``current`` does not trust it.
            found = picked or hints or remembered(address.name)
            registry = _registries[address] = StoreRegistry(found, keys=address.keys)
        self._registry = registry

    def close(self) -> None:
        """Gives the clients back."""
        self._stack.close()

    @property
    def locations(self) -> list[StoreLocation]:
        """Where the stores are that have answered."""
        return self._registry.locations

    @property
    def silent(self) -> list[str]:
        """Stores that do not answer, and are waited for: not those silent for longer."""
        return self._registry.silent(timing.SILENT_S)

    def known(self) -> list[StoreClient]:
        """The stores found before, if there are any; else ``refresh``."""
        locations = self._registry.locations
        return self._clients(locations) if locations else self.refresh()

    def current(self) -> list[StoreClient]:
        """The stores found before, if one of them still knows of the same ones; else ``refresh``.

        A store may have come back, with records that are not to be written again.
        """
        registry, locations = self._registry, self._registry.locations
        if not locations:
            return self.refresh()
        clients = self._clients(locations)
        if time.monotonic() - registry.updated_at < timing.TRUST_S:
            return clients
        if not registry.silent():
            with suppress(StoreUnreachableError):
                told = clients[0].stores(timeout_s=timing.ANSWER_S)
                if _where(told) == _where(locations):
                    return clients
        return self.refresh()

    def refresh(self) -> list[StoreClient]:
        """The stores that the mesh tells of now and that answer; perhaps none."""
        registry = self._registry
        with connections.lend(self._address) as reader:
            with suppress(NoStoreError):
                reader.hear_stores(timeout_s=timing.FIND_S)
            registry.update(reader.endpoints(), reader.stores())
        registry.ask(lambda client: None, max_age_s=0.0, again=True)
        remember(self._address.name, registry.locations)
        return self._clients(registry.locations)

    def require(self, acks: int, deadline: Deadline) -> list[StoreClient]:
        """The stores, when there are as many as must acknowledge: exactly-once needs them.

        What is missing is said once while it is waited for.

        Raises:
            ConfigError: there are only stores without Flight, or too few with it.
            NoStoreError: what option ``stores`` names are no stores.
        """
        found: list[StoreClient] = []
        is_said = False
        for attempt in deadline.attempts():
            found = self.refresh() if attempt else self.current()
            if len(found) >= max(acks, 1):
                return found
            if not found and self._registry.others:
                if deadline.waited_s >= timing.OTHERS_S:
                    break
            elif deadline.waited_s >= timing.FIND_S and not (is_said or deadline.is_over):
                is_said = True
                self._say_what_is_missing(len(found), acks, deadline)
        raise _too_few(len(found), self._registry.others, acks, deadline.timeout_s)

    def _say_what_is_missing(self, found: int, acks: int, deadline: Deadline) -> None:
        if not found:
            nobody = NoStoreError((self._address.name,), deadline.waited_s)
            with connections.lend(self._address) as reader:
                preflight.explain(reader, self._address, nobody, deadline)
        else:
            error = _too_few(found, (), acks, round(deadline.waited_s, 1))
            _log.warning("%s. The query waits for up to %g s", error, deadline.timeout_s)

    def looks(
        self,
        known: Sequence[StoreClient],
        ask: Callable[[StoreClient], T],
        deadline: Deadline,
        *,
        only: str = "",
    ) -> Iterator[tuple[list[tuple[StoreClient, T]], StoreUnreachableError | None]]:
        """What the stores answer, again and again until the deadline; and why that is not enough.

        It is enough when every store has answered.  One that is silent is waited for until the
        mesh has given it up: it may come back at once, and have more than all others.

        Args:
            known: the stores that are there; without any they are looked for first.
            only: the address of the only store to ask; all if it is empty.
        """
        given_up = Deadline(timing.SILENT_S)
        for attempt in deadline.attempts():
            if attempt or not known or self.silent:
                known = self.refresh()
            heard: list[tuple[StoreClient, T]] = []
            lost = None
            for client in known:
                if only in ("", client.location.store):
                    try:
                        heard.append((client, ask(client)))
                    except StoreUnreachableError as error:
                        lost = error
            silent = [] if given_up.is_over else self.silent
            if silent and lost is None:
                why = "it does not answer, and may have more than those that do"
                lost = StoreUnreachableError(silent[0], why)
            elif not heard and lost is None:
                lost = StoreUnreachableError(only, "no such store with Arrow Flight is there")
            yield heard, lost

    def wait_for_acks(
        self,
        tp: TopicPartition,
        transaction: Transaction,
        known: Sequence[StoreClient],
        acks: int,
        have: set[str],
        deadline: Deadline,
    ) -> None:
        """Waits until ``acks`` of the stores have a transaction on disk.

        With ``ALL_STORES`` one store is enough when the others are gone; one that does not answer
        is gone when the mesh has given it up.  One that catches up is waited for while it does.

        Args:
            known: the stores that are there.
            have: the stores that have it already; those that come to have it are added.

        Raises:
            NotAcknowledgedError: they do not have it at the deadline; a note names each that lacks
                it.
        """
        given_up = Deadline(timing.SILENT_S)
        ends: dict[str, int] = {}
        while True:
            lost = False
            for client in known:
                store = client.location.store
                if store not in have and (acks == ALL_STORES or len(have) < acks):
                    try:
                        wait_s = min(deadline.left_s, timing.LOOK_AGAIN_S)
                        end = _end_at(client, tp, transaction, wait_s)
                        if end >= transaction.end:
                            have.add(store)
                        elif end > ends.get(store, end):
                            deadline.restart()
                        ends[store] = end
                    except StoreUnreachableError:
                        lost = True
            missing = {client.location.store for client in known} - have
            is_done = len(have) >= acks
            if acks == ALL_STORES:
                is_done = bool(have) and not missing and (given_up.is_over or not self.silent)
            if is_done:
                return
            if deadline.is_over:
                raise _missing(
                    tp, transaction, {each: ends.get(each) for each in missing}, deadline
                )
            if lost or not missing:
                deadline.pause()
                known = self.refresh()

    def wait_for_all_acks(
        self,
        written: Sequence[tuple[TopicPartition, Transaction]],
        known: Sequence[StoreClient],
        acks: int,
        have: Collection[str],
        deadline: Deadline,
    ) -> None:
        """The same of many transactions, which the stores ``have`` all have already.

        It waits for one.  Most others are there then, as each store says in one answer.
        """
        *others, (tp, transaction) = written
        self.wait_for_acks(tp, transaction, known, acks, {*have}, deadline)
        found = [{*have} for _ in others]
        for client in known:
            store = client.location.store
            if others and store not in have:
                with suppress(StoreUnreachableError):  # who waits for it, looks for it anew
                    tps = [tp for tp, _ in others]
                    states = client.transaction_states(tps, timeout_s=timing.ANSWER_S)
                    for stores, (_, transaction), state in zip(found, others, states, strict=True):
                        if _has(state, transaction):
                            stores.add(store)
        for stores, (tp, transaction) in zip(found, others, strict=True):
            self.wait_for_acks(tp, transaction, known, acks, stores, deadline)

    def _clients(self, locations: Sequence[StoreLocation]) -> list[StoreClient]:
        lend, keys = connections.lend_client, self._address.keys
        return [self._stack.enter_context(lend(location, keys)) for location in locations]


def choose_host(
    candidates: Sequence[tuple[StoreClient, int]], partition: str
) -> tuple[StoreClient, int]:
    """The store that has most of a partition; the same one each time if several are equal.

    ``candidates`` are stores, and how much each of them has.
    """
    ranked = sorted(candidates, key=lambda candidate: candidate[0].location.store)
    first = int(partition[:8], 16) % len(ranked)
    return max(ranked[first:] + ranked[:first], key=lambda candidate: candidate[1])


def _too_few(found: int, others: Sequence[str], acks: int, waited_s: float) -> ConfigError:
    if found:
        why = f"there are only {found} stores with Arrow Flight after {waited_s:g} s, and no others"
        cure = "start more of them, or lower acks"
        return ConfigError("acks", acks, f"{why} count with delivery = {EXACTLY_ONCE}: {cure}")
    why = f"none was heard of within {waited_s:g} s"
    if others:
        why = f"of the stores here ({', '.join(others)}) none has it"
    cure = f"start one with 'dafka store --dir DIR', or set delivery = {AT_LEAST_ONCE}"
    why = f"needs a store with Arrow Flight, and {why}: {cure}, for which any store will do"
    return ConfigError("delivery", EXACTLY_ONCE, why)


def _end_at(
    client: StoreClient, tp: TopicPartition, transaction: Transaction, wait_s: float
) -> int:
    """How far a store has the partition; if that is far enough, it has the transaction, too."""
    last = None if transaction.version == NO_VERSION else transaction
    return client.wait(tp, transaction.end, transaction=last, timeout_s=wait_s)


def _has(state: TransactionState, transaction: Transaction) -> bool:
    last = state.transaction
    is_last = transaction.version == NO_VERSION or (
        last is not None and (last == transaction or last.version > transaction.version)
    )
    return is_last and state.end >= transaction.end


def _missing(
    tp: TopicPartition, transaction: Transaction, ends: dict[str, int | None], deadline: Deadline
) -> NotAcknowledgedError:
    count = transaction.end - transaction.start
    error = NotAcknowledgedError(*tp, count, deadline.timeout_s)
    for store, end in sorted(ends.items()):
        if end is not None:
            why = f"has the partition up to {end} and not, as others, up to {transaction.end}"
            error.add_note(f"store {store} {why}: stop it until it is well, or set option acks")
    return error


def _where(locations: Sequence[StoreLocation]) -> set[tuple[str, tuple[str, ...]]]:
    return {(each.store, each.locations) for each in locations}

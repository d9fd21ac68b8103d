"""The stores that one task or job writes to: clients of them, found anew when they fail."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple, TypeVar

from dafka_core.closing import Closing
from dafka_core.errors import ConfigError, NoStoreError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.deadline import Deadline
from dafka_spark.cluster.store_registry import SOME_TOPIC, StoreRegistry
from dafka_spark.options import AT_LEAST_ONCE, EXACTLY_ONCE, MeshAddress

T = TypeVar("T")

_lock = threading.Lock()
_registries: dict[MeshAddress, StoreRegistry] = {}


def _forget() -> None:
    global _lock  # noqa: PLW0603 -- a forked child's own: the parent's may be held
    _lock = threading.Lock()
    _registries.clear()


os.register_at_fork(after_in_child=_forget)


class StoreSession(Closing):
    """Clients of the stores of one mesh, for one task; to be closed.

    Args:
        address: how to join the mesh.
        picked: where stores were when the driver looked.
        only: the address of the only store to write to; any if it is empty.
    """

    def __init__(
        self, address: MeshAddress, picked: Sequence[StoreLocation] = (), *, only: str = ""
    ) -> None:
        self.only = only
        self._address = address
        self._stack = ExitStack()
        self.close = self._stack.close  # type: ignore[method-assign]
        with _lock:
            registry = _registries.get(address)
            if picked and (registry is None or not _where(picked) <= _where(registry.locations)):
                # Who looked last is not known: so the next look does not trust it.
                registry = _registries[address] = StoreRegistry(picked)
            self._registry = registry or _registries.setdefault(address, StoreRegistry())

    def close(self) -> None:
        """Gives the clients back."""
        self._stack.close()

    @property
    def others(self) -> list[str]:
        """Stores without Flight that were heard of."""
        return self._registry.others

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
        endpoints: dict[str, tuple[str, ...]] = {}
        stores: list[str] = []
        with suppress(NoStoreError), connections.lend(self._address) as reader:
            # The answer is of no interest; once it is there, every store has been heard of.
            with suppress(NoStoreError):
                reader.partitions([SOME_TOPIC], timeout_s=timing.FIND_S)
            endpoints, stores = reader.endpoints(), reader.stores()
        self._registry.update(endpoints, stores)
        self._registry.retry()
        self._registry.ask(lambda client: None, max_age_s=0.0)
        return self._clients(self._registry.locations)

    def require(self, acks: int, deadline: Deadline) -> list[StoreClient]:
        """The stores, when there are as many as must acknowledge: exactly-once needs them.

        Raises:
            ConfigError: there are only stores without Flight, or too few with it.
        """
        found: list[StoreClient] = []
        for attempt in deadline.attempts():
            found = self.refresh() if attempt else self.current()
            if len(found) >= max(acks, 1):
                return found
            if not found and self.others and deadline.waited_s >= timing.OTHERS_S:
                break
        raise _too_few(found, self.others, acks, deadline.waited_s)

    def ask_all(
        self, clients: Sequence[StoreClient], ask: Callable[[StoreClient], T], deadline: Deadline
    ) -> list[tuple[StoreClient, T]]:
        """What each store answers; one that is silent is waited for until the mesh gives it up.

        It may come back at once, and have more than all others.

        Raises:
            StoreUnreachableError: none answers until the deadline.
        """
        lost: StoreUnreachableError | None = None
        for attempt in deadline.attempts():
            if attempt:
                clients = self.refresh()
            heard: list[tuple[StoreClient, T]] = []
            lost = None
            for client in clients:
                try:
                    heard.append((client, ask(client)))
                except StoreUnreachableError as error:
                    lost = error
            if heard and (deadline.waited_s >= timing.SILENT_S or not (lost or self.silent)):
                return heard
        if heard:
            return heard
        raise lost or StoreUnreachableError("", "no store is known that can host partitions")

    def _clients(self, locations: Sequence[StoreLocation]) -> list[StoreClient]:
        lend = connections.lend_client
        return [self._stack.enter_context(lend(location)) for location in locations]


class HostCandidate(NamedTuple):
    """A store that can host a partition, and how much it has of it."""

    client: StoreClient
    end: int


def choose_host(candidates: Sequence[HostCandidate], address: str) -> HostCandidate:
    """The store that has most of a partition; the same one each time if several are equal."""
    ranked = sorted(candidates, key=lambda candidate: candidate.client.location.store)
    first = int(address[:8], 16) % len(ranked)
    return max(ranked[first:] + ranked[:first], key=lambda candidate: candidate.end)


def _too_few(
    found: Sequence[StoreClient], others: Sequence[str], acks: int, waited_s: float
) -> ConfigError:
    instead = f"or set delivery = {AT_LEAST_ONCE}"
    if found:
        why = (
            f"there are only {len(found)} stores with Arrow Flight after {waited_s:.1f} s, and no "
            f"others count with delivery = {EXACTLY_ONCE}: start more of them, or lower acks"
        )
        return ConfigError("acks", acks, why)
    if others:
        why = (
            f"needs a store with Arrow Flight, and of the stores here ({', '.join(others)}) none "
            f"has it: start one with 'dafka store --dir DIR', {instead}"
        )
    else:
        why = (
            f"needs a store with Arrow Flight, and none was heard of within {waited_s:.1f} s: "
            f"start one with 'dafka store --dir DIR', {instead} where stores of other kinds are "
            "to take the rows"
        )
    return ConfigError("delivery", EXACTLY_ONCE, why)


def _where(locations: Sequence[StoreLocation]) -> set[tuple[str, tuple[str, ...]]]:
    return {(each.store, each.locations) for each in locations}

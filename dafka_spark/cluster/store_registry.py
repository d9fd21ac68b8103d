"""The stores that can host what a task writes, as its process knows them.

They are looked for in the mesh once, by the driver for its tasks or by the first task of a process,
and again when one of them fails or tells of others: a micro-batch of a few rows has no time for
that.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple, TypeVar

from dafka_core.errors import ConfigError, NoStoreError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_spark.cluster import connections
from dafka_spark.cluster.acknowledgements import LOOK_AGAIN_S, SILENT_S
from dafka_spark.options import AT_LEAST_ONCE, EXACTLY_ONCE, MeshAddress

FIND_S: Final = 2.0
"""Stores that are there are heard of in less; without any the rows are published to the mesh."""

DESCRIBE_S: Final = 5.0
"""The longest wait for one store to say where it is."""

SOME_TOPIC: Final = "-"
"""What stores are asked for, to hear of them."""

TRUST_S: Final = 1.0
"""How long a look at the mesh is good.  A store that is gone is still told of for a while."""

OTHERS_S: Final = 4.0
"""How long only stores of other kinds may be heard of: a store of ours that has just started is
heard of before it has said where it is."""

T = TypeVar("T")


class _Found(NamedTuple):
    places: list[StoreLocation]
    silent: dict[str, float]
    """Since when, on the clock ``time.monotonic``."""
    at: float


_lock = threading.Lock()
_known: dict[MeshAddress, _Found] = {}


def _forget() -> None:
    global _lock  # noqa: PLW0603 -- a forked child's own: the parent's may be held
    _lock = threading.Lock()
    _known.clear()


os.register_at_fork(after_in_child=_forget)


class StoreRegistry:
    """Clients of the stores of one mesh, for one task; to be closed.

    Args:
        via: the way into the mesh.
        picked: where stores were when the driver looked.

    Attributes:
        others: stores of other kinds that were heard of, when they were looked for last.
        silent: those that did not answer then.  The mesh gives up a store that is gone after a
            few seconds; until then it may be about to come back, with more than others have.
            Not those silent for longer: what is there and cannot be reached is not waited for by
            each task anew.
    """

    def __init__(self, via: MeshAddress, picked: Sequence[StoreLocation] = ()) -> None:
        self.others: list[str] = []
        self.silent: list[str] = []
        self._via = via
        self._stack = ExitStack()
        with _lock:
            found = _known.get(via)
            if picked and (found is None or not _where(picked) <= _where(found.places)):
                # Who looked last is not known: so the next look does not trust it.
                _known[via] = _Found(list(picked), {}, at=-math.inf)

    def known(self) -> list[StoreClient]:
        """Those found before, if there are any; else ``anew``."""
        found = self._remembered()
        return self._clients(found.places) if found else self.anew()

    def current(self) -> list[StoreClient]:
        """Those found before, if all answered then, and one knows of the same ones; else ``anew``.

        A store may have come back, with records that are not to be written again.
        """
        found = self._remembered()
        if found is None:
            return self.anew()
        clients = self._clients(found.places)
        if time.monotonic() - found.at < TRUST_S:
            return clients
        if not found.silent:
            with suppress(StoreUnreachableError):
                told = clients[0].stores(timeout_s=DESCRIBE_S)
                if _where(told) == _where(found.places):
                    return clients
        return self.anew()

    def anew(self) -> list[StoreClient]:
        """Those that are there now, perhaps none."""
        endpoints: dict[str, tuple[str, ...]] = {}
        with suppress(NoStoreError), connections.lend(self._via) as source:
            # The answer is of no interest; once it is there, every store has been heard of.
            with suppress(NoStoreError):
                source.partitions([SOME_TOPIC], timeout_s=FIND_S)
            endpoints = source.endpoints()
            self.others = sorted(set(source.stores()) - set(endpoints))
        places, unreachable = [], []
        for store, locations in sorted(endpoints.items()):
            try:
                with connections.lend_client(StoreLocation(store, locations)) as client:
                    places.append(client.describe(timeout_s=DESCRIBE_S))
            except StoreUnreachableError:
                unreachable.append(store)
        now = time.monotonic()
        with _lock:
            before = _known.get(self._via)
            since = before.silent if before else {}
            found = _Found(places, {store: since.get(store, now) for store in unreachable}, now)
            _known[self._via] = found
        self._set_silent(found)
        return self._clients(places)

    def close(self) -> None:
        """Gives the clients back."""
        self._stack.close()

    def _remembered(self) -> _Found | None:
        with _lock:
            found = _known.get(self._via)
        if found is None or not found.places:
            return None
        self._set_silent(found)
        return found

    def _set_silent(self, found: _Found) -> None:
        before = time.monotonic() - SILENT_S
        self.silent = [store for store, since in found.silent.items() if since > before]

    def _clients(self, places: list[StoreLocation]) -> list[StoreClient]:
        return [self._stack.enter_context(connections.lend_client(place)) for place in places]


def enough(hosts: StoreRegistry, acks: int, timeout_s: float) -> list[StoreClient]:
    """The stores, when there are as many as must acknowledge: exactly-once needs them.

    Raises:
        ConfigError: there are only stores of other kinds, or too few of ours for ``timeout_s``
            seconds.
    """
    began = time.monotonic()
    known = hosts.current()
    while len(known) < max(acks, 1):
        waited_s = time.monotonic() - began
        if not known and hosts.others and waited_s >= min(OTHERS_S, timeout_s):
            raise ConfigError("delivery", EXACTLY_ONCE, _only_others(hosts.others))
        if waited_s >= timeout_s:
            raise _too_few(known, acks, timeout_s)
        time.sleep(LOOK_AGAIN_S)
        known = hosts.anew()
    return known


def ask_all_stores(
    hosts: StoreRegistry,
    known: Sequence[StoreClient],
    ask: Callable[[StoreClient], T],
    deadline: float,
) -> list[tuple[StoreClient, T]]:
    """What each store answers.

    One that is silent is waited for until the mesh has given it up: it may come back at once,
    and have more than all others.

    Args:
        known: those that are there.
        deadline: on the clock ``time.monotonic``, for the first answer.

    Raises:
        StoreUnreachableError: none answers until then.
    """
    given_up_at = time.monotonic() + SILENT_S
    while True:
        heard: list[tuple[StoreClient, T]] = []
        lost: StoreUnreachableError | None = None
        for host in known:
            try:
                heard.append((host, ask(host)))
            except StoreUnreachableError as error:
                lost = error
        now = time.monotonic()
        if heard and (now >= given_up_at or not (lost or hosts.silent)):
            return heard
        if not heard and now >= deadline:
            raise lost or StoreUnreachableError("", "no store is known that can host partitions")
        time.sleep(LOOK_AGAIN_S)
        known = hosts.anew()


def _only_others(others: Sequence[str]) -> str:
    return (
        f"needs a store with Arrow Flight, and of the stores here ({', '.join(others)}) none has "
        f"it: start one with 'dafka store --dir DIR', or set delivery = {AT_LEAST_ONCE}"
    )


def _too_few(known: Sequence[StoreClient], acks: int, waited_s: float) -> ConfigError:
    if not known:
        why = (
            f"needs a store with Arrow Flight, and none was heard of within {waited_s:g} s: start "
            f"one with 'dafka store --dir DIR', or set delivery = {AT_LEAST_ONCE} where stores of "
            "other kinds are to take the rows"
        )
        return ConfigError("delivery", EXACTLY_ONCE, why)
    why = (
        f"there are only {len(known)} stores with Arrow Flight after {waited_s:g} s, and no "
        f"others count with delivery = {EXACTLY_ONCE}: start more of them, or lower acks"
    )
    return ConfigError("acks", acks, why)


def _where(places: Sequence[StoreLocation]) -> set[tuple[str, tuple[str, ...]]]:
    return {(place.store, place.locations) for place in places}

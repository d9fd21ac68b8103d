"""What each store holds, kept from one look to the next: the stores tell what has changed.

A look asks each store for what is new, so its cost grows with what has changed and not with the
number of partitions.  While a query waits, each store also has one request that it answers when
something changes: that says when to look, and the look says what there is.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dafka_core.errors import DafkaError
from dafka_core.flight import limits
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.security_options import KeyFiles
from dafka_spark.cluster import connections, timing
from dafka_spark.topic_selection import TopicSelection

Infos = list[PartitionInfo]

_log = logging.getLogger("dafka_spark")


@dataclass(slots=True)
class _Known:
    """What one store holds; ``infos`` is another list when that has changed."""

    location: StoreLocation
    tells_changes: bool
    cursor: str = ""
    complete_at: float = -math.inf
    held: dict[TopicPartition, PartitionInfo] = field(default_factory=dict)
    infos: Infos = field(default_factory=list)
    is_watched: bool = False
    unwatched_until: float = -math.inf


class StoreWatch:
    """What stores hold of some partitions, for one query.

    Looks are made by one thread, which may ask several stores at the same time.
    """

    def __init__(self, selection: TopicSelection, keys: KeyFiles) -> None:
        self._keys = keys
        self._selection = selection
        self._asked = selection.asked
        self._known: dict[str, _Known] = {}
        self._news = threading.Event()

    def begin_look(self) -> None:
        """To be called before stores are asked: what is new from now on ends the next ``wait``."""
        self._news.clear()

    def ask(self, client: StoreClient, timeout_s: float) -> Infos:
        """What a store holds: the same list as long as nothing has changed."""
        known = self._of(client.location)
        if known.tells_changes:
            return self._ask_changes(known, client, timeout_s)
        found = self._selection.of(client.heads(self._asked, timeout_s=timeout_s))
        known.infos = known.infos if found == known.infos else found
        return known.infos

    def wait(self, locations: Sequence[StoreLocation], timeout_s: float) -> bool:
        """Waits until one of these stores may hold something new; False if none has said so."""
        watched = [self._has_watch(self._of(each)) for each in locations]
        if all(watched):
            return self._news.wait(timeout_s)
        self._news.wait(min(timeout_s, timing.UNWATCHED_S))
        return True

    def _of(self, location: StoreLocation) -> _Known:
        known = self._known.get(location.store)
        if known is None or known.location != location:
            can_be_asked = self._asked is None or len(self._asked) <= limits.MAX_NAMES
            known = self._known[location.store] = _Known(location, can_be_asked)
        return known

    def _ask_changes(self, known: _Known, client: StoreClient, timeout_s: float) -> Infos:
        now = time.monotonic()
        cursor = known.cursor if now < known.complete_at + timing.COMPLETE_S else ""
        found = client.watch(self._asked, cursor, wait_s=0.0, timeout_s=timeout_s)
        news = {info.tp: info for info in self._selection.of(found.heads)}
        held = news if found.complete else known.held | news if news else known.held
        known.cursor = found.cursor
        if found.complete:
            known.complete_at = now
        if held != known.held:
            known.held, known.infos = held, list(held.values())
        return known.infos

    def _has_watch(self, known: _Known) -> bool:
        if not known.tells_changes or not known.cursor:
            return False
        if not known.is_watched and time.monotonic() >= known.unwatched_until:
            known.is_watched = True
            arguments = (known, known.cursor)
            name = "dafka-store-watch"
            threading.Thread(target=self._watch, args=arguments, name=name, daemon=True).start()
        return known.is_watched

    def _watch(self, known: _Known, cursor: str) -> None:
        waiting = {"wait_s": timing.WATCH_S, "timeout_s": timing.ANSWER_S}
        try:
            with connections.lend_client(known.location, self._keys) as client:
                client.watch(self._asked, cursor, **waiting)
        except DafkaError as error:
            _log.debug("%s", error)  # the next look finds out what it means
            known.unwatched_until = time.monotonic() + timing.RETRY_S
        known.is_watched = False
        self._news.set()

"""One store that is asked again and again what has changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from dafka_core.closing import Closing
from dafka_core.console.snapshot import StoreState
from dafka_core.errors import DafkaError, InvalidRequestError, NotAllowedError
from dafka_core.flight.json_messages import HeadsSince, PartitionFacts, SpaceUsed
from dafka_core.flight.peers_request import Peers, PeersRequest
from dafka_core.flight.retention_actions import RetentionRequest, RetentionRules
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import Neighbour
from dafka_core.security_options import KeyFiles

ANSWER_S: Final = 5.0
"""How long a store may take for an answer."""

SPACE_EVERY_S: Final = 5.0
"""How often a store is asked for its file's size, and who is connected to it."""

FACTS_EVERY_S: Final = 30.0
FACTS_SHARE: Final = 0.02
"""How often a store is asked what each partition takes, and of all time how much that may cost it:
with 10,000 partitions it looks at as many rows."""

NEW_FACTS_EVERY_S: Final = 1.0
"""The same where there are partitions of which nothing is known yet."""


class StoreLink(Closing):
    """A store and what it has said last.

    One thread asks at a time what has changed, and one what partitions take.

    Attributes:
        client: to ask it something else.
        heads: what has changed since the last question; None where it did not answer.
        asking, asking_facts: questions that are under way, for whoever asks them.
    """

    def __init__(self, location: StoreLocation, keys: KeyFiles) -> None:
        self.location = location
        self.client = StoreClient(location, keys)
        self.heads: HeadsSince | None = None
        self.asking: Future[None] | None = None
        self.asking_facts: Future[Sequence[PartitionFacts]] | None = None
        self._since_us = 0
        self._cursor = ""
        self._space: SpaceUsed | None = None
        self._peers: tuple[Neighbour, ...] | None = None
        self._rules: tuple[str, ...] | None = None
        self._space_due = self._facts_due = self._new_facts_due = 0.0
        self._failure = ""
        self._took_s = 0.0

    @property
    def store(self) -> str:
        """The store's address."""
        return self.location.store

    def ask(self) -> None:
        """Asks the store; what it says, or why it does not answer, is kept."""
        began = time.monotonic()
        try:
            heads = self._changes()
            self._took_s = time.monotonic() - began
            if began >= self._space_due:
                self._space = self.client.space(timeout_s=ANSWER_S)
                with suppress(NotAllowedError):
                    self._peers = self.client.ask(Peers, ANSWER_S, PeersRequest())[0].peers
                with suppress(InvalidRequestError):  # it has no rules
                    found = self.client.ask(RetentionRules, ANSWER_S, RetentionRequest())
                    self._rules = found[0].rules
                self._space_due = began + SPACE_EVERY_S
            self.heads, self._failure, self._since_us = heads, "", time.time_ns() // 1000
        except DafkaError as error:
            self.heads, self._failure, self._cursor = None, str(error), ""
            self._facts_due = self._new_facts_due = 0.0

    def state(self, partitions: int, behind: int) -> StoreState:
        """The store as it is by what it has said; how much it has is told by who has compared."""
        return StoreState(
            self.store,
            self.location.locations,
            self.heads is not None,
            self._failure,
            self._space,
            partitions,
            behind,
            self._took_s,
            self._peers,
            self._rules,
            self._since_us,
        )

    def close(self) -> None:
        """Disconnects."""
        self.client.close()

    def _changes(self) -> HeadsSince:
        found = self.client.watch(None, self._cursor, wait_s=0, timeout_s=ANSWER_S)
        self._cursor = found.cursor
        return found

    def is_facts_due(self, *, are_new: bool) -> bool:
        """Whether it is time to ask what partitions take, of which some may be new."""
        due_s = self._new_facts_due if are_new else self._facts_due
        return self.heads is not None and time.monotonic() >= due_s

    def ask_facts(self) -> Sequence[PartitionFacts]:
        """What the partitions take; nothing where the store does not answer."""
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

"""How far behind Spark's streaming queries are, over time."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from dafka_core.console.snapshot import LagMoment, QueryState
from dafka_core.console.store_link import ANSWER_S
from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.kafka.groups.group_lag import GroupLag
from dafka_core.names import QUERIES_TOPIC
from dafka_core.queries.query_lag import PartitionLag, QueryLag, query_lags

EVERY_S: Final = 3.0
SHARE: Final = 0.05
"""How often the lag is made, and of all time how much that may cost: stores look at every
partition for it."""

MOST_MOMENTS: Final = 720
MOST_RUNS: Final = 1_000
"""Of what is kept: of each run, and runs.  Anybody may write reports."""

_log: Final = logging.getLogger("dafka.console")


def behind(lag: QueryLag | PartitionLag | GroupLag) -> dict[str, Any]:
    """How far, for programs and pages."""
    seconds = lag.seconds_behind
    return {
        "records_behind": lag.records_behind,
        "bytes_behind": lag.bytes_behind,
        "seconds_behind": None if seconds is None else round(seconds, 1),
    }


class QueryWatch:
    """Keeps the lag of each run of a query.  ``look`` is called by one thread at a time."""

    def __init__(self, topic: str = QUERIES_TOPIC) -> None:
        self.states: tuple[QueryState, ...] = ()
        """What was found last."""
        self._topic = topic
        self._due = 0.0
        self._histories: dict[tuple[str, str], deque[LagMoment]] = {}

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() >= self._due

    def look(self, clients: Sequence[StoreClient]) -> None:
        """Asks the stores; what was known stays where one does not answer."""
        began = time.monotonic()
        try:
            self.keep(query_lags(clients, self._topic, timeout_s=ANSWER_S), time.time())
        except DafkaError as error:
            _log.warning("how far queries are behind is not known: %s", error)
        ended = time.monotonic()
        self._due = ended + max(EVERY_S, (ended - began) / SHARE)

    def keep(self, lags: Sequence[QueryLag], time_s: float) -> None:
        """Adds what was found at a moment; runs that are not among it any more are forgotten."""
        histories = {}
        for each in lags[:MOST_RUNS]:
            key = each.query, each.run
            history = self._histories.get(key, deque(maxlen=MOST_MOMENTS))
            history.append(LagMoment(time_s, each.records_behind, each.seconds_behind))
            histories[key] = history
        self._histories = histories
        self.states = tuple(
            QueryState(each, tuple(histories[each.query, each.run])) for each in lags[:MOST_RUNS]
        )

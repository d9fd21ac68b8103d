"""Actions that have a store keep less."""

from __future__ import annotations

import pytest

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.requests import (
    RetentionRequest,
    RetentionRules,
    Trimmed,
    TrimRequest,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import TP, Served


def test_partitions_are_trimmed_at_most_to_their_ends(served: Served, client: StoreClient) -> None:
    served.extend(100)
    trims = ((*TP, 30), (*TP, 20), ("unknown", "P", 5), (*TP, 500))
    (done,) = client.ask(Trimmed, PATIENCE_S, TrimRequest(trims))
    assert done.earliest == (30, 30, 0, 100)
    (info,) = served.log.partitions()
    assert (info.earliest, info.end) == (100, 100)


def test_a_service_without_rules_says_so(client: StoreClient) -> None:
    with pytest.raises(InvalidRequestError, match="keeps all"):
        client.ask(RetentionRules, PATIENCE_S, RetentionRequest())
    with pytest.raises(InvalidRequestError, match="must have limits as"):
        client.ask(RetentionRules, PATIENCE_S, RetentionRequest(("t=7",)))

"""What the tests of the cluster's part of the connector share."""

from __future__ import annotations

import pytest


@pytest.fixture
def topic(dafka_topic: str) -> str:
    """A topic that no other test uses."""
    return dafka_topic

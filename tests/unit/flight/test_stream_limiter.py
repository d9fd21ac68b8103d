"""Permits: never more than there are, and none is lost."""

from __future__ import annotations

import gc
import threading

import pytest

from dafka_core.flight.flight_errors import UnavailableError
from dafka_core.flight.server_context import StreamLimiter


def test_there_are_no_more_than_that() -> None:
    limiter = StreamLimiter("gets", 2)
    first, second = limiter.take(), limiter.take()
    assert limiter.free == 0
    with pytest.raises(UnavailableError, match=r"serves 2 gets already.*ask another store"):
        limiter.take()
    first.close()
    first.close()
    assert limiter.free == 1
    del second
    assert limiter.free == 2


def test_permits_that_are_collected_at_any_moment_are_given_back() -> None:
    limiter = StreamLimiter("gets", 10_000)

    def abandon_many() -> None:
        for _ in range(2_000):
            cycle: list[object] = [limiter.take()]
            cycle.append(cycle)
            limiter.take().close()

    thresholds = gc.get_threshold()
    gc.set_threshold(1)  # whenever anything is allocated
    try:
        thread = threading.Thread(target=abandon_many, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert limiter.free == 10_000

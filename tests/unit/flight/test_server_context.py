"""Which requests a service takes, which stores it names, and permits that are never lost."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dafka_core.flight import limits
from dafka_core.flight.flight_errors import CLOSING, OTHER_STORE, UnavailableError
from dafka_core.flight.limits import MAX_LOCATIONS_LISTED
from dafka_core.flight.requests import DescribeRequest
from dafka_core.flight.server_context import ServerContext, StreamLimiter
from dafka_core.flight.server_keys import Caller, anything
from dafka_core.flight.store_location import StoreLocation
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from dafka_core.testing.store_double import LogBackend

LOCATIONS = ("grpc+unix:///a/s", "grpc://h:1")


@pytest.fixture
def others() -> dict[str, tuple[str, ...]]:
    """The other stores that are known."""
    return {}


ANYBODY = Caller(SimpleNamespace(peer=lambda: "", is_cancelled=lambda: False), None)


@pytest.fixture
def context(tmp_path: Path, others: dict[str, tuple[str, ...]]) -> Iterator[ServerContext]:
    """Of a service that has started, as far as its requests can tell."""
    with Log(tmp_path) as log, LogBackend(log) as backend:
        made = ServerContext(log, backend, "S", lambda: others)
        made.location = StoreLocation("S", LOCATIONS)
        made.started.set()
        yield made


def test_a_request_is_for_this_store_or_for_any(context: ServerContext) -> None:
    for request in (DescribeRequest(), DescribeRequest(store="S")):
        assert context.parse(DescribeRequest, anything, request.packed(), ANYBODY) == request
    with pytest.raises(UnavailableError, match="store T was meant, and this is store S") as other:
        context.parse(DescribeRequest, anything, DescribeRequest(store="T").packed(), ANYBODY)
    assert other.value.code == OTHER_STORE


def test_no_request_is_taken_once_the_service_ends(context: ServerContext) -> None:
    context.check_open()
    context.closing.set()
    with pytest.raises(UnavailableError, match="is stopping; use another store") as ending:
        context.parse(DescribeRequest, anything, b"what it says is not looked at", ANYBODY)
    assert ending.value.code == CLOSING


def test_a_client_on_another_machine_is_told_of_no_socket(context: ServerContext) -> None:
    assert context.locations_for("unix:/a/s") == LOCATIONS
    for peer in ("ipv4:127.0.0.1:5", "ipv6:[::1]:5", ""):
        assert context.locations_for(peer) == LOCATIONS[1:]


def test_a_store_names_itself_first_and_others_as_many_as_it_may(
    context: ServerContext, others: dict[str, tuple[str, ...]]
) -> None:
    assert context.store_locations() == [context.location]
    others["T"] = ("grpc://t:1",)
    assert context.store_locations() == [context.location, StoreLocation("T", ("grpc://t:1",))]
    others |= {f"U{number}": ("grpc://u:1",) for number in range(MAX_LOCATIONS_LISTED)}
    named = context.store_locations()
    assert named[0] == context.location
    assert len({each.store for each in named}) == len(named) == MAX_LOCATIONS_LISTED


def test_there_are_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_S", 0)
    limiter = StreamLimiter("gets", 2)
    first, second = limiter.take(), limiter.take()
    assert limiter.free == 0
    with pytest.raises(UnavailableError, match=r"already serves 2 gets.*use another store"):
        limiter.take()
    first.close()
    first.close()
    assert limiter.free == 1
    del second
    assert limiter.free == 2


def test_permits_are_given_in_the_order_of_asking() -> None:
    limiter = StreamLimiter("puts", 1)
    held = limiter.take()
    served: list[int] = []

    def ask(number: int) -> None:
        with limiter.take():
            served.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda: limiter.waiting == number + 1)  # noqa: B023 -- it is done in this turn
    held.close()
    for thread in threads:
        thread.join()
    assert served == list(range(20))
    assert (limiter.waiting, limiter.free) == (0, 1)


def test_who_has_waited_before_comes_before_those_who_have_not() -> None:
    limiter = StreamLimiter("puts", 1)
    held = limiter.take()
    with pytest.raises(UnavailableError) as busy:
        limiter.take(timeout_s=0.05, waited_s=7)
    assert 7.05 <= busy.value.waited_s < 60
    assert busy.value.moves
    served: list[float] = []

    def ask(waited_s: float) -> None:
        with limiter.take(waited_s=waited_s):
            served.append(waited_s)

    waited_s = [700, 0, 70, 7]  # the first of them is at the door
    threads = [threading.Thread(target=ask, args=(each,)) for each in waited_s]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda: limiter.waiting == number + 1)  # noqa: B023 -- it is done in this turn
    held.close()
    for thread in threads:
        thread.join()
    assert served == [700, 70, 7, 0]


def test_a_line_that_stands_still_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = StreamLimiter("puts", 1)
    with limiter.take():
        monkeypatch.setattr(limits, "QUEUE_S", 0.05)
        with pytest.raises(UnavailableError) as busy:
            limiter.take()
        assert not busy.value.moves


def test_who_cannot_be_served_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = StreamLimiter("puts", 1)
    held = limiter.take()
    with pytest.raises(UnavailableError, match=r"already serves 1 puts.*queued for 0\.05 s"):
        limiter.take(timeout_s=0.05)
    with pytest.raises(UnavailableError):
        limiter.take(lambda: True)
    monkeypatch.setattr(limits, "MAX_QUEUED", 0)
    with pytest.raises(UnavailableError, match="and 0 more wait for their turn"):
        limiter.take()
    monkeypatch.undo()

    def closing() -> None:
        raise UnavailableError(CLOSING, "the store is about to end")

    limiter._check = closing
    with pytest.raises(UnavailableError, match="about to end"):
        limiter.take()
    assert limiter.waiting == 0
    held.close()
    limiter.take().close()


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

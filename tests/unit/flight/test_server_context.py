"""Which requests a service takes, which stores it names, and permits that are never lost."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dafka_core.errors import DataLossError, HistoryChangedError, NotAllowedError
from dafka_core.flight import limits
from dafka_core.flight import requests as r
from dafka_core.flight.backup_requests import BackupRequest, CheckRequest, LinksRequest
from dafka_core.flight.flight_errors import CLOSING, OTHER_STORE, UnavailableError
from dafka_core.flight.limits import MAX_LOCATIONS_LISTED
from dafka_core.flight.requests import (
    DeleteRequest,
    DescribeRequest,
    PeersRequest,
    RecordRange,
    RetentionRequest,
    SizesRequest,
    TrimRequest,
)
from dafka_core.flight.server_context import ServerContext, StreamLimiter
from dafka_core.flight.server_keys import Caller, administers, anything, knows, reads, writes
from dafka_core.flight.server_requests import ACTIONS, check_held, check_history
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.security.permissions import Permissions, described, refused
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


@pytest.mark.parametrize(
    ("waited_s", "order"), [([0.0] * 20, [*range(20)]), ([700.0, 0.0, 70.0, 7.0], [0, 2, 3, 1])]
)
def test_permits_go_to_who_has_waited_longest_and_then_in_the_order_of_asking(
    waited_s: list[float], order: list[int]
) -> None:
    limiter = StreamLimiter("puts", 1)
    held = limiter.take()
    served: list[int] = []

    def ask(number: int) -> None:
        with limiter.take(waited_s=waited_s[number]):
            served.append(number)

    # The first of them is at the door, whoever comes after it.
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(waited_s))]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda: limiter.waiting == number + 1)  # noqa: B023 -- it is done in this turn
    held.close()
    for thread in threads:
        thread.join()
    assert served == order
    assert (limiter.waiting, limiter.free) == (0, 1)


def test_who_is_sent_away_is_told_how_long_it_has_waited() -> None:
    limiter = StreamLimiter("puts", 1)
    with limiter.take(), pytest.raises(UnavailableError) as busy:
        limiter.take(timeout_s=0.05, waited_s=7)
    assert 7.05 <= busy.value.waited_s < 60
    assert busy.value.moves


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


TP = TopicPartition("t", "P")
HELD = PartitionInfo(*TP, 10, 20)
A = Epoch.first(EpochId(5, 1, 1))
B = Epoch(9, 2, 1, 60, A.digest)


@pytest.mark.parametrize(
    ("start", "end", "wanted", "available"),
    [(9, 20, 9, 10), (10, 21, 20, None), (5, 25, 5, 10), (30, 31, 30, None)],
)
def test_what_is_not_held(start: int, end: int, wanted: int, available: int | None) -> None:
    with pytest.raises(DataLossError) as caught:
        check_held(HELD, TP, start, end)
    assert (caught.value.wanted, caught.value.available) == (wanted, available)
    assert ("from 10 up to 20 (exclusive)" in str(caught.value)) == (available is None)


def test_what_is_held() -> None:
    check_held(HELD, TP, 10, 20)
    check_held(None, TP, 0, 0)


def asked(start: int, end: int, life: Epoch | None, after: Epoch | None = None) -> RecordRange:
    return RecordRange(*TP, start, end, life=life and life.life, after=after and after.life)


@pytest.mark.parametrize(
    "request_",
    [
        asked(0, 99, None),
        asked(0, 60, A),
        asked(0, 99, B),
        asked(60, 99, B, A),
        asked(50, 99, B, A),
    ],
)
def test_the_history_that_is_meant(request_: RecordRange) -> None:
    check_history((A, B), request_)


@pytest.mark.parametrize("request_", [asked(0, 70, A), asked(70, 99, B, A), asked(70, 99, None, A)])
def test_another_history(request_: RecordRange) -> None:
    with pytest.raises(HistoryChangedError) as caught:
        check_history((A, B), request_)
    assert (caught.value.wanted, caught.value.position) == (60, 70)


def test_a_store_that_is_behind() -> None:
    with pytest.raises(UnavailableError, match="no records of life 9"):
        check_history((A,), asked(0, 10, B))


NEEDS = {each.request: each.need for each in ACTIONS.values()} | {
    r.GetRequest: reads,
    BackupRequest: administers,
    r.PutRequest: writes,
    r.Criteria: knows,
    r.InfoRequest: knows,
}

OWN, OTHER = "AB" * 8 + "1" * 16, "CD" * 16
ATTEMPT = "A" * 32

KEYS = {
    name: Permissions(name, frozenset(roles), ("t",), ("t",), prefix="AB" * 8)
    for name, roles in {
        "produce": ["produce"],
        "consume": ["consume"],
        "admin": ["admin"],
        "store": ["store"],
        "tower": ["tower"],
    }.items()
}
READS, KNOWS, WRITES = {"consume"}, {"produce", "consume", "admin"}, {"produce"}
ADMINISTERS: set[str] = {"admin"}
ANY_KEY = {"produce", "consume", "admin", "tower"}


def about(topic: str, partition: str) -> Iterator[tuple[r.Request, set[str]]]:
    """Requests about a partition, and the keys that permit them; a store permits all."""
    asked = RecordRange(topic, partition, 0, 1)
    yield r.GetRequest((asked,)), READS
    yield r.LeaseRequest((asked,)), READS
    yield r.PutRequest(topic, partition, 0), WRITES
    yield r.CommitRequest(((topic, partition, ATTEMPT, 0, 1, 0),)), WRITES
    yield r.DigestsRequest((r.DigestRange(topic, partition, ATTEMPT, 0, 1),)), READS | WRITES
    yield r.DiscardRequest(((topic, partition, ATTEMPT),)), WRITES | ADMINISTERS
    yield r.Criteria(topic), KNOWS
    yield r.InfoRequest(topic), KNOWS
    yield r.HeadsRequest((topic,)), KNOWS
    yield r.WatchRequest(0, (topic,)), KNOWS
    yield r.OffsetsRequest(((topic, partition, 0),)), KNOWS
    yield SizesRequest((asked,)), KNOWS
    yield r.WaitRequest(topic, partition, 0, 0), KNOWS
    yield r.TransactionsRequest((TopicPartition(topic, partition),)), KNOWS
    yield TrimRequest(((topic, partition, 0),)), ADMINISTERS
    yield DeleteRequest(topic), ADMINISTERS
    yield LinksRequest((TopicPartition(topic, partition),)), ADMINISTERS
    yield CheckRequest((TopicPartition(topic, partition),)), ADMINISTERS


BESIDE: list[tuple[r.Request, set[str]]] = [
    (r.Criteria(), ANY_KEY),
    (r.HeadsRequest(), ANY_KEY),
    (r.WatchRequest(0), ANY_KEY),
    (r.StagedRequest(), ANY_KEY),
    (r.SpaceRequest(), ANY_KEY),
    (r.StoresRequest(), ANY_KEY),
    (r.DescribeRequest(), ANY_KEY),
    (RetentionRequest(), KNOWS),
    (RetentionRequest(("t 1d",)), ADMINISTERS),
    (RetentionRequest(reset=True), ADMINISTERS),
    (r.ForgetRequest(OTHER), ADMINISTERS),
    (BackupRequest(), ADMINISTERS),
    (PeersRequest(), ADMINISTERS),
]


def authorize(owner: Permissions, request: r.Request) -> None:
    if denied := NEEDS[type(request)](owner, request):
        raise refused(owner, denied)


def may(name: str, request: r.Request) -> bool:
    try:
        authorize(KEYS[name], request)
    except NotAllowedError:
        return False
    return True


def test_every_request_is_tried() -> None:
    tried = {type(request) for request, _ in (*about("t", OWN), *BESIDE)}

    def kinds(kind: type[r.Request]) -> Iterator[type[r.Request]]:
        for each in kind.__subclasses__():
            yield from kinds(each) if each.__subclasses__() else (each,)

    named = {each for each in kinds(r.Request) if each.__module__.startswith("dafka_core.")}
    assert tried == named == set(NEEDS)


def test_each_request_needs_what_it_needs() -> None:
    for request, allowed in (*about("t", OWN), *BESIDE):
        found = {name for name in KEYS if may(name, request)}
        assert found == allowed | {"store"}, request


def test_of_other_topics_only_who_looks_after_stores_knows() -> None:
    for request, allowed in about("other", OWN):
        found = {name for name in KEYS if may(name, request)}
        assert found == (allowed & {"admin"}) | {"store"}, request


def test_nobody_writes_into_another_ones_partition() -> None:
    writes = [request for request, allowed in about("t", OTHER) if allowed == WRITES]
    for request in writes:
        with pytest.raises(NotAllowedError, match=f"write partition {OTHER}, which is not its own"):
            authorize(KEYS["produce"], request)
        authorize(KEYS["store"], request)


def test_who_may_produce_everything_deletes_nothing() -> None:
    owner = Permissions("p", frozenset({"produce"}), prefix=OWN[:16])
    with pytest.raises(NotAllowedError, match=r"and not produce to .__dafka\.deletions"):
        authorize(owner, r.PutRequest(DELETIONS_TOPIC, OWN, 0))


def test_permissions_are_described_in_a_few_words() -> None:
    owner = Permissions("k", frozenset({"consume", "produce", "admin"}), ("a*", "b"), addresses=())
    assert described(owner) == "produce 'a*', 'b'; consume; admin"
    assert described(Permissions("k", frozenset({"consume"}), consume=())) == "consume nothing"

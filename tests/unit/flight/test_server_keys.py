"""The keys that permit each request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dafka_core.errors import NotAllowedError
from dafka_core.flight import requests as r
from dafka_core.flight.backup_requests import BackupRequest, CheckRequest, LinksRequest
from dafka_core.flight.requests import (
    DeleteRequest,
    PeersRequest,
    RecordRange,
    RetentionRequest,
    SizesRequest,
    TrimRequest,
)
from dafka_core.flight.server_actions import ACTIONS
from dafka_core.flight.server_keys import administers, knows, reads, writes
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.security.permissions import Permissions, described, refused

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
ANYBODY = {"produce", "consume", "admin", "tower"}


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
    (r.Criteria(), ANYBODY),
    (r.HeadsRequest(), ANYBODY),
    (r.WatchRequest(0), ANYBODY),
    (r.StagedRequest(), ANYBODY),
    (r.SpaceRequest(), ANYBODY),
    (r.StoresRequest(), ANYBODY),
    (r.DescribeRequest(), ANYBODY),
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

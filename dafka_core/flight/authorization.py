"""Who may ask a store for what over Arrow Flight: each kind of request is in one table.

One that is not in it is served to nobody where there are keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from dafka_core.flight.backup_requests import BackupRequest, CheckRequest, LinksRequest
from dafka_core.flight.many_ranges import GetManyRequest, LeaseManyRequest, SizesRequest
from dafka_core.flight.peers_request import PeersRequest
from dafka_core.flight.requests import (
    CommitRequest,
    Criteria,
    DescribeRequest,
    DigestsRequest,
    DiscardRequest,
    ForgetRequest,
    GetRequest,
    HeadsRequest,
    InfoRequest,
    LeaseRequest,
    OffsetsRequest,
    PutRequest,
    Request,
    SpaceRequest,
    StagedRequest,
    StoresRequest,
    TransactionsRequest,
    WaitRequest,
    WatchRequest,
)
from dafka_core.flight.retention_actions import DeleteRequest, RetentionRequest, TrimRequest
from dafka_core.flight.where_get import GetWhereRequest
from dafka_core.names import escape, quoted
from dafka_core.permissions import ADMIN, TOWER, Permissions, refused

Need = Callable[[Permissions, Any], str]
"""What of a request its sender may not do; empty if it may do all."""


def authorize(owner: Permissions, request: Request) -> None:
    """Lets a request pass that the owner of a key may make.

    Raises:
        NotAllowedError: it may not.
    """
    need = NEEDS.get(type(request))
    asked = f"ask for {type(request).__name__}" if need is None else need(owner, request)
    if asked:
        raise refused(owner, asked)


def _anything(owner: Permissions, request: Request) -> str:
    return ""


def _reads(owner: Permissions, request: Request) -> str:
    return next(
        (f"consume {quoted(each)}" for each in _topics(request) if not owner.may_consume(each)), ""
    )


def _knows(owner: Permissions, request: Request) -> str:
    """Of those who name no topic the answer is about what they may know."""
    topics = _topics(request)
    return next((f"know of {quoted(each)}" for each in topics if not owner.may_know(each)), "")


def _writes(owner: Permissions, request: Request) -> str:
    for topic, partition in _partitions(request):
        if not owner.may_produce(topic):
            return f"produce to {quoted(topic)}"
        if not owner.may_write(topic, partition):
            return f"write partition {escape(partition)}, which is not its own"
    return ""


def _reads_or_writes(owner: Permissions, request: Request) -> str:
    return _reads(owner, request) and _writes(owner, request)


def _discards(owner: Permissions, request: DiscardRequest) -> str:
    return "" if owner.is_admin else _writes(owner, request)


def _administers(owner: Permissions, request: Request) -> str:
    return "" if _may_administer(owner) else f"administer stores, without role {ADMIN}"


def _sets_rules(owner: Permissions, request: RetentionRequest) -> str:
    if request.reset or request.rules is not None:
        return _administers(owner, request)
    # Rules name topics.
    return "know the rules of retention" if owner.roles <= {TOWER} else ""


def _may_administer(owner: Permissions) -> bool:
    return owner.is_admin or owner.is_store


def _topics(request: Request) -> Iterable[str]:
    named: Any = request
    if (topic := getattr(named, "topic", None)) is not None:
        return (topic,)
    return {*(getattr(named, "topics", None) or ()), *(tp[0] for tp in _partitions(request))}


def _partitions(request: Request) -> Iterable[tuple[str, str]]:
    if not request.rows:
        named: Any = request
        return ((named.topic, named.partition),) if hasattr(named, "partition") else ()
    found = (row for member in request.rows for row in getattr(request, member))
    return {(topic, partition) for topic, partition, *_ in found}


NEEDS: Final[dict[type[Request], Need]] = {
    GetRequest: _reads,
    GetManyRequest: _reads,
    GetWhereRequest: _reads,
    LeaseRequest: _reads,
    LeaseManyRequest: _reads,
    PutRequest: _writes,
    CommitRequest: _writes,
    DigestsRequest: _reads_or_writes,
    DiscardRequest: _discards,
    Criteria: _knows,
    InfoRequest: _knows,
    HeadsRequest: _knows,
    WatchRequest: _knows,
    OffsetsRequest: _knows,
    SizesRequest: _knows,
    WaitRequest: _knows,
    TransactionsRequest: _knows,
    StagedRequest: _knows,
    RetentionRequest: _sets_rules,
    TrimRequest: _administers,
    DeleteRequest: _administers,
    ForgetRequest: _administers,
    BackupRequest: _administers,
    CheckRequest: _administers,
    LinksRequest: _administers,
    PeersRequest: _administers,
    SpaceRequest: _anything,
    StoresRequest: _anything,
    DescribeRequest: _anything,
}
"""What each kind of request needs of a key."""

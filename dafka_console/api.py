"""The JSON API of the console for browsers: the map, audit trails, groups, records by hand."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dafka_console import browsing, decoding, windows
from dafka_console.cluster_view import ANSWER_S, EVERY_S, SHARE, ClusterView, behind
from dafka_console.snapshot import BYTES, RECORDS, STORE, TOWER, WINDOWS, Snapshot
from dafka_console.top_view import query_row
from dafka_console.windows import Window
from dafka_core.audit import chained, parsed_record
from dafka_core.config.options import check_argument
from dafka_core.errors import (
    ClosedError,
    ConfigError,
    DafkaError,
    InvalidRequestError,
    RecordTooLargeError,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.name_limits import check_topic
from dafka_core.model.names import AUDIT_TOPIC, INTERNAL, escape, printable, unescape
from dafka_core.model.records import Record, TopicPartition
from dafka_core.nodes.producer import Producer
from dafka_core.ops.checks import check_all
from dafka_core.ops.gathering import gathered
from dafka_core.queries.query_progress import PartitionLag
from dafka_core.system.closing import Closing
from dafka_kafka.groups.group_lag import GroupLag, GroupPartition, group_lags

# -- the map of the cluster ------------------------------------------------------------------------

MOST_NODES: Final = 300  # nodes drawn of each kind; more would be unreadable
MOST_TOPICS: Final = 5  # topics named of a producer or consumer


def cluster_map(snapshot: Snapshot) -> dict[str, Any]:
    """Return nodes and links.

    A node has ``id``, ``kind``, ``here``, ``own`` (the console itself), ``topics`` and ``rate``, in
    records per second. A link between a store and another node has ``connected``, as the store
    reports: True, False, or None if unknown.
    """
    writes = _writes(snapshot)
    nodes: dict[str, dict[str, Any]] = {}
    counts: dict[str, int] = {}
    for each in snapshot.nodes:
        kind = each.kind or "node"
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] > MOST_NODES:
            continue
        topics, rate, client = writes.get(each.node, _NO_WRITES)
        topics = topics if kind == "producer" else tuple(topic for topic in each.topics if topic)
        shown = [topic for topic in topics if not topic.startswith(INTERNAL)] or list(topics)
        nodes[each.node] = _node(each.node, kind) | {
            "endpoint": each.endpoint,
            "here": True,
            "connected": each.connected,
            "topics": [escape(topic) for topic in shown[:MOST_TOPICS]],
            "topic_count": len(topics),
            "rate": round(rate, 2),
            "client": printable(client),
        }
    for state in snapshot.stores:
        known = nodes.setdefault(state.store, _node(state.store, STORE))
        known |= {"kind": STORE, "here": state.here, "partitions": state.partitions}
        known |= {"behind": state.behind, "failure": state.failure}
    for missing in snapshot.missing:
        nodes.setdefault(missing.store, _node(missing.store, STORE))
    if snapshot.own:
        nodes[snapshot.own] = _node(snapshot.own, "console") | {"here": True, "own": True}
    towers = [{"id": tower, "kind": TOWER, "here": True} for tower in snapshot.towers]
    return {
        "number": snapshot.number,
        "towers": towers,
        "nodes": sorted(nodes.values(), key=lambda node: (node["kind"], node["id"])),
        "links": _links(snapshot, nodes),
        "left_out": {
            kind: count - MOST_NODES for kind, count in counts.items() if count > MOST_NODES
        },
    }


def _node(address: str, kind: str) -> dict[str, Any]:
    return {
        "id": escape(address),
        "kind": kind,
        "endpoint": "",
        "here": False,
        "own": False,
        "connected": False,
        "topics": [],
        "topic_count": 0,
        "rate": 0.0,
    }


def _links(snapshot: Snapshot, nodes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a link for each reachable store and each other node; two stores share one."""
    links: dict[tuple[str, str], bool | None] = {}
    for state in snapshot.stores:
        if not state.here:
            continue
        told = None if state.peers is None else {each.node: each.connected for each in state.peers}
        for node, found in nodes.items():
            if node == state.store or not found["here"]:
                continue
            connected = None if told is None else told.get(node, False)
            pair = state.store, node
            if found["kind"] == STORE:
                pair = min(pair), max(pair)
            links[pair] = connected and links.get(pair, connected)
    return [
        {"store": escape(store), "node": escape(node), "connected": connected}
        for (store, node), connected in links.items()
    ]


_Writes = tuple[tuple[str, ...], float, str]
"""The topics that a node writes, its rate, and its client's name."""

_NO_WRITES: Final[_Writes] = ((), 0.0, "")


def _writes(snapshot: Snapshot) -> dict[str, _Writes]:
    columns = snapshot.partitions
    addresses = {each.node for each in snapshot.nodes}
    found: dict[str, _Writes] = {}
    rates = np.round(columns.rate, 3)
    for row, tp in enumerate(columns.tps):
        if tp.partition in addresses:
            topics, rate, client = found.get(tp.partition, _NO_WRITES)
            client = columns.clients.get(tp, client)
            found[tp.partition] = (*topics, tp.topic), rate + float(rates[row]), client
    return found


# -- audit trails ----------------------------------------------------------------------------------

MOST_QUERIES: Final = 50
MOST_BATCHES: Final = 100


def audited_queries(clients: Sequence[StoreClient], snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the queries with an audit trail: their ids, partitions and last batches.

    Of a trail that cannot be read only the partition, and no ``batch``.
    """
    columns, found = snapshot.partitions, []
    own = [(int(columns.last_us[row]), tp) for tp, row in _audit_rows(snapshot)]
    for _, tp in sorted(own, reverse=True)[:MOST_QUERIES]:
        row, name = columns.row_of(tp), escape(tp.partition)
        batches = int(columns.readable[row] - columns.earliest[row])
        shown = {"query": name, "partition": name, "batches": batches, "batch": None}
        try:
            (newest,) = browsing.last(clients, snapshot, tp, 1) or (None,)
        except DafkaError:
            found.append(shown | {"time_us": None})
            continue
        record = parsed_record(newest.value or b"") if newest else None
        if newest is not None and record is not None:
            facts = {"batch": record.batch, "time_us": newest.timestamp_us}
            found.append(shown | {"query": escape(record.query)} | facts)
    return found


def audit_ends(snapshot: Snapshot) -> dict[TopicPartition, int]:
    """Return the end of each query's records, which changes with every record."""
    return {tp: int(snapshot.partitions.end[row]) for tp, row in _audit_rows(snapshot)}


def audit_trail(
    clients: Sequence[StoreClient], snapshot: Snapshot, partition: str
) -> list[dict[str, Any]]:
    """Return the last batches of a query, newest first.

    ``chain`` tells if a record refers to the stored record before it: ``holds``, ``broken``, or
    ``begins`` for the first one.
    """
    tp = TopicPartition(AUDIT_TOPIC, partition)
    rows: list[dict[str, Any]] = []
    before: bytes | None = None
    for each in browsing.last(clients, snapshot, tp, MOST_BATCHES + 1):
        content = each.value or b""
        row: dict[str, Any] = {"offset": each.offset, "time_us": each.timestamp_us}
        row["chain"] = "no record"
        if (record := parsed_record(content)) is not None:
            chain = "begins"
            if before is not None:
                chain = "holds" if record.previous == chained(before) else "broken"
            row |= {
                "query": escape(record.query),
                "batch": record.batch,
                "rows": record.rows,
                "source": record.source,
                "chain": chain,
                "ranges": [
                    {**part._asdict(), **_place(part), "digest": part.digest[:200]}
                    for part in record.ranges[:50]
                ],
            }
        rows.append(row)
        before = content
    return rows[::-1][:MOST_BATCHES]


def _audit_rows(snapshot: Snapshot) -> list[tuple[TopicPartition, int]]:
    columns = snapshot.partitions
    rows = np.flatnonzero(columns.readable > columns.earliest).tolist()
    return [(columns.tps[row], row) for row in rows if columns.tps[row].topic == AUDIT_TOPIC]


# -- consumer groups -------------------------------------------------------------------------------

MOST_GROUPS: Final = 1_000
MOST_PARTITIONS: Final = 1_000
"""Rows in a list; clients can create any number of groups."""


class ConsumerGroups:
    """Asks stores about groups while a page shows them, once for all pages."""

    def __init__(self) -> None:
        self._found: Sequence[GroupLag] = ()
        self._due = 0.0
        self._lock = threading.Lock()

    def listed(self, clients: Sequence[StoreClient]) -> list[dict[str, Any]]:
        """Return the groups by name."""
        return [_group_row(each) for each in self._look(clients)[:MOST_GROUPS]]

    def partitions(self, clients: Sequence[StoreClient], group: str) -> dict[str, Any]:
        """Return a group's partitions and members."""
        for each in self._look(clients):
            if each.group == group:
                rows = [_group_partition(part) for part in each.partitions[:MOST_PARTITIONS]]
                return {"rows": rows, "total": len(each.partitions)}
        raise InvalidRequestError("group", escape(group)[:300], "it has not committed")

    def _look(self, clients: Sequence[StoreClient]) -> Sequence[GroupLag]:
        with self._lock:
            began = time.monotonic()
            if clients and began >= self._due:  # without one: the last known state
                self._found = group_lags(clients, timeout_s=ANSWER_S)
                ended = time.monotonic()
                self._due = ended + max(EVERY_S, (ended - began) / SHARE)
            return self._found


def _group_row(found: GroupLag) -> dict[str, Any]:
    return {
        "name": escape(found.group),
        "state": found.state,
        "members": found.members,
        "partitions": len(found.partitions),
        **behind(found),
    }


def _group_partition(found: GroupPartition) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": escape(found.topic), "number": found.number}
    if found.lag is not None:
        lag = found.lag
        row |= {"partition": escape(lag.partition), "committed": lag.position, "end": lag.end}
        row |= behind(lag)
    if found.member is not None:
        names = found.member.member_id, found.member.joined.client_id, found.member.joined.host
        row |= zip(("member", "client", "host"), map(escape, names), strict=True)
    return row


# -- records by hand -------------------------------------------------------------------------------

MOST_PRODUCERS: Final = 8  # producers kept for further records; each is a node of the mesh

ACK_S: Final = 10.0


class Producers(Closing):
    """A producer for each recently written topic; thread-safe.

    So this process has one partition in a topic, however many records are written.

    Args:
        options: how to join the mesh.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._lock = threading.Lock()
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        self._closed = False

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> tuple[str, int]:
        """Write one record and wait until a store has it; return its partition and offset.

        Raises:
            DafkaError: it cannot be written, or no store has it in time.
        """
        with self._lock:
            producer = self._producer(topic)
            try:
                offset = producer.publish(value, key, headers)
                producer.flush(ACK_S)
            except RecordTooLargeError:
                raise  # nothing was published
            except (TypeError, ValueError) as error:
                raise InvalidRequestError("headers", None, str(error)) from None
            except DafkaError:
                # An unacknowledged record may still arrive; the next one gets a new producer.
                self._end(topic)
                raise
            return producer.address, offset

    def close(self) -> None:
        """Close all producers."""
        with self._lock:
            self._closed = True
            for topic in [*self._producers]:
                self._end(topic)

    def _producer(self, topic: str) -> Producer:
        if self._closed:
            raise ClosedError("console")
        found = self._producers.get(topic)
        if found is None:
            found = Producer(topic, **self._options, close_timeout_s=1.0)
            self._producers[topic] = found
            if len(self._producers) > MOST_PRODUCERS:
                self._end(next(iter(self._producers)))
        self._producers.move_to_end(topic)
        return found

    def _end(self, topic: str) -> None:
        with suppress(DafkaError):  # the user was told that the record is not acknowledged
            self._producers.pop(topic).close()


def requested_record(
    body: bytes,
) -> tuple[str, bytes | None, bytes | None, list[tuple[str, bytes]]]:
    """Parse a record; raise InvalidRequestError, which names the member, if it is invalid."""
    try:
        found = _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError("body", body[:100], str(error)) from None
    except UnicodeDecodeError:
        raise InvalidRequestError("body", body[:100], "must be UTF-8") from None
    topic = unescape(found.topic)
    check_argument("topic", topic, check_topic)
    if topic.startswith(INTERNAL):
        raise InvalidRequestError("topic", found.topic, "is internal to Dafka and read-only here")
    pairs = found.headers if isinstance(found.headers, list) else found.headers.items()
    headers = [(name, value.encode()) for name, value in pairs]
    value = None if found.value is None else _octets(found.value, found.encoding)
    return topic, value, None if found.key is None else found.key.encode(), headers


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    value: str | None = None
    key: str | None = None
    headers: dict[str, str] | list[tuple[str, str]] = {}  # a list may name one several times
    encoding: Literal["text", "base64", "hex"] = "text"


_DECODER: Final = msgspec.json.Decoder(_Written)


def _octets(text: str, encoding: str) -> bytes:
    try:
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
        return bytes.fromhex(text) if encoding == "hex" else text.encode()
    except ValueError as error:
        raise InvalidRequestError("value", text[:100], f"is no {encoding}: {error}") from None


# -- the API ---------------------------------------------------------------------------------------

STATIC: Final = Path(__file__).with_name("static")

MOST_VIEWERS: Final = 64  # pages with an event stream
HEALTH_S: Final = 15.0  # lifetime of a diagnosis, which asks every node
MOST_LAGS: Final = 1_000  # partitions of a query in a list


@dataclass(eq=False)
class Api:
    """Answers from the view of a cluster."""

    view: ClusterView
    options: Mapping[str, Any]  # how to join the mesh, for a diagnosis
    uris: Sequence[str]  # stores given instead of towers
    producers: Producers | None  # write records; None if read-only

    def __post_init__(self) -> None:
        self._groups = ConsumerGroups()
        self._views = browsing.Views()
        self._viewers = 0
        self._noted: dict[TopicPartition, int] = {}
        self._audited: list[dict[str, Any]] = []
        self._health: tuple[float, list[str], list[dict[str, Any]]] = (-HEALTH_S, [], [])
        self._health_lock = threading.Lock()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self.view.snapshot

    def app(self) -> Starlette:
        """The application: pages, answers and events."""
        answers = (
            self.overview,
            self.map,
            self.topics,
            self.topic,
            self.partitions,
            self.records,
            self.record,
            self.queries,
            self.query,
            self.audit,
            self.groups,
            self.group,
            self.health,
        )
        routes = [
            Route("/", lambda request: FileResponse(STATIC / "index.html")),
            Route("/events", self.events),
            *map(self._route, answers),
            Route("/api/value", self.value),
            Route("/api/produce", self.produce, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        statuses = {ConfigError: 400, InvalidRequestError: 400, DafkaError: 502}
        handlers = {kind: partial(_failed, status) for kind, status in statuses.items()}
        return Starlette(routes=routes, exception_handlers=handlers)

    # -- answers ---------------------------------------------------------------------------------

    def overview(self, request: Request) -> dict[str, Any]:
        """Return totals, stores and the history of rates."""
        found = self.snapshot
        return {
            **windows.totals(found),
            "can_produce": self.producers is not None,
            "stores_listed": windows.store_rows(found),
            "rates": found.rates.points(RECORDS, _charted(request)),
            "byte_rates": found.rates.points(BYTES, _charted(request)),
        }

    def map(self, request: Request) -> dict[str, Any]:
        """Return nodes and their connections."""
        return cluster_map(self.snapshot)

    def topics(self, request: Request) -> dict[str, Any]:
        """Return a window of the topics."""
        internal = request.query_params.get("internal", "1") != "0"
        return windows.topic_window(self.snapshot, _window(request), internal=internal)

    def topic(self, request: Request) -> dict[str, Any]:
        """Return one topic."""
        name = _name(request, "topic")
        found = windows.topic_row(self.snapshot, name)
        if found is None:
            raise InvalidRequestError("topic", escape(name)[:300], browsing.UNKNOWN)
        return found | {"rates": self.snapshot.rates.points(name, _charted(request))}

    def partitions(self, request: Request) -> dict[str, Any]:
        """Return a window of the partitions of a topic, or of all."""
        topic = _name(request, "topic") if "topic" in request.query_params else None
        return windows.partition_window(self.snapshot, topic, _window(request))

    def records(self, request: Request) -> dict[str, Any]:
        """Return records of a topic or a partition, newest first.

        With ``pages`` also ``more``, by which the next request continues.
        """
        clients, snapshot, asked = self.view.clients(), self.snapshot, request.query_params
        topic, partition = _name(request, "topic"), unescape(asked.get("partition", ""))
        if asked.get("more"):
            view = self._views.named(asked["more"])
        else:
            matcher = browsing.search(asked.get("find", ""), asked.get("where", ""))
            since_us, until_us, before = (
                _number(request, name, 0) if name in asked else None
                for name in ("since_us", "until_us", "before")
            )
            view = browsing.opened(
                clients, snapshot, topic, matcher, since_us, until_us, partition, before
            )
        found, view = browsing.page(clients, snapshot, view, _number(request, "most", 50))
        bounds = (
            browsing.bounds_of(snapshot, TopicPartition(topic, partition)) if partition else None
        )
        return {
            "rows": [browsing.row_of(each) for each in found],
            "more": self._views.keep(view) if "pages" in asked else "",
            "scanned": view.scanned,
            "total": view.total,
            "lacking": view.away,
            "offsets": bounds,
        }

    def record(self, request: Request) -> dict[str, Any]:
        """Return a whole record."""
        asked = request.query_params
        found = self._one(request)
        tp = TopicPartition(found.topic, found.partition)
        details = browsing.details_of(
            found, asked.get("format", decoding.AUTO), asked.get("schema", "")
        )
        return details | {"client": printable(self.snapshot.partitions.clients.get(tp, ""))}

    def value(self, request: Request) -> Response:
        """Return a record's raw value: images inline, others as a download."""
        value = self._one(request).value or b""
        media, headers = decoding.image_type(value), {"content-security-policy": "sandbox"}
        if not media or "download" in request.query_params:
            media = "application/octet-stream"
            headers["content-disposition"] = "attachment; filename=value.bin"
        return Response(value, media_type=media, headers=headers)

    def queries(self, request: Request) -> dict[str, Any]:
        """Return Spark's queries, with their present and past lag."""
        found, window = self.snapshot, _charted(request)
        rates = dict(zip(found.partitions.topics, found.topics.rate.tolist(), strict=True))
        rows = []
        for each in found.queries:
            name = (each.query, each.run)
            written = sum(rates.get(topic, 0.0) for topic in {lag.topic for lag in each.lags})
            read = max(0.0, written - found.lags.slope(name))
            row = query_row(each) | {"lags": found.lags.points(name, window)}
            rows.append(row | {"written": round(written, 2), "read": round(read, 2)})
        return {"queries": rows, "audited": self._audited_queries()}

    def query(self, request: Request) -> dict[str, Any]:
        """Return a query's partitions and positions."""
        name, run = _name(request, "query"), _name(request, "run")
        for each in self.snapshot.queries:
            if (each.query, each.run) == (name, run):
                rows = sorted(each.lags, key=lambda lag: -lag.records_behind)[:MOST_LAGS]
                return {"rows": [_lag(lag) for lag in rows], "total": len(each.lags)}
        raise InvalidRequestError("query", escape(name)[:300], "it has not reported")

    def audit(self, request: Request) -> dict[str, Any]:
        """Return the audit trail of a query."""
        partition = _name(request, "partition")
        return {"rows": audit_trail(self.view.clients(), self.snapshot, partition)}

    def groups(self, request: Request) -> dict[str, Any]:
        """Return Kafka's consumer groups and their lag."""
        return {"rows": self._groups.listed(self.view.clients())}

    def group(self, request: Request) -> dict[str, Any]:
        """Return a group's partitions, commits and members."""
        return self._groups.partitions(self.view.clients(), _name(request, "group"))

    def health(self, request: Request) -> dict[str, Any]:
        """Return stores, and a diagnosis that is repeated at intervals."""
        with self._health_lock:
            made, then, findings = self._health
            here = [each.store for each in self.snapshot.stores if each.here]
            if then != here or time.monotonic() - made > HEALTH_S:
                found = check_all(gathered(self.options, (), self.uris, timeout_s=5.0))
                findings = [each._asdict() for each in found]
                self._health = time.monotonic(), here, findings
        staged = []
        for client in self.view.clients():
            with suppress(DafkaError):  # it has gone since: the next snapshot says so
                staged += [
                    {
                        "store": escape(client.location.store),
                        **_place(each),
                        "records": each.end - each.start,
                        "bytes": each.size_bytes,
                        "last_us": each.staged_at_us,
                    }
                    for each in client.staged(timeout_s=5.0)[:100]
                ]
        rows = windows.store_rows(self.snapshot)
        return {"findings": findings, "stores": rows, "staged": staged}

    async def produce(self, request: Request) -> Response:
        """Write a record."""
        return _json(await run_in_threadpool(self._write, await request.body()))

    async def events(self, request: Request) -> Response:
        """Stream each new snapshot's totals, as server-sent events."""
        if self._viewers >= MOST_VIEWERS:
            return _json({"error": f"{MOST_VIEWERS} pages are open already"}, 503)

        async def news() -> AsyncIterator[str]:
            self._viewers += 1
            try:
                yield "retry: 2000\n\n"
                number = 0
                while not self.view.closed:
                    found = await self.view.wait_async(number + 1)
                    number = found.number
                    yield f"id: {number}\ndata: {json.dumps(windows.totals(found))}\n\n"
            finally:
                self._viewers -= 1

        return StreamingResponse(news(), media_type="text/event-stream")

    def _audited_queries(self) -> list[dict[str, Any]]:
        """Read again when records were added, not for each request of each page."""
        found = self.snapshot
        ends = audit_ends(found)
        if ends != self._noted and found.live:
            self._audited = audited_queries(self.view.clients(), found)
            if all(each["batch"] is not None for each in self._audited):
                self._noted = ends
        return self._audited

    def _write(self, body: bytes) -> dict[str, Any]:
        if self.producers is None:
            why = "records can be written only where the console is in a mesh, by its towers"
            raise ConfigError("produce", "", why)
        topic, value, key, headers = requested_record(body)
        partition, offset = self.producers.produce(topic, value, key, headers)
        return {"topic": escape(topic), "partition": partition, "offset": offset}

    def _route(self, answer: Callable[[Request], dict[str, Any]]) -> Route:
        """Return the route of a JSON answer, which also says which stores are away."""

        def told(request: Request) -> Response:
            return _json(answer(request) | windows.availability(self.snapshot))

        return Route(f"/api/{answer.__name__}", told)

    def _one(self, request: Request) -> Record:
        tp = TopicPartition(_name(request, "topic"), _name(request, "partition"))
        offset = _number(request, "offset", -1)
        return browsing.one(self.view.clients(), self.snapshot, tp, offset)


def _failed(status: int, request: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, status)


def _json(found: object, status: int = 200) -> Response:
    return Response(json.dumps(found), status, media_type="application/json")


def _name(request: Request, parameter: str) -> str:
    text = request.query_params.get(parameter, "")
    if not text:
        raise InvalidRequestError(parameter, None, "is required")
    return unescape(text)


def _number(request: Request, parameter: str, default: int) -> int:
    text = request.query_params.get(parameter, str(default))
    if not text.removeprefix("-").isdecimal() or len(text) > 19:
        raise InvalidRequestError(parameter, text[:100], "must be a whole number")
    return int(text)


def _charted(request: Request) -> str:
    return request.query_params.get("window", next(iter(WINDOWS)))


def _window(request: Request) -> Window:
    asked = request.query_params
    return Window(
        asked.get("find", ""),
        asked.get("sort", "name"),
        asked.get("down") == "1",
        _number(request, "start", 0),
        _number(request, "most", 100),
    )


def _lag(lag: PartitionLag) -> dict[str, Any]:
    return {**_place(lag), "position": lag.position, "end": lag.end, **behind(lag)}


def _place(part: Any) -> dict[str, str]:
    return {"topic": escape(part.topic), "partition": escape(part.partition)}

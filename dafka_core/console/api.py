"""What browsers ask the console, and its answers as JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from dafka_core.console import audit_trail, browsing, decoding, windows
from dafka_core.console.cluster_map import cluster_map
from dafka_core.console.cluster_view import ClusterView
from dafka_core.console.consumer_groups import ConsumerGroups
from dafka_core.console.producing import Producers, written
from dafka_core.console.query_watch import behind
from dafka_core.console.snapshot import Snapshot
from dafka_core.console.top_view import query_row
from dafka_core.console.windows import Window
from dafka_core.diagnosis.checks import check_all
from dafka_core.diagnosis.gathering import gathered
from dafka_core.errors import ConfigError, DafkaError, InvalidRequestError
from dafka_core.names import escape, unescape
from dafka_core.queries.query_lag import PartitionLag
from dafka_core.records import Record, TopicPartition

STATIC: Final = Path(__file__).with_name("static")

MOST_VIEWERS: Final = 64
"""Pages that are told of news at one time."""

HEALTH_S: Final = 15.0
"""How long a diagnosis is shown before the next one is made: it asks everybody anew."""

MOST_LAGS: Final = 1_000
"""Partitions of a query that are listed."""

Answer = Callable[["Api", Request], Any]


class Api:
    """Answers from a view of a cluster.

    Args:
        view: what has been found out.
        options: how to join the mesh, for a diagnosis.
        uris: stores that were named in place of towers.
        producers: what writes records; None where nobody may.
    """

    def __init__(
        self,
        view: ClusterView,
        options: Mapping[str, Any],
        uris: Sequence[str] = (),
        producers: Producers | None = None,
    ) -> None:
        self.view = view
        self._options = options
        self._uris = uris
        self._producers = producers
        self._groups = ConsumerGroups()
        self._viewers = 0
        self._noted: dict[TopicPartition, int] = {}
        self._audited: list[dict[str, Any]] = []
        self._health: tuple[float, list[dict[str, str]]] = (-HEALTH_S, [])
        self._health_lock = threading.Lock()

    @property
    def snapshot(self) -> Snapshot:
        """The newest one."""
        return self.view.snapshot

    def app(self) -> Starlette:
        """All of it: pages, answers and news."""
        routes = [
            Route("/", lambda request: FileResponse(STATIC / "index.html")),
            Route("/events", self.events),
            Route("/api/value", self._answering(Api.value)),
            Route("/api/produce", self.produce, methods=["POST"]),
        ]
        routes += [Route(f"/api/{name}", self._answering(f)) for name, f in ANSWERS.items()]
        app = Starlette(routes=routes)
        app.mount("/static", StaticFiles(directory=STATIC))
        return app

    # -- answers ---------------------------------------------------------------------------------

    def overview(self, request: Request) -> Any:
        """The cluster in numbers, its stores, and how much was written."""
        found = self.snapshot
        step = max(1, len(found.history) // 300)
        return {
            **windows.totals(found),
            "can_produce": self._producers is not None,
            "stores_listed": windows.store_rows(found),
            "history": [
                [round(each.time_s, 1), round(each.rate, 1), round(each.byte_rate)]
                for each in found.history[::step]
            ],
        }

    def map(self, request: Request) -> Any:
        """Who is there, and who is connected to whom."""
        return cluster_map(self.snapshot)

    def topics(self, request: Request) -> Any:
        """Topics: a part of the list."""
        internal = request.query_params.get("internal", "1") != "0"
        return windows.topic_window(self.snapshot, _window(request), internal=internal)

    def topic(self, request: Request) -> Any:
        """One topic."""
        name = _name(request, "topic")
        found = windows.topic_row(self.snapshot, name)
        if found is None:
            raise InvalidRequestError("topic", escape(name)[:300], browsing.UNKNOWN)
        return found

    def partitions(self, request: Request) -> Any:
        """Partitions of a topic, or of all: a part of the list."""
        topic = _name(request, "topic") if "topic" in request.query_params else None
        return windows.partition_window(self.snapshot, topic, _window(request))

    def records(self, request: Request) -> Any:
        """Records of a partition, or the last ones of a topic's."""
        topic, most = _name(request, "topic"), _number(request, "most", 50)
        clients, asked = self.view.clients(), request.query_params
        if not asked.get("partition"):
            found = browsing.latest(clients, self.snapshot, topic, most)
            return {"rows": [browsing.row_of(each) for each in found]}
        tp = TopicPartition(topic, _name(request, "partition"))
        start = self._start(tp, request)
        search = browsing.Search(asked.get("find", ""), asked.get("where", ""))
        page = browsing.browsed(clients, self.snapshot, tp, start, most, search)
        return {
            "rows": [browsing.row_of(each) for each in page.records],
            "earliest": page.earliest,
            "end": page.end,
            "looked": page.looked,
            "scanned": page.scanned,
        }

    def record(self, request: Request) -> Any:
        """All of one record."""
        asked = request.query_params
        found = self._one(request)
        return browsing.details_of(
            found, asked.get("format", decoding.AUTO), asked.get("schema", "")
        )

    def value(self, request: Request) -> Response:
        """A record's value as it is: a picture to be drawn, all else to be kept as a file."""
        value = self._one(request).value or b""
        media = decoding.image_type(value)
        if media and "download" not in request.query_params:
            return Response(value, media_type=media, headers={"content-security-policy": "sandbox"})
        headers = {
            "content-disposition": "attachment; filename=value.bin",
            "content-security-policy": "sandbox",
        }
        return Response(value, media_type="application/octet-stream", headers=headers)

    def queries(self, request: Request) -> Any:
        """Spark's queries: how far behind each is, and was."""
        return {
            "queries": [
                {
                    **query_row(each),
                    "history": [
                        [round(at.time_s, 1), at.records_behind, at.seconds_behind]
                        for at in each.history
                    ],
                }
                for each in self.snapshot.queries
            ],
            "audited": self._audited_queries(),
        }

    def query(self, request: Request) -> Any:
        """A query's partitions: where it reads on in each."""
        name, run = _name(request, "query"), _name(request, "run")
        for each in self.snapshot.queries:
            if (each.lag.query, each.lag.run) == (name, run):
                rows = sorted(each.lag.lags, key=lambda lag: -lag.records_behind)[:MOST_LAGS]
                return {"rows": [_lag(lag) for lag in rows], "total": len(each.lag.lags)}
        raise InvalidRequestError("query", escape(name)[:300], "it has not reported")

    def audit(self, request: Request) -> Any:
        """The trail of a query's batches."""
        partition = _name(request, "partition")
        return {"rows": audit_trail.trail(self.view.clients(), self.snapshot, partition)}

    def groups(self, request: Request) -> Any:
        """Kafka's consumer groups, and how far behind each is."""
        return {"rows": self._groups.listed(self.view.clients())}

    def group(self, request: Request) -> Any:
        """A group's partitions: what is committed, and who reads."""
        return self._groups.partitions(self.view.clients(), _name(request, "group"))

    def health(self, request: Request) -> Any:
        """Stores, and what a diagnosis has found, which is made anew now and then."""
        with self._health_lock:
            made, findings = self._health
            if time.monotonic() - made > HEALTH_S:
                found = check_all(gathered(self._options, (), self._uris, timeout_s=5.0))
                findings = [
                    {
                        "severity": each.severity.value,
                        "about": each.about,
                        "sentence": each.sentence,
                        "remedy": each.remedy,
                    }
                    for each in found
                ]
                self._health = time.monotonic(), findings
        staged = [
            {
                "store": escape(client.location.store),
                "topic": escape(each.topic),
                "partition": escape(each.partition),
                "records": each.end - each.start,
                "bytes": each.size_bytes,
                "last_us": each.last_time_us,
            }
            for client in self.view.clients()
            for each in client.staged(timeout_s=5.0)[:100]
        ]
        rows = windows.store_rows(self.snapshot)
        return {"findings": findings, "stores": rows, "staged": staged}

    async def produce(self, request: Request) -> Response:
        """Writes a record."""
        body = await request.body()

        def write() -> Any:
            if self._producers is None:
                why = "records can be written only where the console is in a mesh, by its towers"
                raise ConfigError("produce", "", why)
            topic, value, key, headers = written(body)
            partition, offset = self._producers.produce(topic, value, key, headers)
            return {"topic": escape(topic), "partition": partition, "offset": offset}

        return await run_in_threadpool(_answered, write)

    async def events(self, request: Request) -> Response:
        """News, as server-sent events: the cluster in numbers, at each snapshot."""
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
        """Asked for again when something was noted, and not at each look of each viewer."""
        found = self.snapshot
        ends = audit_trail.noted(found)
        if ends != self._noted and found.live:
            self._audited = audit_trail.audited_queries(self.view.clients(), found)
            self._noted = ends
        return self._audited

    def _answering(self, answer: Answer) -> Callable[[Request], Response]:
        def told(request: Request) -> Any:
            found = answer(self, request)
            if isinstance(found, Response):
                return found
            return found | windows.availability(self.snapshot)

        return lambda request: _answered(lambda: told(request))

    def _one(self, request: Request) -> Record:
        tp = TopicPartition(_name(request, "topic"), _name(request, "partition"))
        offset = _number(request, "offset", -1)
        return browsing.one(self.view.clients(), self.snapshot, tp, offset)

    def _start(self, tp: TopicPartition, request: Request) -> int | None:
        """Where a page begins: at an offset, at a time, or None for the last records."""
        if "time_us" in request.query_params:
            time_us, found = _number(request, "time_us", 0), []
            for client in self.view.clients():
                found += client.offset_for_times([(*tp, time_us)], timeout_s=5.0)
            return min((each for each in found if each is not None), default=None)
        return _number(request, "offset", 0) if "offset" in request.query_params else None


ANSWERS: Final[Mapping[str, Answer]] = {
    "overview": Api.overview,
    "map": Api.map,
    "topics": Api.topics,
    "topic": Api.topic,
    "partitions": Api.partitions,
    "records": Api.records,
    "record": Api.record,
    "queries": Api.queries,
    "query": Api.query,
    "audit": Api.audit,
    "groups": Api.groups,
    "group": Api.group,
    "health": Api.health,
}
"""What is answered with JSON, by the last part of its path."""


def _answered(answer: Callable[[], Any]) -> Response:
    try:
        found = answer()
    except (ConfigError, InvalidRequestError) as error:
        return _json({"error": str(error)}, 400)
    except DafkaError as error:
        return _json({"error": str(error)}, 502)
    return found if isinstance(found, Response) else _json(found)


def _json(found: object, status: int = 200) -> Response:
    return Response(json.dumps(found), status, media_type="application/json")


def _name(request: Request, parameter: str) -> str:
    text = request.query_params.get(parameter, "")
    if not text:
        raise InvalidRequestError(parameter, None, "is required")
    try:
        return unescape(text)
    except ValueError as error:
        raise InvalidRequestError(parameter, text[:300], str(error)) from None


def _number(request: Request, parameter: str, default: int) -> int:
    text = request.query_params.get(parameter, str(default))
    if not text.lstrip("-").isdecimal() or len(text) > 19:
        raise InvalidRequestError(parameter, text[:100], "must be a whole number")
    return int(text)


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
    return {
        "topic": escape(lag.topic),
        "partition": escape(lag.partition),
        "position": lag.position,
        "end": lag.end,
        **behind(lag),
    }

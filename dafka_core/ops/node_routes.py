"""The routes ``/metrics``, ``/healthz`` and ``/readyz`` of nodes and of the console."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, chain
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dafka_core.model.histograms import BOUNDS_S, Counted
from dafka_core.ops.findings import Finding, Severity
from dafka_core.ops.health import is_alive, is_ready
from dafka_core.ops.metric_declarations import Metric, Sample
from dafka_core.ops.node_metrics import TABLE, WatchedNodes
from dafka_core.ops.store_extension import store_extensions

PROBES = ("/healthz", "/readyz")
"""The paths that need no token: without one they answer with one word."""


def node_routes(nodes: WatchedNodes) -> list[Route]:
    """Return the routes for nodes."""
    registry, scrape = registry_of(nodes), threading.Lock()

    # Functions that are no coroutines run in threads: a file system may hang.
    def metrics(request: Request) -> Response:
        names = request.query_params.getlist("name[]")
        encode, kind = exposition.choose_encoder(request.headers.get("accept", ""))
        with scrape:  # concurrent scrapes would only slow each other down
            text = encode(registry.restricted_registry(names) if names else registry)
        return Response(text, media_type=kind)

    return [
        Route("/metrics", metrics),
        Route("/healthz", partial(_health, nodes, is_alive, ("ok", "failed"))),
        Route("/readyz", partial(_health, nodes, is_ready, ("ready", "not ready"))),
    ]


def _health(
    nodes: WatchedNodes,
    judge: Callable[[list[Finding]], bool],
    words: tuple[str, str],
    request: Request,
) -> Response:
    found = nodes.findings()
    good = judge([finding for _, _, finding in found])
    code, status = (200, words[0]) if good else (503, words[1])
    if not request.scope["is_known"]:
        return PlainTextResponse(f"{status}\n", code)
    if "json" in request.url.query or "application/json" in request.headers.get("accept", ""):
        facts = [{"kind": kind, "node": name, **each._asdict()} for kind, name, each in found]
        return JSONResponse({"status": status, "findings": facts}, code)
    lines = [
        f"{each.severity}: {kind} {name}: {each}"
        for kind, name, each in found
        if not good or each.severity is not Severity.OK
    ]
    return PlainTextResponse("".join(f"{line}\n" for line in (status, *lines)), code)


_FAMILIES: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def registry_of(nodes: WatchedNodes) -> CollectorRegistry:
    """Return a registry of the metrics of nodes and of this process."""
    registry = CollectorRegistry()
    registry.register(NodesCollector(nodes))
    ProcessCollector(registry=registry)
    return registry


class NodesCollector(Collector):
    """Collects the metrics of a process's nodes, also those without samples."""

    def __init__(self, nodes: WatchedNodes) -> None:
        self._nodes = nodes

    def describe(self) -> list[Family]:
        """Return all possible metrics: clients may request some by name."""
        declared = [each.metrics for each in store_extensions()]
        declared += [each.metrics for each in self._nodes.nodes]
        return [_family(metric, []) for metric in dict.fromkeys(chain(*TABLE.values(), *declared))]

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics."""
        found: dict[Metric, list[tuple[list[str], Sample]]] = {}
        nodes = self._nodes.nodes
        for node in nodes:
            for metric in node.metrics:
                found.setdefault(metric, [])
            for sample in node.samples():
                labels = [node.kind, node.name, *sample.labels]
                found[sample.metric].append((labels, sample))
        for metric in dict.fromkeys(chain(*TABLE.values(), found)):
            if metric in found:
                yield _family(metric, found[metric])


def _family(metric: Metric, samples: list[tuple[list[str], Sample]]) -> Family:
    name = metric.name.removesuffix("_total")
    family: Any = _FAMILIES[metric.kind](name, metric.meaning, labels=list(metric.all_labels))
    for labels, sample in samples:
        if isinstance(sample.value, Counted):
            family.add_metric(labels, _buckets(sample.value), sample.value.sum_s)
        else:
            family.add_metric(labels, float(sample.value))
    return cast("Family", family)


def _buckets(counted: Counted) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus requires."""
    names = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
    return [*zip(names, accumulate(counted.counts), strict=True)]

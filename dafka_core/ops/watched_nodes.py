"""The nodes of this process that are watched, without keeping them alive."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.ops import health, readings
from dafka_core.ops import metric_declarations as d
from dafka_core.ops.findings import LIFE, Finding, Severity, problem
from dafka_core.ops.metric_declarations import Sample
from dafka_core.ops.readings import StoreReadings
from dafka_core.ops.store_extension import ExtensionNode
from dafka_core.protocol.beacons import endpoint_of
from dafka_core.system.distribution import this_version

if TYPE_CHECKING:
    from dafka_core.nodes.node import Node


class WatchedNode:
    """The metrics and findings of a node.

    Args:
        topics: maximum number of a store's topics with their own metrics.

    Raises:
        ConfigError: the node's kind has no metrics.
    """

    def __init__(self, node: Node, topics: int) -> None:
        self.kind = node.kind
        self.metrics: Sequence[d.Metric] = ()
        """Metrics that an extension declares."""
        self._node = weakref.ref(node)
        anyone: Any = node
        self._read: Callable[[Any], Iterable[Sample]]
        match self.kind:
            case "store":
                self._read = StoreReadings(anyone, topics).read
                self.name, endpoint = anyone.address, endpoint_of(anyone.mesh.beacon, "")
            case "producer" | "consumer":
                reads = readings.of_producer, readings.of_consumer
                self._read = reads[self.kind == "consumer"]
                self.name, endpoint = anyone.address, endpoint_of(anyone.mesh.beacon, "")
            case "tower":
                self._read = readings.of_tower
                self.name = endpoint = anyone.tower
            case _ if isinstance(node, ExtensionNode):
                self._read = methodcaller("samples")
                self.name = endpoint = node.name
                self.metrics = node.metrics
            case other:
                why = "must be a tower, store, producer, consumer or extension of a store"
                raise ConfigError("nodes", other, why)
        self._info = (this_version(), endpoint)

    def samples(self) -> list[Sample]:
        """Return the current samples; of a closed node only its state."""
        findings = self.findings()
        samples = [
            Sample(d.INFO, 1, self._info),
            Sample(d.HEALTHY, health.is_alive(findings)),
            Sample(d.READY, health.is_ready(findings)),
            Sample(d.WARNINGS, sum(each.severity is Severity.WARNING for each in findings)),
        ]
        node = self._node()
        if node is None or not node.is_open:
            return samples
        with contextlib.suppress(DafkaError):  # it is just ending, as ``findings`` reports
            samples.extend(self._read(node))
        return samples

    def findings(self) -> list[Finding]:
        """Return the current findings."""
        node = self._node()
        if node is None:
            remedy = "keep a reference to it, or close it"
            return [problem(LIFE, f"the {self.kind} was garbage-collected", remedy)]
        try:
            return [*health.of_node(node)]
        except DafkaError as error:  # it is just ending
            return [problem(LIFE, str(error), "restart it")]


class WatchedNodes:
    """The watched nodes of a process.

    Args:
        topics: maximum number of a store's topics with their own metrics.
    """

    def __init__(self, topics: int) -> None:
        self._topics = topics
        self._lock = threading.Lock()
        self._nodes: list[WatchedNode] = []
        self._expected = ""

    def add(self, *nodes: Node) -> None:
        """Watch further nodes."""
        made = [WatchedNode(each, self._topics) for each in nodes]
        with self._lock:
            self._nodes += made
            self._expected = ""

    def expect(self, what: str) -> None:
        """Report the process as running but not ready, until ``add``."""
        self._expected = what

    @property
    def nodes(self) -> list[WatchedNode]:
        """The nodes that were added."""
        with self._lock:
            return [*self._nodes]

    def findings(self) -> list[tuple[str, str, Finding]]:
        """Return the findings of all nodes, with the node's kind and name."""
        found = [(each.kind, each.name, one) for each in self.nodes for one in each.findings()]
        if self._expected or not found:
            what = self._expected or "node"
            remedy = "wait until it has opened its log and found a tower; its messages say more"
            one = problem("start", f"no {what} serves yet", remedy)
            found.append((what, "", one))
        return found

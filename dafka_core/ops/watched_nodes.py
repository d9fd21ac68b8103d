"""The nodes of this process that are watched, without keeping them alive."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.ops import health
from dafka_core.ops.findings import LIFE, Finding, problem
from dafka_core.ops.metric_declarations import Metric, Sample
from dafka_core.ops.node_metrics import EVERY, MESH, TABLE, Reading, of_kind
from dafka_core.ops.store_extension import ExtensionNode
from dafka_core.ops.topic_totals import ShownTopics, TopicTotals
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
        self.metrics: Sequence[Metric] = of_kind(self.kind)
        self._node = weakref.ref(node)
        anyone: Any = node
        if isinstance(node, ExtensionNode):
            self.name = node.name
            self.metrics = [*self.metrics, *node.metrics]
        elif self.kind == "tower":
            self.name = anyone.tower
        elif self.kind in MESH:
            self.name = anyone.address
        else:
            why = "must be a tower, store, producer, consumer or extension of a store"
            raise ConfigError("nodes", self.kind, why)
        endpoint = endpoint_of(anyone.mesh.beacon, "") if self.kind in MESH else self.name
        self._info = {(this_version(), endpoint): 1}
        is_store = self.kind == "store"
        self._topics = (TopicTotals(anyone.log), ShownTopics(topics)) if is_store else None

    def samples(self) -> list[Sample]:
        """Return the current samples; of a closed node only its state."""
        node = self._node()
        reading = Reading(node, self.findings(), self._info, self._topics)
        is_open = node is not None and node.is_open
        found: list[Sample] = []
        with contextlib.suppress(DafkaError):  # it is just ending, as ``findings`` reports
            for metric in self.metrics if is_open else TABLE[EVERY]:
                found += metric.samples(reading)
        return found

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

"""Declarations of metrics: name, kind, labels, meaning, and where each is read.

The endpoint and docs/metrics.md are generated from these declarations. Names are
``dafka_NOUN_UNIT``, and counters end with ``_total``, by Prometheus' rules
(https://prometheus.io/docs/practices/naming/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple

from dafka_core.model.histograms import Counted

Kind = Literal["counter", "gauge", "histogram"]

Read = str | Callable[[Any], Any]
"""Returns a metric's value from a node: a number, counted durations, a dict of numbers by label, or
None for none. A string names an attribute, such as ``log.syncs.counted``."""

NODE_LABELS: Final = ("kind", "node")
"""Labels of every metric, as a process may run several nodes: the node's kind, and its address
(of a tower: host and ports)."""


class Sample(NamedTuple):
    """A value of a metric; ``labels`` are the values of ``Metric.labels`` in their order."""

    metric: Metric
    value: float | Counted
    labels: tuple[str, ...] = ()


class Metric(NamedTuple):
    """The declaration of a metric."""

    name: str
    kind: Kind
    read: Read
    meaning: str
    labels: tuple[str, ...] = ()  # in addition to ``NODE_LABELS``

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The labels of its samples."""
        return (*NODE_LABELS, *self.labels)

    def samples(self, node: Any) -> Iterator[Sample]:
        """Read the metric of a node."""
        value = _attribute(node, self.read) if isinstance(self.read, str) else self.read(node)
        if isinstance(value, dict):
            for labels, each in [*value.items()]:
                yield Sample(self, each, labels if isinstance(labels, tuple) else (labels,))
        elif value is not None:
            yield Sample(self, value)


def _attribute(node: Any, path: str) -> Any:
    for name in path.split("."):
        if node is None:  # such as the archiver of a store without an archive
            return None
        node = getattr(node, name)
    return node


def family(
    declare: Callable[..., Metric], meaning: str, *labels: str, **reads: Read
) -> tuple[Metric, ...]:
    """Declare metrics with one meaning, by their names."""
    return tuple(declare(name, read, meaning, *labels) for name, read in reads.items())


def counter(name: str, read: Read, meaning: str, *labels: str) -> Metric:
    """Declare a number that only grows; its full name is ``dafka_NAME_total``."""
    return Metric(f"dafka_{name}_total", "counter", read, meaning, labels)


def gauge(name: str, read: Read, meaning: str, *labels: str) -> Metric:
    """Declare a number that grows and falls; its full name is ``dafka_NAME``."""
    return Metric(f"dafka_{name}", "gauge", read, meaning, labels)


def histogram(name: str, read: Read, meaning: str) -> Metric:
    """Declare counted durations; its full name is ``dafka_NAME_seconds``."""
    return Metric(f"dafka_{name}_seconds", "histogram", read, meaning)

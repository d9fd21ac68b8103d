"""One number of one node at one moment."""

from __future__ import annotations

from typing import NamedTuple

from dafka_core.durations import Counted
from dafka_core.metrics.declarations import Metric


class Sample(NamedTuple):
    """``labels`` are the values of the metric's own ones, in their order."""

    metric: Metric
    value: float | Counted
    labels: tuple[str, ...] = ()

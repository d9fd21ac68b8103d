"""For tests of programs that use Dafka: clusters, doubles and waiting (docs/python.md).

pytest finds the fixtures ``dafka_cluster`` and ``dafka_topic`` by itself.
"""

from __future__ import annotations

from dafka_core.testing.embedded_cluster import EmbeddedCluster
from dafka_core.testing.store_double import StoreDouble
from dafka_core.testing.waiting import PATIENCE_S, wait_until

__all__ = ["PATIENCE_S", "EmbeddedCluster", "StoreDouble", "wait_until"]

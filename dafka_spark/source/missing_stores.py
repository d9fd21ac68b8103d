"""What a query says when it begins of stores that are away, or why it does not begin."""

from __future__ import annotations

import logging

from dafka_core.missing_stores import check_min_stores, warning
from dafka_spark.cluster import timing
from dafka_spark.cluster.connections import Connect
from dafka_spark.options import SourceOptions

_log = logging.getLogger("dafka_spark")


def check_stores(options: SourceOptions, connect: Connect) -> None:
    """Warns of each store that is known and away.

    Raises:
        ConfigError: there are fewer stores than option ``minStores`` asks for.
    """
    with connect(options.mesh_address) as reader:
        missing = reader.missing_stores(timeout_s=timing.FIND_S)
        there = len(reader.stores())
    check_min_stores("minStores", options.min_stores, there, missing)
    for each in missing:
        _log.warning("%s", warning(each))

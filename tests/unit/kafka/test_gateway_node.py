"""What each feature of a gateway is given."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from dafka_core.kafka.gateway_node import GatewayNode


def test_work_that_takes_long_is_done_in_another_thread() -> None:
    nothing: Any = None
    store: Any = SimpleNamespace(endpoints={}, options=SimpleNamespace(keys=None))
    with ThreadPoolExecutor(1, "beside") as threads:
        node = GatewayNode(store, nothing, nothing, nothing, threads)
        work = node.in_thread(lambda: threading.current_thread().name)
        assert asyncio.run(work).startswith("beside")

"""The connections of a process, when it forks and when it ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from dafka_core import EmbeddedCluster, Reader
from dafka_core.config.node_options import NO_KEYS
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S
from dafka_spark.cluster import connections
from dafka_spark.options import MeshAddress, SourceOptions
from tests.integration.cluster.stores import Serve
from tests.integration.cluster.transactions import read
from tests.memory_reader import MemoryReader

NOWHERE = StoreLocation("nowhere", ("grpc://127.0.0.1:1",))


def test_a_process_ends_though_a_borrower_was_abandoned() -> None:
    program = (
        "from tests.unit.dafka_spark.test_connections import Opened, abandon\n"
        "pool = Opened()\n"
        "abandon(pool, 'a')\n"
        "pool.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_a_forked_child_does_not_destroy_a_client(serve: Serve) -> None:
    """Its destructor would wait for threads that do not exist in the child."""
    store, tp = serve("one"), TopicPartition("t", "A")
    store.add(tp, 10)
    with connections.borrow_client(store.location, NO_KEYS) as client:
        assert len(read(client, tp, 10)) == 10
    del client
    subprocess.run(["true"], preexec_fn=gc.collect, timeout=20, check=True)


def test_options_with_the_prefix_dafka_reach_the_nodes(shared: EmbeddedCluster) -> None:
    given = {"tower": shared.tower, "dafka.peer_expiry_ms": "9000", "dafka.wire": "rfc46"}
    address = SourceOptions.of({**given, "subscribe": "t"}).mesh_address
    with connections.borrow_reader(address) as reader:
        assert isinstance(reader, Reader)
        assert reader._config.peer_expiry_ms == 9_000
        reader.hear_stores(timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    "borrow",
    [
        lambda: connections.borrow_reader(MeshAddress("nowhere")),
        lambda: connections.borrow_client(NOWHERE, NO_KEYS),
        connections.borrow_logs,
    ],
    ids=["reader", "client", "logs"],
)
def test_a_forked_child_opens_its_own_connections(
    borrow: Callable[[], AbstractContextManager[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "Reader", lambda **_: MemoryReader())
    with borrow() as parents:
        pass
    with borrow() as again:
        assert again is parents
    child = os.fork()
    if child == 0:
        code = 2
        try:
            with borrow() as own:
                code = 1 if own is parents else 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0

"""Transactions between nodes: another store has all of one, and its version, or shows nothing."""

from __future__ import annotations

from dafka_core import EmbeddedCluster
from dafka_core.model.records import Transaction, TransactionState
from dafka_core.testing import wait_until
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S
from tests.integration.nodes.staging import (
    TP,
    client_in,
    read,
    write,
)

LARGE = 300_000
"""Records of a transaction that takes many messages, and many rounds of a store's loop."""


# -- a store that is only a socket -----------------------------------------------------------------


def test_a_store_killed_while_it_takes_a_large_transaction(
    cluster: EmbeddedCluster,
) -> None:
    cluster.start_store(1)
    with client_in(cluster) as host:
        write(host, 0, 100, 1)
        with client_in(cluster, 1) as replica:
            assert replica.wait(TP, 100, timeout_s=PATIENCE_S) == 100
            write(host, 100, 4 * LARGE, 2)
            wait_until(lambda: replica.transaction_states([TP], timeout_s=9)[0].staged_end > 100)
        cluster.kill_store(1)
        cluster.start_store(1)
        with client_in(cluster, 1) as replica:
            seen = set()

            def is_whole() -> bool:
                (info,) = replica.transaction_states([TP], timeout_s=PATIENCE_S)
                seen.add(info.end)
                return info.end == 4 * LARGE

            wait_until(is_whole)
            assert seen <= {100, 4 * LARGE}
            (info,) = replica.transaction_states([TP], timeout_s=PATIENCE_S)
            assert info == TransactionState(
                4 * LARGE, 4 * LARGE, "", Transaction(2, 100, 4 * LARGE)
            )
            assert read(replica, 4 * LARGE) == values(4 * LARGE)

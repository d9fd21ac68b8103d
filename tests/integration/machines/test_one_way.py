"""A machine that connects to others and accepts no connections, as behind NAT.

Its nodes announce an address that no other machine can reach.
"""

from __future__ import annotations

import json

import pytest

from dafka_core.testing import wait_until
from tests.integration.machines import one_way
from tests.integration.machines.conftest import FIRST, SECOND, Machines

PRIVATE = "10.99.0.1"


@pytest.fixture
def behind(separate: Machines) -> Machines:
    """The second machine is behind NAT; the first one has a store."""
    separate.command(SECOND, f"ip addr add {PRIVATE}/32 dev lo")
    return separate


def outcomes(machines: Machines, *words: str) -> dict[str, object]:
    process = machines.run(SECOND, one_way.__name__, *words)
    assert process.stdout is not None
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


def test_spark_reads_and_writes_without_inbound_connections(behind: Machines) -> None:
    store = behind.start_store(FIRST)
    found = outcomes(behind, f"tower={behind.tower(SECOND)}", f"host={PRIVATE}")
    assert [found[name] for name in ("written", "read", "streamed")] == [one_way.COUNT] * 3
    # Errors of the mesh name the store and the address to which it cannot connect.
    assert f"{store['address']} cannot connect to this node at tcp://{PRIVATE}:" in str(
        found["mesh"]
    )


def test_option_stores_needs_no_mesh(behind: Machines) -> None:
    store = behind.start_store(FIRST)
    uri = next(each for each in store["flight"] if each.startswith("grpc://"))
    nowhere = ("tower=127.0.0.1:1:2", f"stores={uri}")
    found = outcomes(behind, *nowhere)
    assert [found[name] for name in ("written", "read", "streamed")] == [one_way.COUNT] * 3
    assert "reads from the mesh; leave it out" in str(found["mesh"])


def test_commands_without_inbound_connections_work_or_log_the_cause(behind: Machines) -> None:
    store = behind.start_store(FIRST)
    outcomes(behind, f"tower={behind.tower(SECOND)}")
    topics = behind.start(SECOND, "topics", host=PRIVATE)
    assert topics.end() == 0
    _, line = topics.lines
    assert line.split()[:3] == [b"numbers", b"1", b"10"]
    assert f"{store['address']} cannot connect to tcp://{PRIVATE}:" in topics.said
    consumer = behind.start(SECOND, "consume", "numbers", "--from-beginning", host=PRIVATE)
    wait_until(lambda: f"have not connected to this node at tcp://{PRIVATE}:" in consumer.said)

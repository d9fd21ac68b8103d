"""A machine that vanishes without closing its connections, as after a loss of power."""

import json

import pytest

from dafka_core.testing import wait_until
from tests.integration.machines import calls, one_way
from tests.integration.machines.conftest import FIRST, SECOND, Machines

LIMIT_S = 15.0


def test_a_machine_that_vanishes_costs_seconds(machines: Machines) -> None:
    machines.start_store(FIRST)
    far = machines.start_store(SECOND)["address"]
    process = machines.run(FIRST, calls.__name__, machines.tower(FIRST), far)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "begun\n"
    machines.vanish(SECOND)
    process.stdin.write("\n")
    process.stdin.flush()
    outcomes = json.loads(process.stdout.readline())
    assert {name: seconds for name, (_, seconds) in outcomes.items() if seconds > LIMIT_S} == {}
    # Errors of requests name the store.  A task continues at the other store; a writer has staged
    # its rows at the lost one, so Spark retries the batch.
    for name in ("read", "put", "wait"):
        assert far in str(outcomes[name][0])
    assert outcomes["read_task"][0] == calls.RECORDS
    assert "20 records are not acknowledged" in outcomes["write_task"][0]


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

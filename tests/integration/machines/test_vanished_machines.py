"""A machine that vanishes without closing its connections, as after a loss of power."""

from __future__ import annotations

import json

from tests.integration.machines import calls
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

"""The gateways of a cluster."""

from __future__ import annotations

from dafka_core.kafka.gateways import Gateways
from dafka_core.kafka.kafka_options import HostPort


def test_a_gateway_has_a_number_that_its_store_gives_it() -> None:
    one, again = (Gateways("A" * 32, HostPort("h", port)).own for port in (1, 2))
    assert one.node_id == again.node_id
    assert 0 <= one.node_id < 2**31

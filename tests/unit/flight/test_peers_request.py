"""Who is connected to a store, as it travels."""

from __future__ import annotations

import pytest

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.peers_request import Peers, PeersRequest
from dafka_core.records import Neighbour


def test_peers_travel_with_names_of_any_octets() -> None:
    made = Peers((Neighbour("A", "consumer", "tcp://h:1", True, ("t\udcff",)), Neighbour("B")))
    assert Peers.parse(made.packed()) == made
    assert PeersRequest.parse(b"") == PeersRequest()


@pytest.mark.parametrize("body", [b'{"v": 1}', b'{"v": 1, "peers": [["A", "", "", 5, []]]}'])
def test_what_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        Peers.parse(body)

"""The action that tells who is connected to a store."""

from __future__ import annotations

from typing import ClassVar

from dafka_core.flight.requests import ActionRequest
from dafka_core.json_message import JsonMessage
from dafka_core.records import Neighbour


class PeersRequest(ActionRequest, frozen=True):
    """The nodes that this store hears of, and who is connected to it: {v}? -> {v, peers}."""

    action: ClassVar[str] = "dafka.peers.v1"
    may_be_empty: ClassVar[bool] = True


class Peers(JsonMessage, frozen=True):
    """The nodes that a store hears of."""

    peers: tuple[Neighbour, ...]

"""A C store made of bare sockets, which only readers discover.

It sends no hello to Python stores, as they would copy its records.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Self

from dafka_core.protocol.codec import parse_subscription, subscription
from dafka_core.protocol.messages import ConsumerHello, DirectHead, DirectRecord, Fetch, GetHeads
from dafka_core.protocol.messages import StoreHello as Hello
from tests.integration.nodes.peers import RawPeer


class CStore:
    """A store with one partition, which ignores the nodes in ``strangers``."""

    def __init__(
        self, tower: str, topic: str, values: Sequence[bytes], strangers: Collection[str]
    ) -> None:
        self.topic = topic
        self.values = list(values)
        self._strangers = strangers
        self._peer = RawPeer(tower, subscription(GetHeads), subscription(Fetch))
        self.partition = self._peer.address
        self._peer.subscribe(subscription(ConsumerHello, self._peer.address))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._peer.close()

    def _run(self) -> None:
        heads = fetches = 0
        while not self._ended.wait(0.005):
            for node in self._readers():
                self._peer.send(Hello(node, self._peer.address))
            requests = self._peer.messages(GetHeads)
            for request in requests[heads:]:
                if request.topic in ("", self.topic) and self._knows(request.requestor):
                    end = len(self.values) - 1
                    head = DirectHead(request.requestor, self.topic, self.partition, end)
                    self._peer.send(head)
            wanted = self._peer.messages(Fetch)
            for fetch in wanted[fetches:]:
                self._send(fetch)
            heads, fetches = len(requests), len(wanted)

    def _readers(self) -> set[str]:
        found = map(parse_subscription, list(self._peer.subscribed))
        return {node for _, kind, node in found if kind is Hello and node and self._knows(node)}

    def _knows(self, node: str) -> bool:
        return node not in self._strangers

    def _send(self, fetch: Fetch) -> None:
        own = (fetch.topic, fetch.partition) == (self.topic, self.partition)
        if not own or not self._knows(fetch.requestor):
            return
        for offset in range(fetch.sequence, min(fetch.end, len(self.values))):
            self._peer.send(
                DirectRecord(
                    fetch.requestor, self.topic, self.partition, offset, self.values[offset]
                )
            )

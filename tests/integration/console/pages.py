"""Asking a console over HTTP, with headers as a test wants them; and what it sees of stores."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from dafka_console.server import Console
from dafka_console.snapshot import PartitionTable, Snapshot
from dafka_core.testing import PATIENCE_S, StoreDouble


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    console: Console,
    path: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    **parameters: Any,
) -> Answer:
    """One request; ``headers`` come in place of those that are usual."""
    asking = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
    usual = {"Host": f"127.0.0.1:{console.port}"}
    if method == "POST":
        usual["Content-Type"] = "application/json"
    target = f"{path}?{urlencode(parameters)}" if parameters else path
    try:
        asking.putrequest(method, target, skip_host=True)
        if body is not None:
            usual["Content-Length"] = str(len(body))
        for name, value in {**usual, **(headers or {})}.items():
            asking.putheader(name, value)
        asking.endheaders()
        if body is not None:
            asking.send(body)
        found = asking.getresponse()
        return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
    finally:
        asking.close()


def post(console: Console, headers: Mapping[str, str] | None = None, **members: Any) -> Answer:
    """Publish a record from the page."""
    return ask(console, "/api/produce", "POST", json.dumps(members).encode(), headers)


def seen(*stores: StoreDouble) -> Snapshot:
    """Return a snapshot of a console that has read these stores."""
    table = PartitionTable()
    for store in stores:
        table.hear(store.address, store.log.partitions(), complete=True)
    return Snapshot(1, 0.0, 0.0, table.columns())

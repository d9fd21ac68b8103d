"""A key that writes reports and audit records in the name of another key's query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dafka_core.audit import audit_record
from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import NotAllowedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.maintenance import ProtectedQueries
from dafka_core.queries import query_progress
from dafka_core.queries.query_progress import QueryProgress, publish, reports
from dafka_core.security.key_files import read_public
from dafka_core.security.permissions import Permissions
from dafka_core.storage import Log
from dafka_core.storage.retention import Unread
from dafka_core.testing import PATIENCE_S, wait_until
from tests.forked import ForkedCluster
from tests.key_files import KeyDirectory

ROWS = TopicPartition("flights", "A" * 32)


def report(run: str, end: int) -> QueryProgress:
    return QueryProgress("hourly", run, 60).at({ROWS: end})


def test_a_key_cannot_write_in_the_partitions_of_anothers_query() -> None:
    with ForkedCluster(keys=True) as cluster:
        cluster.key("job", ("produce", "consume"))
        cluster.key("evil", ("produce", "consume"))
        owners = {name: read_public(cluster.keys / f"{name}.key") for name in ("job", "evil")}

        @contextmanager
        def client(name: str) -> Iterator[StoreClient]:
            location = StoreLocation(cluster.stores[0], cluster.locations())
            with StoreClient(location, KeyFiles(**cluster.key(name))) as opened:
                yield opened

        def is_admitted(name: str) -> bool:
            with client(name) as opened, suppress(StoreUnreachableError):
                return bool(opened.describe(timeout_s=PATIENCE_S))
            return False

        for name in owners:
            wait_until(lambda name=name: is_admitted(name))  # type: ignore[misc]

        def say(name: str, owner: Permissions, run: str, end: int) -> None:
            with client(name) as opened:
                topic = QUERIES_TOPIC
                publish([opened], topic, report(run, end), owner=owner, timeout_s=PATIENCE_S)

        job, evil = owners["job"].permissions, owners["evil"].permissions
        say("job", job, "right", 1)
        with pytest.raises(NotAllowedError, match="which is not its own"):
            say("evil", job, "forged", 9)
        with client("evil") as opened:
            tp = audit_record.partition_of("7090e364", job)
            with (
                opened.put(tp, 0, timeout_s=PATIENCE_S) as put,
                pytest.raises(NotAllowedError, match="which is not its own"),
            ):
                put.finish(PATIENCE_S)
        say("evil", evil, "forged", 9)  # in its own partition, which hides nothing
        with client("job") as opened:
            found = reports([opened], QUERIES_TOPIC, timeout_s=PATIENCE_S)
        assert {each.progress.run for each in found} == {"right", "forged"}


def test_no_key_releases_records_that_another_ones_query_needs(tmp_path: Path) -> None:
    keys = KeyDirectory(tmp_path)
    for name in ("job", "evil"):
        keys.allow(name, "consume")
    with Log(tmp_path / "log") as log:

        def say(name: str, run: str, end: int) -> None:
            owner = read_public(keys.away / f"{name}.key").permissions
            tp = query_progress.partition_of("hourly", owner=owner)
            log.append([RecordBatch.of(tp, log.end(tp), [report(run, end).packed()])])

        queries = ProtectedQueries(log, ["hourly"])
        for name, end in {"job": 5, "evil": 9}.items():
            say(name, name, end)
        queries.look()
        assert queries.unread(ROWS) == Unread(5, "hourly")

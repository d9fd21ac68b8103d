"""Helpers for logs that are read from their files."""

from __future__ import annotations

from typing import Any

from dafka_core.flight.local_log import LocalLog, LocalLogs
from dafka_core.flight.requests import GetRequest, RecordRange
from tests.integration.flight.hosts import LARGEST, TP, Served


def opened(logs: LocalLogs, served: Served) -> LocalLog:
    log = logs.open(served.location)
    assert log is not None
    return log


def read(log: LocalLog, served: Served, start: int, end: int, **options: Any) -> Any:
    request = GetRequest((RecordRange(*TP, start, end),), **LARGEST | options)
    return log.records(served.client(), request)


def churn(served: Served, rounds: int = 12) -> None:
    """Append and trim, so that free pages are reused."""
    for _ in range(rounds):
        end = served.log.end(TP)
        served.extend(end + 5_000)
        served.log.trim(TP, end + 4_990)

"""Ranges of which a real service sends what fits a condition."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.envelope import closed
from dafka_core.epochs import Epoch, EpochId
from dafka_core.errors import DataLossError, HistoryChangedError, InvalidRequestError
from dafka_core.flight import server_get, server_where
from dafka_core.flight.columns import OFFSET, TIMESTAMP, VALUE
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.where_get import GetWhereRequest, read_where
from dafka_core.kept_records import KeptRecords
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import PARTITION, TOPIC, TP, Served, open_reads, value

COLUMNS = (VALUE, OFFSET, TIMESTAMP)


def read(
    client: StoreClient, start: int, end: int, where: str, tp: TopicPartition = TP, **members: Any
) -> list[KeptRecords]:
    """What came, which covers the range."""
    asked = {"start": start, "end": end, "where": where, "columns": COLUMNS, **tp._asdict()}
    request = GetWhereRequest(**asked | members)
    found = list(read_where(client, request, timeout_s=PATIENCE_S))
    at = start
    for part in found:
        assert part.offset == at < part.end
        at = part.end
    assert at == end
    return found


def offsets(found: list[KeptRecords]) -> list[int]:
    return [offset for part in found for offset in part.offsets.tolist()]


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("value LIKE '77,%'", range(77, 78)),
        ("offset >= 9990 AND offset < 10010", range(9_990, 10_010)),
        ("value IS NOT NULL", range(5, 20_003)),
        ("value = 'nothing'", range(0)),
    ],
)
def test_what_fits_comes_over_both_ways(
    filled: Served, client: StoreClient, where: str, wanted: range
) -> None:
    found = read(client, 5, 20_003, where)
    assert offsets(found) == list(wanted)
    assert [each for part in found for each in part.values] == [value(each) for each in wanted]
    stamps = dict(filled.log.times(TP, 0, 20_003))
    for part in found:
        assert part.times is not None
        assert part.times[:, 0].sum() == part.count
        assert set(part.times[:, 1].tolist()) <= set(stamps.values())
    assert open_reads(filled.directory) == 0


@pytest.mark.parametrize("sizes", [{"max_records": 7}, {"max_bytes": 100}, {"max_records": 1}])
def test_batches_are_as_large_as_asked_for(
    served: Served, client: StoreClient, sizes: dict[str, Any]
) -> None:
    served.extend(500)
    for part in (found := read(client, 3, 400, "offset <> 17", **sizes)):
        assert part.count <= sizes.get("max_records", 500)
        assert part.count <= 1 or part.values.size_bytes <= sizes.get("max_bytes", 1 << 20)
    assert offsets(found) == [each for each in range(3, 400) if each != 17]


def test_a_client_hears_of_the_store_where_nothing_fits(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at so much is an answer, of no record."""
    monkeypatch.setattr(server_where, "MAX_SCANNED_BYTES", 1)
    for end in (10_000, 20_000, 20_005):
        served.extend(end)
    found = read(client, 0, 20_005, "key = 'a'")
    assert len(found) == 3
    assert offsets(found) == []
    monkeypatch.undo()
    assert len(read(client, 0, 20_005, "key = 'a'")) == 1


def test_keys_are_those_in_envelopes(served: Served, client: StoreClient) -> None:
    contents = [closed(b"v", b"k"), b"v", closed(None, b"k")]
    served.log.append([RecordBatch.of(TP, 0, contents)])
    assert offsets(read(client, 0, 3, "key = 'k'")) == [0, 2]
    assert offsets(read(client, 0, 3, "value = 'v'")) == [0, 1]
    assert offsets(read(client, 0, 3, "value = 'v'", envelope="none")) == [1]
    assert [*read(client, 0, 3, "value IS NULL")[0].values] == [contents[2]]


def test_what_is_not_held_or_of_another_history_is_an_error(
    served: Served, client: StoreClient
) -> None:
    served.extend(1_000)
    served.log.trim(TP, 500)
    with pytest.raises(DataLossError) as lost:
        read(client, 0, 1_000, "offset > 900")
    assert lost.value.wanted == 0
    with pytest.raises(DataLossError):
        read(client, 600, 1_001, "offset > 900")
    old, new, other = EpochId(1, 5, 0), EpochId(2, 6, 0), TopicPartition(TOPIC, "EPOCHS")
    served.log.append([RecordBatch.of(other, 0, [b"a"] * 10)])
    epoch = Epoch(*new, 10, 0)
    more = RecordBatch.of(other, 10, [b"b"] * 10)
    served.log.append([RecordBatch(other, 10, more.values, epoch=epoch)])
    assert offsets(read(client, 5, 20, "value = 'b'", other, life=new)) == list(range(10, 20))
    with pytest.raises(HistoryChangedError):
        read(client, 5, 20, "value = 'b'", other, life=old)


def test_records_trimmed_under_a_reader_are_an_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_where, "MAX_SCANNED_BYTES", 1)
    for end in range(40_000, 400_001, 40_000):
        served.extend(end)
    members: dict[str, Any] = {
        "start": 0,
        "end": 400_000,
        "where": "offset >= 0",
        "columns": COLUMNS,
    }
    request = GetWhereRequest(**TP._asdict() | members)
    came = read_where(served.client(), request, timeout_s=PATIENCE_S)
    assert next(came).offset == 0
    served.log.trim(TP, 399_999)
    with pytest.raises(DataLossError):
        list(came)


def test_any_client_can_ask(served: Served) -> None:
    served.extend(1_000)
    members = {"topic": TOPIC, "partition": PARTITION, "start": 0, "end": 1_000}
    ticket = json.dumps({"v": 3, **members, "where": "offset IN (7, 999)"}).encode()
    reader = served.plain().do_get(flight.Ticket(ticket))
    columns, metadata = reader.read_chunk()
    assert columns["offset"].to_pylist() == [7, 999]
    assert columns["value"].to_pylist() == [value(7), value(999)]
    assert columns["timestamp"].type == pa.timestamp("us", "UTC")
    assert memoryview(metadata).cast("q").tolist() == [3, 0, 1_000, 2]
    with pytest.raises(StopIteration):
        reader.read_chunk()
    refused = json.dumps({"v": 3, **members, "where": "offset = 'x'"}).encode()
    with pytest.raises(flight.FlightServerError, match="must have a whole number") as caught:
        served.plain().do_get(flight.Ticket(refused)).read_all()
    assert json.loads(caught.value.extra_info)["member"] == "where"


def test_a_store_of_before_says_so(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.extend(10)
    monkeypatch.setattr(server_get, "ticket_version", lambda _: 1)
    with pytest.raises(InvalidRequestError):
        read(client, 0, 10, "offset > 5")

"""Rows with keys, headers, null values and odd topics, from the sink to a store and back."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dafka_core import Consumer, EmbeddedCluster, Producer, Reader
from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight import server_requests
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.envelope import closed
from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_core.model.names import escape
from dafka_core.model.records import MatchedRecords, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage.block import MAX_BLOCK_RECORDS
from dafka_core.testing import PATIENCE_S
from dafka_spark.errors import (
    ApplicationError,
    BadValueError,
    ColumnError,
    IncompleteBatchError,
    RetentionAheadError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink.commit_coordinator import partition_address
from dafka_spark.sink.rows import write_rows
from dafka_spark.sink.staging import WrittenRange
from dafka_spark.sink.writer import DafkaBatchWriter
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.sinks import Sink
from tests.integration.cluster.stores import A, Batch, Mesh, Patch, Serve, Served, value
from tests.unit.dafka_spark.streams import ALL, json_round, reader
from tests.unit.dafka_spark.tasks import Task

HEADERS = [[("trace", b"\x01"), ("trace", None)], None, [], [("", b"")]]
ROWS: dict[str, list[Any]] = {
    "key": [b"k", None, b"", None],
    "value": [b"v", b"bare", None, closed(b"looks like one", b"k")],
    "headers": [[{"key": key, "value": value} for key, value in row or ()] for row in HEADERS],
}
CONTENTS = [
    closed(value, key, headers or ())
    for key, value, headers in zip(ROWS["key"], ROWS["value"], HEADERS, strict=True)
]


def batch(rows: dict[str, list[Any]]) -> pa.RecordBatch:
    types = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS_TYPE}
    return pa.record_batch({name: pa.array(rows[name], kind) for name, kind in types.items()})


def write(sink: Sink, rows: pa.RecordBatch, **given: object) -> tuple[WrittenRange, ...]:
    """Write a task's rows."""
    with sink.factory(**given) as task:
        written = write_rows(
            iter([rows]),
            sink.options(**given),
            lambda name: partition_address("query", name, 0),
            task.open,
        )
        sink.commit(*written, store=task.picked, **given)
        return written


def read(sink: Sink, **given: str) -> dict[str, list[Any]]:
    """Read rows as a batch query does."""
    query = Batch(tower=sink.cluster.tower, includeHeaders="true", **given)
    found = pa.Table.from_batches(query.batches()).to_pydict()
    return {**found, "headers": [row or [] for row in found["headers"]]}


@pytest.mark.parametrize("fetch", ["flight", "local", "mesh"])
def test_every_source_returns_the_rows_that_were_written(sink: Sink, fetch: str) -> None:
    (written,) = write(sink, batch(ROWS))
    assert sink.held(0, written.tp.partition).values == CONTENTS
    found = read(sink, subscribe=sink.topic, fetch=fetch)
    assert {name: found[name] for name in ROWS} == ROWS
    query = Batch(tower=sink.cluster.tower, subscribe=sink.topic, fetch=fetch, envelope="none")
    assert [row["value"] for row in query.rows()] == CONTENTS


@pytest.mark.parametrize("column", ["key", "headers", "value"])
def test_a_repeated_batch_with_another_key_or_header_is_refused(sink: Sink, column: str) -> None:
    Task(0).begin(sink.patch)
    schema = StructType([each for each in full(headers=True) if each.name in ROWS])

    def run(rows: dict[str, list[Any]]) -> None:
        writer = DafkaBatchWriter(schema, sink.options(txnAppId="envelopes", txnVersion=3))
        writer.begin()
        writer.commit([writer.write(iter([batch(rows)]))])

    run(ROWS)
    run({name: rows[::-1] for name, rows in ROWS.items()})
    with pytest.raises(ApplicationError, match="it has 4 others now"):
        run({**ROWS, column: [*ROWS[column][:3], ROWS[column][0]]})
    assert sink.seen() == len(ROWS["key"])


def test_a_c_record_that_begins_like_an_envelope(
    shared: EmbeddedCluster, sink: Sink, topic: str
) -> None:
    """C producers publish values without envelopes."""
    begun = [b"\xc1DFK", b"\xc1DFK\x01\x03and more", CONTENTS[0] + b"!"]
    with Producer(topic, tower=shared.tower, wire="rfc46", envelope="none") as producer:
        producer.publish_many(begun)
        producer.flush(PATIENCE_S)
    assert read(sink, subscribe=topic)["value"] == begun
    with Consumer(tower=shared.tower) as consumer:
        consumer.subscribe(topic)
        records = [consumer.poll(PATIENCE_S) for _ in begun]
    assert [record and record.value for record in records] == begun


# -- topics of any bytes ---------------------------------------------------------------------------


@pytest.fixture
def names(topic: str) -> list[str]:
    forms = "bad\udcff", "new\nline", "\\xff", "plain", "\udcfe" * 200
    return [f"{topic}-{form}" for form in forms]


def write_each(sink: Sink, names: list[str], **given: object) -> tuple[WrittenRange, ...]:
    """Write a row to each topic, with the escaped topics in a column."""
    shown = [escape(name) for name in names]
    rows = pa.record_batch({"value": pa.array(shown).cast(pa.binary()), "topic": pa.array(shown)})
    return write(sink, rows, topic="", **given)


def test_what_is_written_is_read_each_way(sink: Sink, names: list[str]) -> None:
    with pytest.raises(ColumnError, match="option allowControlCharacters"):
        write_each(sink, names)
    done = write_each(sink, names, allowControlCharacters=True)
    assert {each.tp.topic for each in done} == set(names)
    with Reader(tower=sink.cluster.tower) as reader:
        infos = reader.partitions(names, timeout_s=PATIENCE_S)
    assert {info.topic for info in infos} == set(names)
    expected = sorted(map(escape, names))

    def check(expected: list[str], **given: str) -> None:
        found = read(sink, **given)
        assert sorted(found["topic"]) == expected
        assert [value.decode() for value in found["value"]] == found["topic"]

    for fetch in ("local", "flight", "mesh"):
        check(expected, subscribePattern=f"{sink.topic}-.*", fetch=fetch)
    for name in expected:
        check([name], subscribe=name)


def test_a_stream_continues_from_its_checkpoint(sink: Sink, names: list[str]) -> None:
    given = {"tower": sink.cluster.tower, "startingOffsets": "earliest"}
    chosen = SourceOptions.of({**given, "subscribePattern": f"{sink.topic}-.*"})
    position = None
    for _ in range(2):
        write_each(sink, names, allowControlCharacters=True)
        stream = DafkaMicroBatchStream(full(), chosen)
        start = position or stream.initialOffset()
        position = json_round(stream.latestOffset(start, ALL))
        assert "packed" in position
        tasks = stream.partitions(start, position)
        batches = [batch for task in tasks for batch in stream.read(task)]
        found = sorted(name for batch in batches for name in batch["topic"].to_pylist())
        assert found == sorted(map(escape, names))


def matching(mesh: Mesh, where: str, **given: str) -> list[int]:
    """Return the matching offsets of A."""
    found: list[int] = []
    for each in Batch(mesh, where=where, **given).batches():
        assert 0 < each.num_rows <= int(given.get("maxRecordsPerBatch", MAX_BLOCK_RECORDS))
        assert each["timestamp"].null_count in (0, each.num_rows)
        offsets = each["offset"].to_pylist()
        assert each["value"].to_pylist() == [value(offset, 5) for offset in offsets]
        found += offsets
    return found


@pytest.fixture
def one(serve: Serve) -> Served:
    """A store with 1,000 records in A."""
    return serve("one").add(A, 1_000, 5)


@pytest.mark.parametrize("fetch", ["local", "flight", "mesh", "auto"])
def test_every_source_returns_matching_records(mesh: Mesh, fetch: str) -> None:
    mesh.logs[A] = [value(offset, 5) for offset in range(1_000)]
    assert matching(mesh, "value IN ('00007', '00070', '00700')", fetch=fetch) == [7, 70, 700]
    assert matching(mesh, "value LIKE '%07' AND offset < 100", fetch=fetch) == [7]
    assert matching(mesh, "value = 'nothing'", fetch=fetch) == []
    half = matching(mesh, "value < '00500'", fetch=fetch, maxRecordsPerBatch="7")
    assert half == [*range(500)]


def test_tasks_of_many_ranges_return_matching_records(serve: Serve) -> None:
    store, names = serve("one"), [f"P{number:02}" for number in range(40)]
    for name in names:
        store.add(TopicPartition("t", name), 10, 5)
    for fetch in ("local", "flight"):
        query = Batch(Mesh([store]), where="value = '00003'", fetch=fetch)
        tasks: list[Any] = query.partitions()
        assert all(len(task.ranges) > 1 for task in tasks)
        assert query.offsets(tasks) == {name: [3] for name in names}


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_conditions_apply_to_keys_and_before_values_are_decoded(serve: Serve, fetch: str) -> None:
    store = serve("one")
    store.append(A, [closed(b'{"id": 1}', b"k"), b"broken", closed(None, b"k")])
    typed = {"valueFormat": "json", "valueSchema": "id INT"}

    def rows(where: str, **given: str) -> list[tuple[Any, Any]]:
        found = Batch(Mesh([store]), where=where, fetch=fetch, **given).rows()
        return [(row["offset"], row["value"]) for row in found]

    assert rows("key = 'k' AND value IS NOT NULL", **typed) == [(0, {"id": 1})]
    with pytest.raises(BadValueError, match="offset 1"):
        rows("value = 'broken'", **typed)
    assert rows("key IS NULL") == [(1, b"broken")]
    closed_ones = rows("key IS NULL", envelope="none")  # they stay closed
    assert [offset for offset, _ in closed_ones] == [0, 1, 2]


def test_a_rate_limit_counts_examined_records(mesh: Mesh) -> None:
    stream = reader(mesh, where="value LIKE '%7'", maxoffsetspertrigger="100")
    start, rows = json_round(stream.initialOffset()), 0
    for _ in range(10):
        end = json_round(stream.latestOffset(start, stream.getDefaultReadLimit()))
        tasks: list[Any] = stream.partitions(start, end)
        assert sum(each.size for task in tasks for each in task.ranges) == 100
        rows += sum(each.num_rows for task in tasks for each in stream.read(task))
        start = end
    assert rows == 100
    assert json_round(stream.latestOffset(start, ALL)) == start


def test_the_next_store_examines_the_rest(
    one: Served, mesh: Mesh, serve: Serve, patch: Patch
) -> None:
    """The first store stops after a block; it is not asked for that again."""
    count = 2 * MAX_BLOCK_RECORDS
    one.add(A, count - 1_000, 5)
    mesh.served.append(serve("other").add(A, count, 5))
    requests: dict[str, int] = {}
    original = StoreClient.records

    def breaking(client: Any, request: Any, **more: Any) -> Any:
        requests[client.location.store] = request.ranges[0].start
        batches = original(client, request, **more)
        yield next(batches)
        if len(requests) == 1:
            raise StoreUnreachableError(client.location.store, "it broke")
        yield from batches

    patch.setattr(StoreClient, "records", breaking)
    patch.setattr(server_requests, "MAX_SCANNED_BLOCKS", 1)
    assert matching(mesh, "value LIKE '%77'", fetch="flight") == [*range(77, count, 100)]
    first, second = requests.values()
    assert first == 0 < second < count


@pytest.mark.parametrize("examined", [[(0, 999)], [(1, 1_000)], [(0, 500), (501, 1_000)]])
def test_a_reply_that_does_not_cover_the_range_is_an_error(
    mesh: Mesh, patch: Patch, examined: list[tuple[int, int]]
) -> None:
    """Completeness counts examined offsets, not matching records."""

    def incomplete(*_: Any, **__: Any) -> Iterator[MatchedRecords]:
        for start, end in examined:
            yield MatchedRecords(A, start, end, np.array([], np.int64), Values())

    patch.setattr(StoreClient, "records", incomplete)
    with pytest.raises(IncompleteBatchError):
        matching(mesh, "value = '00007'", fetch="flight")


def test_lost_records_are_an_error_even_if_none_would_match(one: Served, mesh: Mesh) -> None:
    strict = Batch(mesh, where="value = '00900'", fetch="flight")
    lenient = Batch(mesh, where="value = '00900'", fetch="flight", failOnDataLoss="false")
    tasks = strict.partitions()
    one.log.trim(A, 500)
    with pytest.raises(RetentionAheadError) as caught:
        strict.batches(tasks)
    assert (caught.value.wanted, caught.value.lost_end) == (0, 500)
    assert lenient.offsets(tasks) == {"A": [900]}


def test_an_invalid_condition_is_refused_before_the_query_starts() -> None:
    with pytest.raises(ConfigError, match=r"option 'where' = .*did you mean 'value'"):
        Batch(where="vaule = 'x'")

"""What a sink's task does, without Spark or stores."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from dafka_core.errors import ConfigError, NotAcknowledgedError
from dafka_core.model.envelope import closed
from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_core.model.records import TopicPartition
from dafka_core.model.values import Values
from dafka_core.security.permissions import Permissions
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import ColumnError
from dafka_spark.formats.ddl import parse_ddl
from dafka_spark.options import SinkOptions
from dafka_spark.schema import full
from dafka_spark.sink import rows
from dafka_spark.sink.application import Application, own_address, partition_address
from dafka_spark.sink.rows import (
    by_topic,
    check_columns,
    encoded,
    row_codec,
    write_rows,
)
from dafka_spark.sink.staging import WrittenRange


class Ledger:
    """Writers in memory that say what they were told."""

    def __init__(self, failing: str = "") -> None:
        self.values: dict[str, list[bytes]] = {}
        self.failing = failing
        self.opened: list[str] = []
        self.closed: list[str] = []

    def open(self, tp: TopicPartition) -> Any:
        self.opened.append(tp.topic)
        return PartitionWriter(self, tp)


class PartitionWriter(contextlib.AbstractContextManager[Any]):
    def __init__(self, ledger: Ledger, tp: TopicPartition) -> None:
        self.ledger, self.topic, self.address = ledger, tp.topic, tp.partition
        self.end = 40

    def write(self, contents: pa.Array) -> None:
        self.ledger.values.setdefault(self.topic, []).extend(Values.from_arrow(contents))
        self.end += len(contents)

    def finish(self, deadline: Deadline) -> WrittenRange:
        assert deadline.left_s > 0
        if self.topic == self.ledger.failing:
            raise NotAcknowledgedError(self.topic, self.address, 1, deadline.timeout_s)
        return WrittenRange(TopicPartition(self.topic, self.address), 40, self.end)

    def __exit__(self, *_: object) -> None:
        self.ledger.closed.append(self.topic)


def batch(**columns: Any) -> Any:
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def write(ledger: Ledger, *batches: Any, **given: Any) -> Any:
    return write_rows(iter(batches), SinkOptions.of(given), lambda topic: f"@{topic}", ledger.open)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_values_are_bytes(kind: pa.DataType) -> None:
    ledger = Ledger()
    values = pa.array(["é", ""]).cast(kind)
    written = write(ledger, pa.record_batch({"value": values}), topic="t")
    assert ledger.values == {"t": ["é".encode(), b""]}
    assert written == (WrittenRange(TopicPartition("t", "@t"), 40, 42),)


def test_option_topic_wins_over_the_column() -> None:
    ledger = Ledger()
    write(ledger, batch(value=[b"1"], topic=["u"]), topic="t")
    assert ledger.values == {"t": [b"1"]}


def test_rows_go_to_their_topics_in_order() -> None:
    ledger = Ledger()
    first = batch(value=[b"1", b"2", b"3"], topic=["a", "b", "a"])
    written = write(ledger, first, batch(value=[b"4"], topic=["a"]))
    assert ledger.values == {"a": [b"1", b"3", b"4"], "b": [b"2"]}
    assert written[0] == WrittenRange(TopicPartition("a", "@a"), 40, 43)
    assert sorted(ledger.closed) == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        ({"topic": "t"}, ["t"]),  # what cannot be written is refused before there are rows
        ({}, []),
    ],
)
def test_writers_that_no_row_needs(given: Any, opened: list[str]) -> None:
    empty = batch(value=pa.array([], pa.binary()), topic=pa.array([], pa.string()))
    for batches in ([], [empty]):
        ledger = Ledger()
        assert write(ledger, *batches, **given) == ()
        assert ledger.opened == ledger.closed == opened


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            {"value": [b"1"], "topic": ["a"], "headers": [[{"key": None, "value": b"x"}]]},
            "column 'headers': a header's name is null",
        ),
        ({"value": [b"1", b"2"], "topic": ["a", None]}, "column 'topic': 1 of 2 rows are null"),
        (
            {"value": [b"1", b"2"], "topic": ["a", ""]},
            "column 'topic': '': a topic must have 1 to 255",
        ),
        ({"value": [b"1", b"2"], "topic": ["a", "x" * 256]}, "1 to 255 bytes"),
    ],
)
def test_a_batch_with_a_bad_row_is_not_sent(rows: Any, says: str) -> None:
    ledger = Ledger()
    with pytest.raises(ColumnError, match=says):
        write(ledger, batch(**rows))
    assert ledger.values == {}


def test_keys_headers_and_nulls_are_put_into_envelopes() -> None:
    ledger = Ledger()
    headers = pa.array([None, [], None, [("h", None)]], HEADERS_TYPE)
    rows = batch(value=["1", "2", None, "4"], key=[None, "k", None, None], topic=list("abab"))
    write(ledger, rows.append_column("HEADERS", headers))
    assert ledger.values == {
        "a": [b"1", closed(None)],
        "b": [closed(b"2", b"k"), closed(b"4", None, [("h", None)])],
    }


def test_a_value_that_looks_like_an_envelope_gets_one() -> None:
    ledger, value = Ledger(), closed(b"v", b"k")
    write(ledger, batch(value=[value]), topic="t")
    assert ledger.values == {"t": [closed(value)]}
    ledger = Ledger()
    write(ledger, batch(value=[value]), topic="t", envelope="none")
    assert ledger.values == {"t": [value]}


def test_without_envelopes_null_values_are_refused() -> None:
    with pytest.raises(ColumnError, match=r"'value': 1 of 2 rows are null; .*option envelope"):
        write(Ledger(), batch(value=[b"1", None]), topic="t", envelope="none")


HEADERS = full(headers=True)["headers"]
NUMBERED = StructField("partition", IntegerType())


@pytest.mark.parametrize(
    ("fields", "given", "says"),
    [
        ([StructField("key", IntegerType())], {}, "'key': is int, must be binary or string"),
        (
            [StructField("headers", StringType())],
            {},
            "must be array<struct<key:string,value:binary>>",
        ),
        ([NUMBERED], {}, "'partition': cannot be chosen: each task writes partitions of its own"),
        ([full()["partition"]], {}, "'partition': cannot be chosen"),
        ([full()["offset"]], {}, "'offset': cannot be written: a record is a 'value'"),
        ([full()["key"]], {"envelope": "none"}, "'key': .*option envelope = none"),
        ([HEADERS], {"envelope": "none"}, "'headers': .*option envelope = none"),
    ],
)
def test_columns_that_cannot_be_written(fields: Any, given: Any, says: str) -> None:
    options = SinkOptions.of({"topic": "t", **given})
    with pytest.raises(ColumnError, match=says):
        check_columns(StructType([full()["value"], *fields]), options)


def test_columns_that_can_be_written() -> None:
    text = StructField("KEY", StringType(), nullable=False)
    schema = StructType([text, full()["value"], full()["topic"], HEADERS])
    check_columns(schema, SinkOptions.of({}))


def test_rows_for_a_table_say_nothing_that_is_passed_over() -> None:
    table = full({"subscribe": "t"}, headers=True)
    nulls: dict[str, Any] = {
        name: pa.nulls(1, kind) for name, kind in zip(*arrow_columns(table), strict=True)
    }
    rows = {**nulls, "value": [b"v"], "key": [b"k"]}
    check_columns(table, SinkOptions.of({"topic": "t", "envelope": "none"}))
    ledger = Ledger()
    write(ledger, batch(**rows), topic="t")
    assert ledger.values == {"t": [closed(b"v", b"k")]}
    with pytest.raises(ColumnError, match=r"'key': cannot be written with option envelope"):
        write(Ledger(), batch(**rows), topic="t", envelope="none")
    with pytest.raises(ColumnError, match=r"'timestamptype': cannot be written"):
        write(Ledger(), batch(**{**rows, "timestampType": [1]}), topic="t")


def arrow_columns(schema: StructType) -> tuple[list[str], list[pa.DataType]]:
    made = to_arrow_schema(schema, timezone="UTC")
    return made.names, made.types


def test_odd_topics_are_written_when_they_are_allowed() -> None:
    shown = [r"a\xff\x0a", "b", r"\x62"]
    rows = batch(value=[b"1", b"2", b"3"], topic=shown)
    ledger = Ledger()
    with pytest.raises(ColumnError, match=r"column 'topic': 'a\\xff\\x0a': has control") as refused:
        write(ledger, rows)
    assert "option allowControlCharacters" in str(refused.value)
    with pytest.raises(ConfigError, match=r"option 'topic' = .*option allowControlCharacters"):
        SinkOptions.of({"topic": shown[0]})
    assert ledger.values == {}
    write(ledger, rows, allowControlCharacters="true")
    assert ledger.values == {"a\udcff\n": [b"1"], "b": [b"2", b"3"]}
    write(ledger, batch(value=[b"4"]), topic=shown[0], allowControlCharacters="true")
    assert ledger.values["a\udcff\n"] == [b"1", b"4"]


def test_too_many_topics_for_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_TOPICS", 2)
    with pytest.raises(ColumnError, match=r"more than 2 topics"):
        write(Ledger(), batch(value=[b""] * 3, topic=["a", "b", "c"]))


def test_what_is_not_acknowledged_fails_the_task() -> None:
    ledger = Ledger(failing="b")
    with pytest.raises(NotAcknowledgedError):
        write(ledger, batch(value=[b"1", b"2"], topic=["a", "b"]))
    assert sorted(ledger.closed) == ["a", "b"]


def test_addresses_are_stable() -> None:
    """Fixed for ever: a query that is started again must find its partitions."""
    assert partition_address("q", "t", 0) == "78311E34E56156E997FD5DB47EE34405"
    names = {
        partition_address(*parts)
        for parts in [("q", "t", 0), ("q", "t", 1), ("q", "u", 0), ("r", "t", 0)]
    }
    assert len(names) == 4
    assert partition_address("q", "t\udcff", 0) == "1CE8CBA646BE5D169F06BB5B428B7D02"
    assert all(len(name) == 32 and name == name.upper() for name in names)


def test_addresses_of_a_key_begin_with_it_and_last() -> None:
    owner = Permissions("etl", frozenset({"produce"}), prefix="A" * 12)
    application = Application("app", 1, "t", owner)
    made = {application.address(topic, task) for topic in "tuv" for task in range(300)}
    assert len(made) == 900
    (shared,) = {each[:22] for each in made}
    assert shared[:12] == owner.prefix
    other = Application("another", 1, "t", owner).address("t", 0)
    assert owner.owns(other)
    assert other[:22] != shared
    # Those from before the key go on as they were, where they are listed.
    plain = Application("app", 1, "t").address("t", 0)
    heir = Permissions(
        "heir", frozenset({"produce"}), addresses=(f"{plain[:16]}*",), prefix="B" * 12
    )
    assert Application("app", 1, "t", heir).address("t", 0) == plain
    assert own_address(owner, "q", "t", 0) == "A" * 12 + partition_address("q", "t", 0)[12:]


def options(**given: str) -> SinkOptions:
    return SinkOptions.of({"topic": "t", **given})


@pytest.mark.parametrize(
    ("kind", "given", "why"),
    [
        (parse_ddl("id INT"), {}, r"is struct<id:int>, must be binary or string; name a format"),
        (types.BinaryType(), {"valueformat": "string"}, "must be string with valueFormat = string"),
        (types.StringType(), {"valueformat": "json"}, "is string, a JSON object is made of a stru"),
        (
            parse_ddl("id INT"),
            {"valueformat": "arrow", "valueschema": "id INT"},
            "is struct<id:int>",
        ),
        (
            parse_ddl("id INT"),
            {"valueformat": "avro"},
            "an Avro schema: name it with option valueS",
        ),
        (types.StringType(), {"valueformat": "arrow"}, "is string; a stream is made of a list"),
        (parse_ddl("b BINARY"), {"valueformat": "json"}, "no form in JSON"),
        (
            parse_ddl("id INT"),
            {"valueformat": "json", "valueschema": "id BIGINT"},
            r"is struct<id:int>, and option valueSchema says struct<id:bigint>",
        ),
    ],
)
def test_columns_are_checked_before_a_query_starts(
    kind: types.DataType, given: dict[str, str], why: str
) -> None:
    schema = types.StructType([types.StructField("VALUE", kind)])
    with pytest.raises(ColumnError, match=why):
        check_columns(schema, options(**given))


def test_structs_are_written() -> None:
    kind = parse_ddl("id BIGINT, name STRING")
    chosen = options(valueformat="json", valueschema="id BIGINT, name STRING")
    rows = [{"id": 1, "name": "a"}, None, {"id": None, "name": None}]
    arrow = pa.struct([("id", pa.int64()), ("name", pa.utf8())])
    keys = pa.array([b"k", b"gone", None])
    batch = pa.RecordBatch.from_arrays([keys, pa.array(rows, arrow)], ["key", "Value"])
    for each in chosen, options(valueformat="json"):
        (written,) = encoded(iter([batch]), row_codec(kind, each))
        assert written.schema.names == ["key", "Value"]
        assert written.column(1).to_pylist() == ['{"id":1,"name":"a"}', None, "{}"]
        assert written.column(0).equals(keys)
        ((topic, contents),) = by_topic(written, each)
        assert (topic, len(contents), contents.null_count) == ("t", 3, 0)
    plain = pa.RecordBatch.from_arrays([pa.array(["x"])], ["value"])
    for form in "bytes", "string":
        codec = row_codec(types.StringType(), options(valueformat=form))
        assert list(encoded(iter([plain]), codec)) == [plain]

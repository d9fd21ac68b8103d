"""A task's rows: their columns are checked, encoded, split by topic and collected to blocks."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core.errors import ConfigError, NotAcknowledgedError
from dafka_core.model.envelope import closed
from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_core.model.records import TopicPartition
from dafka_core.model.values import Values
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import ColumnError
from dafka_spark.options import SinkOptions
from dafka_spark.schema import full, parse_ddl
from dafka_spark.sink import rows, staging
from dafka_spark.sink.rows import by_topic, check_columns, row_codec, write_rows
from dafka_spark.sink.staging import RowBuffer, WrittenRange

PIECES = st.lists(st.lists(st.binary(max_size=9), max_size=7), max_size=9)
HEADERS = full(headers=True)["headers"]


class Ledger:
    """Writers in memory; each partition has 40 rows before."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.values: dict[str, list[bytes]] = {}
        self.closed: list[str] = []

    @contextlib.contextmanager
    def open(self, tp: TopicPartition) -> Iterator[Any]:
        values = self.values.setdefault(tp.topic, [])

        def finish(deadline: Deadline) -> WrittenRange:
            if tp.topic == self.failing:
                raise NotAcknowledgedError(*tp, 1, deadline.timeout_s)
            return WrittenRange(tp, 40, 40 + len(values))

        def write(contents: pa.Array) -> None:
            values.extend(Values.from_arrow(contents))

        try:
            yield SimpleNamespace(write=write, finish=finish)
        finally:
            self.closed.append(tp.topic)


def batch(**columns: Any) -> Any:
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def options(**given: Any) -> SinkOptions:
    return SinkOptions.of({"topic": "t", **given})


def write(ledger: Ledger, *batches: Any, **given: Any) -> Any:
    opened: Any = ledger.open
    return write_rows(iter(batches), SinkOptions.of(given), "@{}".format, opened)


def values_of(*batches: Any, **given: Any) -> dict[str, list[bytes]]:
    ledger = Ledger()
    write(ledger, *batches, **given)
    return ledger.values


# -- columns ---------------------------------------------------------------------------------------


TYPED = {"valueformat": "json", "valueschema": "id BIGINT"}


@pytest.mark.parametrize(
    ("columns", "given", "why"),
    [
        ("value INT", {}, "'value': is int, must be binary or string"),
        ("topic STRING", {}, "'value': is missing"),
        ("value STRING, topic INT", {}, "'topic': is int, must be string"),
        ("value STRING, key INT", {}, "'key': is int, must be binary or string"),
        ("value STRING, headers STRING", {}, "must be array<struct<key:string,value:binary>>"),
        ("value STRING, partition INT", {}, "'partition': cannot be chosen: each task writes"),
        ("value STRING, offset BIGINT", {}, "'offset': cannot be written: a record is a 'value'"),
        ("value STRING, tpoic STRING", {}, "'tpoic': cannot be written: .*; did you mean 'topic'"),
        ("value STRING, key STRING", {"envelope": "none"}, "'key': .*option envelope = none"),
        ("VALUE STRUCT<id INT>", {}, "is struct<id:int>, must be binary or string; name a format"),
        ("value BINARY", {"valueformat": "string"}, "must be string with valueFormat = string"),
        ("value STRING", {"valueformat": "json"}, "is string, a JSON object is made of a struct"),
        ("value STRING", {"valueformat": "arrow"}, "is string; a stream is made of a list"),
        ("value STRUCT<id INT>", {"valueformat": "arrow"}, "is struct<id:int>, must be array<str"),
        ("value STRUCT<id INT>", {"valueformat": "avro"}, "an Avro schema: name it with option v"),
        ("value STRUCT<b BINARY>", {"valueformat": "json"}, "no form in JSON"),
        ("value STRUCT<id INT>", TYPED, "is struct<id:int>, and option valueSchema is struct<id:b"),
    ],
)
def test_columns_that_cannot_be_written(columns: str, given: Any, why: str) -> None:
    with pytest.raises(ColumnError, match=why):
        check_columns(parse_ddl(columns), options(**given))


def test_columns_match_in_any_case() -> None:
    text = StructField("KEY", StringType(), nullable=False)
    schema = StructType([text, full()["value"], full()["topic"], HEADERS])
    check_columns(schema, SinkOptions.of({}))
    with pytest.raises(ColumnError, match=r"'value': exists more than once, in this or another"):
        check_columns(StructType([full()["value"], StructField("VALUE", StringType())]), options())
    with pytest.raises(ConfigError, match=r"each row's with a column 'topic'"):
        check_columns(StructType([full()["value"]]), SinkOptions.of({}))


def test_structs_are_encoded() -> None:
    kind = parse_ddl("id BIGINT, name STRING")
    structs = [{"id": 1, "name": "a"}, None, {"id": None, "name": None}]
    arrow = pa.struct([("id", pa.int64()), ("name", pa.utf8())])
    given = batch(key=[b"k", b"gone", None], Value=pa.array(structs, arrow))
    named = options(valueformat="json", valueschema="id BIGINT, name STRING")
    values = [closed(b'{"id":1,"name":"a"}', b"k"), closed(None, b"gone"), b"{}"]
    for each in named, options(valueformat="json"):
        ((topic, contents),) = by_topic(given, each, row_codec(kind, each))
        assert (topic, contents.to_pylist()) == ("t", values)
    for form in "bytes", "string":
        assert row_codec(types.StringType(), options(valueformat=form)) is None


# -- contents and topics ---------------------------------------------------------------------------


KINDS = [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()]


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_bytes(kind: pa.DataType) -> None:
    ledger = Ledger()
    written = write(ledger, batch(value=pa.array(["é", ""]).cast(kind), topic=["u"] * 2), topic="t")
    assert ledger.values == {"t": ["é".encode(), b""]}  # the option overrides the column
    assert written == (WrittenRange(TopicPartition("t", "@t"), 40, 42),)


def test_rows_go_to_their_topics_in_order() -> None:
    batches = [
        batch(value=[b"1", b"2", b"3"], topic=["a", "b", "a"]),
        batch(value=[b"4"], topic=["a"]),
    ]
    ledger, failing = Ledger(), Ledger(failing="b")
    written = write(ledger, *batches)
    assert ledger.values == {"a": [b"1", b"3", b"4"], "b": [b"2"]}
    assert written[0] == WrittenRange(TopicPartition("a", "@a"), 40, 43)
    with pytest.raises(NotAcknowledgedError):
        write(failing, *batches)
    assert sorted(ledger.closed) == sorted(failing.closed) == ["a", "b"]


@pytest.mark.parametrize("given", [{"topic": "t"}, {}])
def test_only_option_topic_is_opened_without_rows(given: Any) -> None:
    empty = batch(value=pa.array([], pa.binary()), topic=pa.array([], pa.string()))
    for batches in ([], [empty]):
        ledger = Ledger()
        assert write(ledger, *batches, **given) == ()
        assert [*ledger.values] == ledger.closed == list(given.values())


@pytest.mark.parametrize(
    ("columns", "given", "why"),
    [
        ({"headers": [[], [{"key": None, "value": b"x"}]]}, {}, "'headers': a header's name is n"),
        ({"topic": ["a", None]}, {}, "'topic': 1 of 2 rows are null"),
        ({"topic": ["a", ""]}, {}, "'topic': '': a topic must have 1 to 255"),
        ({"topic": ["a", "x" * 256]}, {}, "1 to 255 bytes"),
        (
            {"value": [b"1", None], "topic": ["a", "a"]},
            {"envelope": "none"},
            "'value': 1 of 2 rows are null; .*option envelope",
        ),
    ],
)
def test_a_batch_with_an_invalid_row_is_not_written(columns: Any, given: Any, why: str) -> None:
    ledger = Ledger()
    with pytest.raises(ColumnError, match=why):
        write(ledger, batch(**{"value": [b"1", b"2"], "topic": ["a", "b"], **columns}), **given)
    assert not any(ledger.values.values())


def test_keys_headers_and_nulls_are_put_into_envelopes() -> None:
    headers = pa.array([None, [], None, [("h", None)]], HEADERS_TYPE)
    given = batch(value=["1", "2", None, "4"], key=[None, "k", None, None], topic=list("abab"))
    assert values_of(given.append_column("HEADERS", headers)) == {
        "a": [b"1", closed(None)],
        "b": [closed(b"2", b"k"), closed(b"4", None, [("h", None)])],
    }
    # A value with the bytes of an envelope gets an envelope of its own.
    value = closed(b"v", b"k")
    assert values_of(batch(value=[value]), topic="t") == {"t": [closed(value)]}
    assert values_of(batch(value=[value]), topic="t", envelope="none") == {"t": [value]}


def test_other_columns_of_a_table_must_be_null() -> None:
    table = full({"subscribe": "t"}, headers=True)
    made = to_arrow_schema(table, timezone="UTC")
    nulls: dict[str, Any] = {
        name: pa.nulls(1, kind) for name, kind in zip(made.names, made.types, strict=True)
    }
    given = {**nulls, "value": [b"v"], "key": [b"k"]}
    check_columns(table, options(envelope="none"))
    assert values_of(batch(**given), topic="t") == {"t": [closed(b"v", b"k")]}
    with pytest.raises(ColumnError, match=r"'key': cannot be written with option envelope"):
        values_of(batch(**given), topic="t", envelope="none")
    with pytest.raises(ColumnError, match=r"'timestamptype': cannot be written"):
        values_of(batch(**{**given, "timestampType": [1]}), topic="t")
    with pytest.raises(ColumnError, match=r"'topic': is 'u', and the table is written to topic"):
        values_of(batch(**{**given, "topic": ["u"]}), topic="t")


def test_odd_topics_are_written_when_they_are_allowed() -> None:
    shown = [r"a\xff\x0a", "b", r"\x62"]
    given = batch(value=[b"1", b"2", b"3"], topic=shown)
    why = r"column 'topic': 'a\\xff\\x0a': has control.*option allowControlCharacters"
    with pytest.raises(ColumnError, match=why):
        values_of(given)
    allowed = {"allowControlCharacters": "true"}
    assert values_of(given, **allowed) == {"a\udcff\n": [b"1"], "b": [b"2", b"3"]}
    assert values_of(batch(value=[b"4"]), topic=shown[0], **allowed) == {"a\udcff\n": [b"4"]}


def test_too_many_topics_for_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_TOPICS", 2)
    with pytest.raises(ColumnError, match=r"more than 2 topics"):
        write(Ledger(), batch(value=[b""] * 3, topic=["a", "b", "c"]))


# -- blocks ----------------------------------------------------------------------------------------


@for_all(PIECES, st.integers(1, 9), st.integers(1, 60))
def test_blocks_have_all_values_and_are_sent_when_they_are_full(
    pieces: list[list[bytes]], max_rows: int, max_bytes: int
) -> None:
    buffer = RowBuffer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "BLOCK_ROWS", max_rows)
        patch.setattr(staging, "BLOCK_BYTES", max_bytes)
        arrays = [pa.array(values, pa.binary()) for values in pieces]
        filled = [block.to_pylist() for array in arrays for block in buffer.add(array)]
        rest = [block.to_pylist() for block in buffer.rest()]
        assert list(buffer.rest()) == []
    expected = [value for values in pieces for value in values]
    assert [value for block in filled + rest for value in block] == expected
    assert all(0 < len(block) <= max_rows for block in filled + rest)
    for block in filled:  # a value takes 4 to 8 bytes beside its own
        assert len(block) == max_rows or sum(map(len, block)) + 8 * len(block) >= max_bytes
    for block in rest:
        assert len(block) < max_rows
        assert sum(map(len, block)) + 4 * len(block) < max_bytes


def test_a_block_may_have_values_of_any_kind() -> None:
    buffer = RowBuffer()
    for kind in KINDS:
        assert list(buffer.add(pa.array(["é", ""]).cast(kind))) == []
    (block,) = buffer.rest()
    assert block.type == pa.binary()
    assert block.to_pylist() == ["é".encode(), b""] * len(KINDS)

"""The pipeline as plain functions of frames."""

import json
import signal
from datetime import datetime
from pathlib import Path

import pytest
from chispa import assert_df_equality
from demo import flight_delays
from demo.flight_delays import (
    RESULT_SCHEMA,
    delays,
    from_records,
    latest_results,
    parse_flights,
    to_records,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dafka_core import EmbeddedCluster
from tests.spark.jobs.programs import FLIGHTS, read_topic


def _records(session: SparkSession, *values: bytes) -> DataFrame:
    return session.createDataFrame([(bytearray(value),) for value in values], "value binary")


def _flight(scheduled: str, delay: int | None, origin: str = "JFK", carrier: str = "AA") -> bytes:
    facts = {"scheduled": scheduled, "origin": origin, "carrier": carrier, "dep_delay_min": delay}
    return json.dumps(facts).encode()


def _results(session: SparkSession, *rows: tuple[object, ...]) -> DataFrame:
    return session.createDataFrame(list(rows), RESULT_SCHEMA)


_DAY = (datetime(2013, 1, 1), datetime(2013, 1, 2))  # noqa: DTZ001 -- as Spark's rows have them


def test_values_that_are_no_flights_are_not_counted(session: SparkSession) -> None:
    good = _flight("2013-01-01T05:15:00", 3)
    parsed = parse_flights(_records(session, b"\xff\x00", b"", b"[1]", b'{"origin": 7}', good))
    assert parsed.where("scheduled is null").count() == 4
    assert [row.flights for row in delays(parsed).collect()] == [1]


def test_delays_are_counted_per_window_origin_and_carrier(session: SparkSession) -> None:
    flights = (
        _flight("2013-01-01T05:00:00", 10),
        _flight("2013-01-01T23:59:00", 15),
        _flight("2013-01-01T12:00:00", None),
        _flight("2013-01-02T00:00:00", -5),
        _flight("2013-01-01T12:00:00", None, origin="LGA"),
    )
    columns = ["origin", "carrier", "flights", "cancelled", "delayed", "mean_delay_min"]
    day = sf.date_format("window_start", "dd").alias("day")
    found = delays(parse_flights(_records(session, *flights)))
    assert {tuple(row) for row in found.select(day, *columns, "max_delay_min").collect()} == {
        ("01", "JFK", "AA", 3, 1, 1, 12.5, 15),
        ("02", "JFK", "AA", 1, 0, 0, -5.0, -5),
        ("01", "LGA", "AA", 1, 1, 0, None, None),
    }


def test_the_checksum_changes_with_any_value_and_not_with_order(session: SparkSession) -> None:
    values = [_flight(f"2013-01-01T0{hour}:00:00", hour) for hour in range(4)]

    def checksum(*values: bytes) -> int:
        row = delays(parse_flights(_records(session, *values))).first()
        assert row is not None
        return int(row.checksum)

    assert checksum(*values) == checksum(*reversed(values))
    assert checksum(*values) != checksum(*values[1:])
    assert checksum(*values) != checksum(*values, values[0])
    assert checksum(*values) != checksum(*values[:3], values[3].replace(b"AA", b"AA "))


def test_the_last_batch_of_a_window_holds(session: SparkSession) -> None:
    old = (*_DAY, "JFK", "AA", 1, 0, 0, 1.0, 1, 17, 0)
    new = (*_DAY, "JFK", "AA", 2, 1, 0, 1.0, 1, 18, 10)
    other = (*_DAY, "LGA", "AA", 5, 5, 0, None, None, 19, 2)
    # A batch repeated after a crash has written its rows twice.
    found = latest_results(_results(session, new, old, other, new))
    assert_df_equality(
        found, _results(session, new, other), ignore_row_order=True, ignore_nullable=True
    )


def test_results_survive_the_way_through_a_topic(session: SparkSession) -> None:
    results = _results(
        session,
        (*_DAY, "JFK", "AA", 3, 1, 1, 1 / 3, 1301, -(2**63), 0),
        (*_DAY, "LGA", "9E", 1, 1, 0, None, None, 2**63 - 1, 7),
    )
    records = to_records(results)
    assert records.schema.simpleString() == "struct<value:binary>"
    assert_df_equality(from_records(records), results, ignore_nullable=True)


def test_a_topic_and_files_have_the_results_of_a_batch(
    session: SparkSession,
    cluster: EmbeddedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Several batches update the same windows; the demo of each night kills the query between."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    flight_delays.main(
        [
            *(f"--tower={cluster.tower}", "--topic=flights", "--to=delays", "--available-now"),
            *(f"--checkpoint={tmp_path / 'checkpoint'}", f"--output={tmp_path / 'delays'}"),
            f"--max-offsets-per-trigger={FLIGHTS // 3}",
        ]
    )
    batches = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(batches) >= 3
    assert sum(each["records"] for each in batches) == FLIGHTS
    assert sum(each["late"] + each["malformed"] for each in batches) == 0
    expected = delays(parse_flights(read_topic(session, cluster, "flights")))
    for results in (
        from_records(read_topic(session, cluster, "delays")),
        session.read.parquet(str(tmp_path / "delays")),
    ):
        found = latest_results(results).drop("batch")
        assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)

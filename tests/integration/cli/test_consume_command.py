"""``dafka consume`` by offset, time and partition, to the end, with a format and a pattern."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dafka_core import Producer
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.testing import StoreDouble
from tests.integration.cli.processes import PATIENCE_S, Dafka, refusal, run, succeed

A, B = "A" * 32, "B" * 32


@pytest.fixture(scope="module")
def middle(tower: str) -> str:
    """Topic ``two`` with partitions A (a0 to a9) and B (b0 to b4); a time between a4 and a5."""
    with Producer("two", address=A, tower=tower) as first:
        first.publish_many([b"a%d" % number for number in range(5)], keys=[b"k"] * 5)
        first.flush(PATIENCE_S)
        time.sleep(0.01)
        between = datetime.now(UTC).isoformat()
        time.sleep(0.01)
        first.publish_many([b"a%d" % number for number in range(5, 10)])
    with Producer("two", address=B, tower=tower) as second:
        second.publish_many([b"b%d" % number for number in range(5)])
    return between


def consumed(tower: str, *arguments: str) -> list[str]:
    done = succeed("consume", "two", "--tower", tower, *arguments)
    return done.stdout.decode().splitlines()


ALL_A = [f"a{number}" for number in range(10)]
KEYED = [f"{number}={'k' if number < 5 else ''}a{number}" for number in range(10)]
ALL_B = [f"b{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--exit-at-end"], ALL_A + ALL_B),
        (["--exit-at-end", "--offset", "earliest", "--count", "3"], ALL_A[:3]),
        (["--exit-at-end", "--offset", "-2"], [*ALL_A[-2:], *ALL_B[-2:]]),
        (["--exit-at-end", "--offset", "+3", "--partition", B], ALL_B[3:]),
        (["--exit-at-end", "--offset", "8"], ALL_A[8:]),
        (["--exit-at-end", "--offset", "latest"], []),
        (["--exit-at-end", "--grep", "^[ab][13]$"], ["a1", "a3", "b1", "b3"]),
        (["--exit-at-end", "--grep", "^[ab][13]$", "--count", "3"], ["a1", "a3", "b1"]),
        (["--exit-at-end", "--where", "key = 'k' AND offset > 2"], ["a3", "a4"]),
        (["--exit-at-end", "--where", "value LIKE '_1'", "--count", "1"], ["a1"]),
        (["--until", "1970-01-02"], []),
        (["--exit-at-end", "--partition", A, "--format", "%o=%k%v"], KEYED),
        (["--exit-at-end", "--since", "1h", "--partition", B], ALL_B),
    ],
)
def test_ranges_are_read_to_their_end(
    tower: str, middle: str, arguments: list[str], expected: list[str]
) -> None:
    assert consumed(tower, *arguments) == expected


def test_times_are_bounds(tower: str, middle: str) -> None:
    assert consumed(tower, "--exit-at-end", "--since", middle) == ALL_A[5:] + ALL_B
    assert consumed(tower, "--until", middle) == ALL_A[:5]
    shown = consumed(tower, "--until", middle, "--json", "--count", "1")
    assert json.loads(shown[0])["key"] == "k"


def test_what_comes_later_is_followed_from_an_offset_in_one_partition(
    tower: str, middle: str
) -> None:
    asked = ("consume", "two", "--tower", tower, "--offset", "-1", "--partition", B)
    with Dafka(*asked, "--format", "%p %v", "--count", "2") as consumer:
        assert consumer.out.next() == f"{B} b4".encode()
        with Producer("two", address=A, tower=tower) as first:
            first.publish(b"other")
        with Producer("two", address=B, tower=tower) as second:
            second.publish(b"later")
        assert consumer.out.next() == f"{B} later".encode()
        assert consumer.wait() == 0


def test_stores_are_asked_without_a_tower_where_they_are_named(tower: str, middle: str) -> None:
    from dafka_core import Reader

    with Reader(tower=tower) as reader:
        reader.wait_for_stores(timeout_s=PATIENCE_S)
        [uris] = reader.endpoints().values()
    uri = next(each for each in uris if each.startswith("grpc://"))
    done = run("consume", "two", "--stores", uri, "--until", middle)
    assert done.stdout.decode().split() == ALL_A[:5]
    assert "new records need a tower" in refusal(2, "consume", "two", "--stores", uri)


def test_a_store_without_flight_is_read_over_the_mesh(lone_tower: str, tmp_path: object) -> None:
    at = ("--tower", lone_tower)
    with Dafka("store", "--dir", str(tmp_path), *at, "--flight-port", "off") as store:
        store.ready()
        succeed("produce", "meshed", *at, given=b"1\n2\n3\n")
        asked = ("consume", "meshed", *at, "--exit-at-end")
        assert run(*asked, "--offset", "1").stdout == b"2\n3\n"
        assert run(*asked, "--since", "1h", "--grep", "2").stdout == b"2\n"
        [stamp, *_] = run(*asked, "--format", "%T").stdout.split()
        assert abs(int(stamp) / 1_000 - time.time()) < 300


def test_an_offset_that_is_given_up_or_to_come_is_told(tmp_path: Path) -> None:
    with StoreDouble(tmp_path / "store", "1" * 32) as store:
        tp = TopicPartition("t", A)
        store.log.append([RecordBatch.of(tp, 0, [b"%d" % number for number in range(10)])])
        store.log.trim(tp, 8)
        at = ("--stores", store.location.locations[0])
        said = f"topic 't', partition {A} begins at 8: no store has offsets 5 to 8 (exclusive)"
        early = run("consume", "t", "--exit-at-end", "--offset", "5", *at)
        assert (early.stdout, early.stderr.decode()) == (b"8\n9\n", f"{said}\n")
        for offset in ("11", "+3"):
            late = run("consume", "t", "--exit-at-end", "--offset", offset, *at)
            assert (late.returncode, late.stdout) == (0, b"")
            assert b"ends at 10, before offset 11" in late.stderr
        copied = tmp_path / "t.jsonl"
        refused = refusal(1, "copy", "t", str(copied), "--offset", "5", *at)
        assert refused == f"{said}; --offset earliest copies all records that exist"
        assert not copied.exists()
        succeed("copy", "t", str(copied), "--offset", "8", *at)


def test_a_partition_that_is_not_there_is_an_error(tower: str, middle: str) -> None:
    missing = ("two", "--exit-at-end", "--partition", B[:-1], "--tower", tower)
    assert f"(did you mean '{B}'?)" in refusal(1, "consume", *missing)

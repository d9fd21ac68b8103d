"""``dafka copy``: topics, clusters and files."""

import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dafka_core import Producer
from dafka_core.cli.consume_command import Selection, open_stored_records
from dafka_core.cli.copy_command import _Mirror
from dafka_core.cli.store_clients import StoreFinder
from tests.integration.cli.processes import ANY_PORTS, PATIENCE_S, Dafka, refusal, run, succeed

A, B = "A" * 32, "B" * 32


@pytest.fixture(scope="module")
def source(tower: str) -> str:
    """Topic ``source``: keys, headers, a null value and bytes, in two partitions."""
    with Producer("source", address=A, tower=tower) as producer:
        producer.publish(b"one", b"k", [("h", b"1"), ("n", None)])
        producer.publish(None, b"gone")
        producer.flush(PATIENCE_S)
        producer.publish(b"\xff,\n")
    with Producer("source", address=B, tower=tower) as producer:
        producer.publish_many([b"%d" % number for number in range(5_000)])
    return tower


def shown(tower: str, topic: str, *without: str) -> list[dict[str, object]]:
    done = succeed("consume", topic, "--tower", tower, "--exit-at-end", "--json")
    rows = map(json.loads, done.stdout.splitlines())
    left = {"topic", *without}
    return [{name: each[name] for name in each if name not in left} for each in rows]


def copied(tower: str, *arguments: str) -> str:
    done = succeed("copy", *arguments, "--tower", tower, "--json")
    said = done.stderr.decode().splitlines()[-1]
    assert json.loads(done.stdout) == {"records": int(said.split()[0])}
    return said


def by_value(rows: list[dict[str, object]]) -> list[str]:
    return sorted(json.dumps(each, sort_keys=True) for each in rows)


def test_a_topic_is_copied_with_all_that_records_have(source: str) -> None:
    assert copied(source, "source", "target") == "5003 records copied to topic 'target'"
    rows = by_value(shown(source, "target", "partition"))
    assert rows == by_value(shown(source, "source", "partition"))
    copied(source, "source", "some", "--partition", B, "--offset", "-10")
    assert len(shown(source, "some")) == 10


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_file_and_back(source: str, tmp_path: Path, suffix: str) -> None:
    path = str(tmp_path / f"x.{suffix}")
    assert copied(source, "source", path) == f"5003 records copied to {path}"
    assert [each.name for each in tmp_path.iterdir()] == [f"x.{suffix}"]
    back = f"back-{suffix}"
    assert copied(source, path, back) == f"5003 records copied to topic '{back}'"
    left = ("partition", "offset", "timestamp")
    assert by_value(shown(source, back, *left)) == by_value(shown(source, "source", *left))
    refused = refusal(2, "copy", "source", path, "--tower", source)
    assert "already exists: choose another name, or add --overwrite" in refused
    copied(source, "source", path, "--overwrite")


def test_csv_has_keys_and_values(source: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    copied(source, "source", str(path), "--partition", A)
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[0] == b"topic,partition,offset,timestamp,key,value\n"
    assert lines[1].startswith(f"source,{A},0,20".encode())
    assert lines[1].endswith(b",k,one\n")
    assert b"".join(lines[3:]).endswith(b',,"\xff,\n"\n')
    copied(source, str(path), "rows")
    rows = shown(source, "rows", "partition", "timestamp")
    assert rows[0] == {"offset": 0, "key": "k", "value": "one"}
    assert rows[2]["value_base64"] == "/ywK"


def test_another_cluster_is_mirrored_and_gone_on_with(source: str, tmp_path: Path) -> None:
    with Dafka("up", "--dir", str(tmp_path), *ANY_PORTS) as other:
        there = other.ready()["tower"]
        mirror = ("source", "source", "--to-tower", there)
        assert copied(source, *mirror, "--resume") == "5003 records copied to topic 'source'"
        assert copied(source, *mirror, "--resume") == "0 records copied to topic 'source'"
        assert shown(there, "source") == shown(source, "source")
        with Dafka("copy", *mirror, "--follow", "--tower", source) as following:
            run("produce", "source", "--tower", source, "--address", A, given=b"later\n")
            waiting = ("consume", "source", "--tower", there, "--offset", "3", "--count", "1")
            assert run(*waiting, "--partition", A).stdout == b"later\n"
            assert following.stop(signal.SIGINT) == 0
        run("produce", "source", "--tower", there, "--address", A, given=b"own\n")
        failed = refusal(1, "copy", *mirror, "--resume", "--tower", source)
        assert "and its copy at 5: another producer has written to" in failed


def test_a_topic_is_not_copied_to_itself_by_another_name_of_its_tower(source: str) -> None:
    there = source.replace("127.0.0.1", "localhost")
    before = run("heads", "source", "--tower", source).stdout
    refused = refusal(2, "copy", "source", "source", "--tower", source, "--to-tower", there)
    assert "for '--to-tower': leads to the same topic: store" in refused
    assert run("heads", "source", "--tower", source).stdout == before


def test_parquet_of_others_needs_a_column_value(tower: str, tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"value": ["a", "b"], "key": ["k", None]}), path)
    assert copied(tower, path, "others") == "2 records copied to topic 'others'"
    assert [(row.get("key"), row["value"]) for row in shown(tower, "others")] == [
        ("k", "a"),
        (None, "b"),
    ]
    for columns, says in (
        ([("valeu", ["a"])], "has no column value (did you mean 'valeu'?)"),
        ([("value", [1])], "its column value must be binary or string, and is int64"),
        ([("value", ["a"]), ("headers", ["b"])], "column headers must be a list of pairs"),
        ([("value", ["a"]), ("value", ["b"])], "has several columns value"),
    ):
        names, values = zip(*columns, strict=True)
        pq.write_table(pa.table([*map(pa.array, values)], names=names), path)
        assert says in refusal(2, "copy", path, "t", "--tower", tower)


@pytest.mark.parametrize("where", ["headers", "page"])
def test_of_a_damaged_parquet_file_the_records_before_are_copied(
    tower: str, tmp_path: Path, where: str
) -> None:
    path, count = tmp_path / "x.parquet", 50_000
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    last = [{"key": None, "value": b""}] if where == "headers" else []
    headers = pa.array([*([[]] * count), last], kind)
    table = pa.table({"value": ["v"] * (count + 1), "headers": headers})
    pq.write_table(table, path, row_group_size=count, use_dictionary=False)
    if where == "page":
        damaged = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
        with path.open("r+b") as file:
            file.seek(damaged)
            file.write(b"\xff" * 16)
    done = run("copy", str(path), where, "--tower", tower, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"records": count}
    said = done.stderr.decode().splitlines()[-1]
    assert said.startswith(f"dafka: file '{path}' cannot be read from record {count} on: ")
    assert len(run("consume", where, "--tower", tower, "--exit-at-end").stdout) == 2 * count


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_copy_of_a_file_that_a_signal_ends_does_not_look_complete(
    tower: str, tmp_path: Path, number: int
) -> None:
    path, topic = tmp_path / "x.csv", f"stopped-{number}"
    os.mkfifo(path)
    with Dafka("copy", str(path), topic, "--tower", tower) as copying:
        with path.open("wb", buffering=0) as file:
            file.write(b"value\none\n")
            first = run("consume", topic, "--tower", tower, "--from-beginning", "--count", "1")
            assert first.stdout == b"one\n"
            assert copying.stop(number) == 128 + number
        assert copying.err.rest()[-1] == f"1 records copied to topic '{topic}'".encode()


def test_a_copy_of_many_partitions_has_one_producer_at_a_time(source: str) -> None:
    wanted = Selection.of(None, None, None, (), ends=True)
    options = {"tower": source}
    with open_stored_records(StoreFinder("", PATIENCE_S, options)) as stored:
        mirror = _Mirror(stored, "source", "single", {**options, "envelope": "none"}, False)
        mirror.copy(wanted)
    assert mirror.producers == {}
    rows = by_value(shown(source, "single", "partition"))
    assert rows == by_value(shown(source, "source", "partition"))

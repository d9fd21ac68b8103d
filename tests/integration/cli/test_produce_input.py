"""``dafka produce`` from files, at a rate, as JSON and CSV."""

import json
import signal
import time
from pathlib import Path

from tests.integration.cli.processes import Dafka, run, succeed


def published(tower: str, topic: str, *arguments: str, given: bytes = b"") -> list[str]:
    succeed("produce", topic, *arguments, "--tower", tower, given=given)
    shown = run("consume", topic, "--tower", tower, "--exit-at-end", "--format", "%k=%v;%h")
    return shown.stdout.decode().splitlines()


def test_files_are_read_one_after_the_other(tower: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1\n2")  # the last line needs no newline
    second.write_bytes(b"k:3\n")
    files = (str(first), "-", str(second))
    found = published(tower, "files", *files, "--key-separator", ":", given=b"in\n")
    assert found == ["=1;", "=2;", "=in;", "k=3;"]
    whole = published(tower, "whole", str(first), str(second), "--input", "file", "--key", "w")
    assert "\n".join(whole) == "w=1\n2;\nw=k:3\n;"


def test_json_that_consume_prints_is_published_as_it_was(tower: str) -> None:
    at = ("--tower", tower)
    run("produce", "one", *at, "--key", "k", "--header", "n=1", given=b"a\n\xff\n")
    shown = run("consume", "one", *at, "--exit-at-end", "--json").stdout
    run("produce", "other", *at, "--input", "json", given=shown)
    again = run("consume", "other", *at, "--exit-at-end", "--json").stdout
    kept = [
        [
            {
                name: each[name]
                for name in each
                if name in ("key", "value", "value_base64", "headers")
            }
            for each in map(json.loads, text.splitlines())
        ]
        for text in (shown, again)
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2


def test_rows_of_csv(tower: str) -> None:
    csv = b'id,name\n7,"a\nb"\n'
    found = published(tower, "rows", "--input", "csv", "--key-column", "id", given=csv)
    assert found == ['7={"id": "7", "name": "a\\nb"};']


def test_a_rate_is_kept_and_ctrl_c_ends_it(tower: str) -> None:
    started_s = time.monotonic()
    assert len(published(tower, "slow", "--rate", "20", given=b"x\n" * 10)) == 10
    assert time.monotonic() - started_s >= 9 / 20
    with Dafka("produce", "slower", "--tower", tower, "--rate", "0.01") as producer:
        producer.input.write(b"1\n2\n3\n")
        producer.input.flush()
        consumed = run("consume", "slower", "--tower", tower, "--from-beginning", "--count", "1")
        assert consumed.stdout == b"1\n"
        assert producer.stop(signal.SIGINT) == 0
        said = producer.err.rest()
        assert b"2 records were read but are not published" in said
        assert said[-1] == b"1 records acknowledged"


def test_records_before_a_line_that_is_none_are_published(tower: str) -> None:
    given = b'{"value": "a"}\n{"key": "b"}\n{"value": "c"}\n'
    wanted = ("--tower", tower, "--input", "json", "--address", "A" * 32, "--json")
    failed = run("produce", "partly", *wanted, given=given)
    assert failed.returncode == 1
    told = {"topic": "partly", "partition": "A" * 32, "first_offset": 0, "records": 1}
    assert json.loads(failed.stdout) == told
    *_, done, said = failed.stderr.decode().splitlines()
    assert done == "1 records acknowledged"
    assert said.startswith("dafka: line 2 of the input is invalid: it has neither value nor")

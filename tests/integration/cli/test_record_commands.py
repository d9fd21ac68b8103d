"""``dafka produce``, ``consume`` and ``perf``."""

import contextlib
import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import termios
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import IO

import pytest

from dafka_core import Consumer, Producer
from dafka_core.cli import consume_command, output
from dafka_core.testing import wait_until
from tests.integration.cli.processes import (
    PATIENCE_S,
    Dafka,
    ended,
    listed,
    run,
    succeed,
)

VALUES = [b"a", b"", b"with \r", b"\xff\x00\xfe", "ünï".encode(), b"last"]
ADDRESS = "0123456789ABCDEF0123456789ABCDEF"
STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM]


def produce(topic: str, tower: str, values: list[bytes], *arguments: str) -> str:
    """Produce ``values`` until acknowledged; return the command's messages."""
    given = b"".join(value + b"\n" for value in values)
    process = succeed("produce", topic, "--tower", tower, *arguments, given=given)
    assert process.stdout == b""
    return process.stderr.decode()


def consume(topic: str, tower: str, count: int, *arguments: str) -> bytes:
    at = ("--tower", tower, "--from-beginning", "--count", str(count))
    return succeed("consume", topic, *at, *arguments).stdout


def unread_bytes(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.fixture(scope="module")
def full(tower: str) -> str:
    produce("full", tower, VALUES, "--address", ADDRESS)
    return "full"


def test_bytes_are_kept_as_they_are(tower: str, full: str) -> None:
    assert consume(full, tower, len(VALUES)) == b"\n".join(VALUES) + b"\n"
    assert consume(full, tower, 2) == b"a\n\n"  # the count ends in the middle of a batch


def test_a_last_line_needs_no_newline_and_no_input_is_no_record(tower: str) -> None:
    run("produce", "open-ended", "--tower", tower, given=b"1\n2")
    assert consume("open-ended", tower, 2) == b"1\n2\n"
    assert "0 records acknowledged" in produce("empty", tower, [])


def test_json_tells_where_each_record_is(tower: str, full: str) -> None:
    records = [*map(json.loads, consume(full, tower, len(VALUES), "--json").splitlines())]
    assert [record["offset"] for record in records] == list(range(len(VALUES)))
    assert {record["topic"] for record in records} == {full}
    assert {record["partition"] for record in records} == {ADDRESS}
    assert records[2]["value"] == "with \r"
    assert records[4]["value"] == "ünï"
    assert "value_base64" not in records[4]
    assert records[3]["value"] is None
    assert records[3]["value_base64"] == "/wD+"


def test_large_input_arrives_in_order(tower: str) -> None:
    values = [b"%06d" % number * 20 for number in range(30_000)]  # some chunks of input
    produce("large", tower, values)
    assert consume("large", tower, 30_000).splitlines() == values


def test_a_line_longer_than_a_chunk_of_input_is_one_record(tower: str) -> None:
    value = bytes(range(11, 256)) * 12_000
    produce("long", tower, [b"before", value, b"after"])
    assert consume("long", tower, 3) == b"before\n" + value + b"\nafter\n"


def test_an_address_resumes_its_partition(tower: str) -> None:
    address = ADDRESS[::-1]
    assert "from offset 0" in produce("resumed", tower, [b"1", b"2"], "--address", address)
    assert "from offset 2" in produce("resumed", tower, [b"3"], "--address", address)
    records = map(json.loads, consume("resumed", tower, 3, "--json").splitlines())
    assert [(r["partition"], r["offset"], r["value"]) for r in records] == [
        (address, 0, "1"),
        (address, 1, "2"),
        (address, 2, "3"),
    ]


def test_lines_are_published_as_they_come(tower: str) -> None:
    with Dafka("produce", "typed", "--tower", tower) as producer:
        producer.input.write(b"first\nunfinished")
        producer.input.flush()
        assert consume("typed", tower, 1) == b"first\n"
        # Ctrl-C ends the input; an unfinished line is dropped.
        assert producer.stop(signal.SIGINT) == 0
        assert producer.err.rest()[-1] == b"1 records acknowledged"


def test_without_from_beginning_only_new_records_come(tower: str) -> None:
    with Producer("news", tower=tower) as producer:
        producer.publish(b"old")
        producer.flush(PATIENCE_S)
        with Dafka("consume", "news", "--tower", tower) as consumer:
            line: bytes | None = None
            for number in range(1_000):
                producer.publish(b"new %d" % number)
                try:
                    line = consumer.out.next(0.1)
                    break
                except queue.Empty:
                    continue
            assert line is not None
            assert line.startswith(b"new ")


def test_a_topic_that_no_store_has_is_waited_for_and_said_once(tower: str, full: str) -> None:
    with Dafka("consume", "ful", "--tower", tower, "--from-beginning", "--count", "1") as consumer:
        assert consumer.err.next() == b"topic ful, from earliest"
        said = consumer.err.next()
        assert said == b"no store has topic 'ful' (did you mean 'full'?); waiting for it"
        produce("ful", tower, [b"here"])
        assert consumer.out.rest() == [b"here"]
        assert consumer.wait() == 0
        assert consumer.err.rest() == []


def test_a_store_is_waited_for_and_that_is_said(
    lone_tower: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_command, "LOOKUP_S", 0.2)
    said: list[str] = []
    monkeypatch.setattr(output, "info", said.append)
    with Consumer(tower=lone_tower) as consumer:
        saying = Thread(target=consume_command._warn_if_missing, args=(consumer, "t"))
        saying.start()
        wait_until(lambda: said)
    saying.join(PATIENCE_S)
    (line,) = said
    assert line.startswith(f"no store was heard of through {lone_tower} within 0.2 s; start one")
    assert line.endswith("; waiting for one")


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_consumer_stops_on_a_signal(tower: str, full: str, number: int) -> None:
    with Dafka("consume", full, "--tower", tower, "--from-beginning") as consumer:
        assert [consumer.out.next() for _ in VALUES] == VALUES
        assert consumer.stop(number) == 0
        assert consumer.out.rest() == []
        assert consumer.err.rest() == [b"topic full, from earliest"]


def test_a_reader_that_has_had_enough_is_no_error(tower: str) -> None:
    produce("piped", tower, [b"x" * 1_000] * 5_000)  # more than a pipe holds
    with Dafka("consume", "piped", "--tower", tower, "--from-beginning") as consumer:
        consumer.out.next()
        consumer.out.abandon()
        assert consumer.wait() == 0
        assert consumer.err.rest() == [b"topic piped, from earliest"]


def test_records_without_a_store_are_an_error(lone_tower: str) -> None:
    process = run(
        "produce", "t", "--tower", lone_tower, "--close-timeout-s", "0.2", given=b"1\n2\n"
    )
    assert process.returncode == 1
    last = process.stderr.decode().splitlines()[-1]
    assert "2 records are not acknowledged after 0.2 s" in last
    assert b"Traceback" not in process.stderr


def test_a_second_ctrl_c_says_what_is_not_acknowledged(lone_tower: str) -> None:
    with Dafka("produce", "t", "--tower", lone_tower) as producer:
        assert producer.err.next() is not None
        producer.input.write(b"1\n2\n")
        producer.input.flush()
        wait_until(lambda: unread_bytes(producer.input) == 0)
        producer.process.send_signal(signal.SIGINT)
        assert producer.err.next() == b"stopped reading; waiting for acknowledgements"
        assert producer.stop(signal.SIGINT) == 128 + signal.SIGINT
        (line,) = producer.err.rest()
        assert b"stopped after 0 of " in line


# Ctrl-C comes, so often, right after a call: before anything is done with what it has returned.
INTERRUPTED = """
import os, signal, sys, threading
from dafka_core import Producer
from dafka_core.cli import main

times, place = int(sys.argv[1]), sys.argv[2]
owner = {"read": os, "publish_many": Producer}[place]
call = getattr(owner, place)

def call_and_interrupt(*arguments):
    result = call(*arguments)
    if threading.current_thread() is threading.main_thread() and result != b"":
        setattr(owner, place, call)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
    return result

setattr(owner, place, call_and_interrupt)
main(sys.argv[3:])
"""


def interrupted(times: int, place: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """``dafka produce`` of three lines, after which there would be more."""
    script = ["-c", INTERRUPTED, str(times), place, "produce", *arguments]
    more, given = os.pipe()
    with os.fdopen(given, "wb", 0) as pipe, os.fdopen(more, "rb") as its_input:
        pipe.write(b"1\n2\n3\nunfinished")
        return ended([sys.executable, *script], stdin=its_input)


def test_ctrl_c_loses_no_line_that_was_read(tower: str) -> None:
    process = interrupted(1, "read", "read", "--tower", tower)
    assert process.returncode == 0, process.stderr
    assert process.stderr.splitlines()[-1] == b"3 records acknowledged"
    assert listed(run("heads", "read", "--tower", tower))[0][1:] == ["0", "3"]


def test_a_second_ctrl_c_interrupts_publishing(lone_tower: str) -> None:
    process = interrupted(2, "publish_many", "t", "--tower", lone_tower)
    assert process.returncode == 128 + signal.SIGINT, process.stderr
    assert b"stopped after 0 of 3 records were acknowledged" in process.stderr


def test_a_consumer_that_lacks_records_of_its_count_says_so_by_its_exit_code(
    tower: str, full: str
) -> None:
    at = ("--tower", tower, "--from-beginning", "--count", "100")
    with Dafka("consume", full, *at) as consumer:
        assert [consumer.out.next() for _ in VALUES] == VALUES
        assert consumer.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert consumer.err.rest() == [b"topic full, from earliest"]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stopped_before_the_acknowledgement_is_an_error(lone_tower: str, number: int) -> None:
    with Dafka("produce", "t", "--tower", lone_tower, "--head-interval-ms", "50") as producer:
        assert producer.err.next() is not None
        producer.input.write(b"1\n")
        producer.input.close()
        assert producer.err.next() == b"end of input; waiting for acknowledgements"
        assert producer.stop(number) == 128 + number
        (line,) = producer.err.rest()
        assert line.startswith(b"dafka: stopped after 0 of 1 records were acknowledged")


def test_a_line_beyond_the_limit_is_refused_and_those_before_it_are_stored(tower: str) -> None:
    process = run(
        *("produce", "limited", "--tower", tower, "--max-record-bytes", "4096"),
        given=b"1\n2\n" + b"x" * 4_097 + b"\n4\n",
    )
    assert process.returncode == 1
    lines = process.stderr.decode().splitlines()
    assert lines[-2] == "2 records acknowledged"
    assert lines[-1].startswith(
        "dafka: line 3 of the input is longer than 4096 bytes, the limit of this"
    )
    assert listed(run("heads", "limited", "--tower", tower))[0][1:] == ["0", "2"]


def test_input_without_an_end_of_line_is_refused(tower: str) -> None:
    with Dafka("produce", "endless", "--tower", tower, "--max-record-bytes", "4096") as producer:
        producer.input.write(b"1\n" + b"x" * 5_000)
        producer.input.flush()
        assert producer.wait() == 1
        assert producer.err.rest()[-1].startswith(b"dafka: line 2 of the input is longer")


LARGE_MB = 100  # above what every store takes, some 5 MB, and far above what is read ahead


def test_a_line_above_a_stores_limit_is_not_read_to_its_end(
    lone_tower: str, tmp_path: Path
) -> None:
    small = ("--max-record-bytes", "4096")
    at = ("--tower", lone_tower)
    with Dafka("store", "--dir", str(tmp_path), *at, *small) as store:
        address = store.ready()["address"]
        with Dafka("produce", "large", *at) as producer:
            producer.input.write(b"1\n2\n")
            producer.input.flush()
            # Acknowledged, so the store is known.
            wait_until(lambda: [each[2] for each in listed(run("heads", "large", *at))] == ["2"])
            with contextlib.suppress(BrokenPipeError):
                for _ in range(LARGE_MB):
                    producer.input.write(b"x" * 1_000_000)
                    producer.input.flush()
            assert producer.wait() == 1
            *_, done, refused = producer.err.rest()
            assert done == b"2 records acknowledged"
            assert refused.startswith(b"dafka: line 3 of the input is longer than ")
            assert b" bytes, the limit of store %s" % address.encode() in refused


def test_one_of_several_towers_is_enough(tower: str, full: str) -> None:
    consumed = run(
        *("consume", full, "--tower", "127.0.0.1:1:2", "--tower", tower),
        *("--from-beginning", "--count", "1"),
    )
    assert consumed.stdout == b"a\n"


def test_keys_and_headers(tower: str) -> None:
    headers = ["--header", "trace=ab=c", "--header", "trace=", "--header", "ünï=\udcff"]
    produce("keyed", tower, [b"first", b""], "--key", "k\udcff", *headers)
    produce("keyed", tower, [b"bare"])
    ask = ["consume", "keyed", "--tower", tower, "--from-beginning", "--count", "3"]
    shown = [json.loads(line) for line in run(*ask, "--json").stdout.splitlines()]
    keyed = [record for record in shown if "key" in record]
    assert [record["value"] for record in keyed] == ["first", ""]
    assert keyed[0]["key"] is None
    assert keyed[0]["key_base64"] == "a/8="
    assert keyed[0]["headers"] == [
        {"name": "trace", "value": "ab=c"},
        {"name": "trace", "value": ""},
        {"name": "ünï", "value": None, "value_base64": "/w=="},
    ]
    [bare] = [record for record in shown if "key" not in record]
    assert sorted(bare) == ["offset", "partition", "timestamp", "topic", "value"]
    assert datetime.now(UTC) - datetime.fromisoformat(bare["timestamp"]) < timedelta(minutes=5)
    assert set(run(*ask).stdout.splitlines()) == {b"first", b"", b"bare"}
    closed = run(*ask, "--envelope", "none").stdout.splitlines()
    assert sum(line.startswith(b"\xc1DFK\x01") for line in closed) == 2


def rows(*arguments: str) -> dict[str, dict[str, float]]:
    done = succeed("perf", *arguments, "--json")
    return {row.pop("what"): row for row in map(json.loads, done.stdout.splitlines())}


def test_records_are_timed_in_and_out(tower: str) -> None:
    at = ("--tower", tower)
    made = rows("produce", "perf", *at, "--count", "2500", "--size", "20", "--batch", "1000")
    assert {name: (row["records"], row["bytes"]) for name, row in made.items()} == {
        "published": (2_500, 50_000),
        "acknowledged": (2_500, 50_000),
    }
    assert made["published"]["seconds"] <= made["acknowledged"]["seconds"]
    for command, what in (("consume", "consumed"), ("store", "read")):
        [(name, row)] = rows(command, "perf", *at).items()
        assert (name, row["records"], row["bytes"]) == (what, 2_500, 50_000)
        assert row["records_per_s"] > 0


def test_a_topic_without_records_takes_no_time_to_read(tower: str) -> None:
    run("produce", "emptied", "--tower", tower, given=b"a\nb\n")
    succeed("trim", "emptied", "--tower", tower, "--before", "end", "--yes")
    for command in ("consume", "store"):
        [row] = rows(command, "emptied", "--tower", tower).values()
        assert (row["records"], row["bytes"]) == (0, 0)

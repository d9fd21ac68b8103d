"""Records as text."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.cli import consume_command
from dafka_core.model.envelope import closed
from dafka_core.model.records import UNKNOWN_US, RecordBatch, TopicPartition
from dafka_core.model.where import matched_by

VALUES = [b"a", closed(None, b"k", [("n", b"1"), ("m", None)]), b"", closed(b"\xff", None, [])]
TIMES = np.array([[2, 1_500_000], [1, UNKNOWN_US], [1, 2_000_000]], np.int64)
BATCH = RecordBatch(
    TopicPartition("t\n", "P"),
    7,
    RecordBatch.of(TopicPartition("t", "P"), 0, VALUES).values,
    times=TIMES,
)


def test_a_format_has_kcats_letters() -> None:
    text = consume_command.formatted(r"%t %p %o %T %k %v|%K %S %h %s%%\t\x41")
    assert text(BATCH).split(b"\tA") == [
        rb"t\x0a P 7 1500  a|-1 1  a%",
        rb"t\x0a P 8 1500 k |1 -1 n=1,m= %",
        rb"t\x0a P 9 -1  |-1 0  %",
        b"t\\x0a P 10 2000  \xff|-1 1  \xff%",
        b"",
    ]


def test_a_newline_is_added_unless_the_format_ends_in_an_escape() -> None:
    assert consume_command.formatted("%o")(BATCH) == b"7\n8\n9\n10\n"
    assert consume_command.formatted(r"%o\n")(BATCH) == b"7\n8\n9\n10\n"
    assert consume_command.formatted(r"%o\0")(BATCH) == b"7\x008\x009\x0010\x00"


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("%x", "%x is unknown; known are %t, %p"),
        ("%", "% is unknown; known are"),
        (r"\q", r"\q is unknown; known are \n"),
        ("\\", "is unknown; known are"),
    ],
)
def test_a_letter_that_is_none_is_refused(form: str, says: str) -> None:
    with pytest.raises(ValueError, match="is unknown; known are") as caught:
        consume_command.formatted(form)
    assert says in str(caught.value)


def test_json_and_lines_of_records_that_were_kept() -> None:
    some = matched_by(BATCH, pa.array([False, True, None, True]))
    assert consume_command.lines(some) == b"\n\xff\n"
    shown = [json.loads(line) for line in consume_command.json_lines(some).splitlines()]
    assert [each["offset"] for each in shown] == [8, 10]
    assert shown[0]["key"] == "k"
    assert shown[0]["timestamp"] == "1970-01-01T00:00:01.500000+00:00"
    assert shown[1]["value_base64"] == "/w=="
    [unknown] = consume_command.json_lines(BATCH.between(9, 10)).splitlines()
    assert sorted(json.loads(unknown)) == ["offset", "partition", "topic", "value"]

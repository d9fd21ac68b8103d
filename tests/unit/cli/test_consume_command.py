"""The store that a range is read from, and its failure; records as text."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.cli import consume_command
from dafka_core.cli.consume_command import Range, StoredRecords
from dafka_core.errors import DafkaError, DataLossError, NotAllowedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.envelope import closed
from dafka_core.model.records import UNKNOWN_US, PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.where import matched_by


class Store:
    """As a client of a store that has offsets ``start`` to ``end``, and breaks at one of them."""

    def __init__(
        self, start: int, end: int, breaks_at: int | None = None, error: DafkaError | None = None
    ) -> None:
        self.info = PartitionInfo("topic", "P", start, end)
        self.breaks_at = breaks_at
        self.error = error or StoreUnreachableError("S", "it is gone")

    def heads(self, topics: Any, **_: Any) -> list[PartitionInfo]:
        if self.breaks_at == -1:
            raise StoreUnreachableError("S", "it is gone")
        return [self.info] if topics is None or "topic" in topics else []

    def read(self, tp: TopicPartition, start: int, end: int, **_: Any) -> Iterator[RecordBatch]:
        for offset in range(start, end):
            if offset == self.breaks_at:
                raise self.error
            yield RecordBatch.of(tp, offset, [b"%d" % offset])

    def offset_for_times(self, times: Sequence[Any], **_: Any) -> list[int | None]:
        return [self.info.earliest + 1 for _ in times]


def stored(*stores: Store) -> StoredRecords:
    return StoredRecords(cast("list[StoreClient]", list(stores)), None, 1.0)


def offsets(found: StoredRecords) -> list[int]:
    [info] = found.of_topic("topic")
    return [each.offset for each in found.read(Range(info, info.earliest, info.end))]


def test_a_range_is_put_together_from_stores_that_have_parts_of_it() -> None:
    assert offsets(stored(Store(3, 6), Store(0, 4))) == [*range(6)]
    assert offsets(stored(Store(0, 4), Store(3, 6))) == [*range(6)]


def test_another_store_goes_on_where_one_has_failed() -> None:
    assert offsets(stored(Store(0, 6, breaks_at=2), Store(0, 5), Store(4, 6))) == [*range(6)]


def test_another_store_serves_a_key_that_one_does_not_admit() -> None:
    refused = NotAllowedError("client", "produce", "consume topic")
    assert offsets(stored(Store(0, 6, 0, refused), Store(0, 6))) == [*range(6)]
    with pytest.raises(DafkaError, match="and not consume topic"):
        offsets(stored(Store(0, 6, 0, refused)))


def test_records_that_nobody_can_give_are_an_error() -> None:
    with pytest.raises(StoreUnreachableError, match="it is gone"):
        offsets(stored(Store(0, 6, breaks_at=2)))
    with pytest.raises(DataLossError, match="no store has all records up to 9"):
        offsets(stored(Store(0, 3), Store(5, 9)))


def test_a_store_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert offsets(stored(Store(0, 2), Store(0, 9, breaks_at=-1))) == [0, 1]
    assert "records that only this store has are missing" in capsys.readouterr().err
    with pytest.raises(StoreUnreachableError):
        stored(Store(0, 9, breaks_at=-1)).partitions(None)


def test_what_is_misspelt_gets_the_nearest_name() -> None:
    with pytest.raises(DafkaError, match="did you mean 'topic'"):
        stored(Store(0, 2)).of_topic("topc")
    with pytest.raises(DafkaError, match="has no partition 'Q' \\(there are 'P'\\)"):
        stored(Store(0, 2)).of_topic("topic", ["Q"])


def test_an_offset_of_a_time_is_the_first_that_any_store_knows() -> None:
    found = stored(Store(3, 6), Store(0, 4))
    [info] = found.of_topic("topic")
    assert found.offsets_at([info], 5) == {info.tp: 1}


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

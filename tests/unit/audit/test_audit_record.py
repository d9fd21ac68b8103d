"""Records of what a query has written."""

import hashlib

import pytest

from dafka_core.audit import (
    AuditedRange,
    AuditRecord,
    chained,
    parsed_record,
    partition_of,
    previous_and_own,
)
from dafka_core.model.names import INTERNAL

RECORDS = [
    AuditRecord("q", number, 4, (AuditedRange("\udcff", "P", 0, 4, "4:0A"),)) for number in range(3)
]
CONTENTS = [each.packed() for each in RECORDS]


def test_a_record_is_json() -> None:
    assert CONTENTS[1] == (
        b'{"v": 1, "query": "q", "batch": 1, "rows": 4, "ranges": '
        b'[["\\udcff", "P", 0, 4, "4:0A"]], "source": "", "previous": ""}'
    )
    assert parsed_record(CONTENTS[1]) == RECORDS[1]


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b'{"v": 1}', CONTENTS[0][:-1]])
def test_what_is_none_is_none(content: bytes) -> None:
    assert parsed_record(content) is None


def test_a_record_names_the_one_before() -> None:
    assert chained(CONTENTS[0]) == hashlib.sha256(CONTENTS[0]).hexdigest()
    assert chained(b"") == ""


def test_a_batch_that_is_noted_again_follows_the_same_record() -> None:
    assert previous_and_own(CONTENTS[:2], 2) == (CONTENTS[1], None)
    assert previous_and_own(CONTENTS[1:], 2) == (CONTENTS[1], RECORDS[2])
    assert previous_and_own([], 0) == (b"", None)
    assert previous_and_own(CONTENTS[:1], 0) == (b"", RECORDS[0])
    assert previous_and_own([CONTENTS[0], b"none"], 1) == (b"none", None)


def test_each_query_has_a_partition_of_its_own() -> None:
    first, second = partition_of("a"), partition_of("b")
    assert first != second
    assert first.topic.startswith(INTERNAL)
    assert len(first.partition) == 32

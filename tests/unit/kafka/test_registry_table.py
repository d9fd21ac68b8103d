"""The partition registry: valid records apply, others are skipped."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.epochs import MAX_END, MAX_NUMBER, EpochId
from dafka_core.model.records import TopicPartition
from dafka_kafka import registry_table
from dafka_kafka.registry_table import (
    Lead,
    NumberedPartition,
    RegistryRecord,
    RegistryTable,
    assignment_records,
    committed_end,
    deletion_records,
    is_numbered,
    parse_record,
)


def row(name: str, *, hosted: bool = True) -> tuple[str, str, bool]:
    return (name, "GATEWAY", hosted)


def table(*records: RegistryRecord | None) -> RegistryTable:
    made = RegistryTable()
    for record in records:
        made.apply(record)
    return made


def names(of: RegistryTable, topic: str = "t") -> list[str]:
    return [each.address for each in of.partitions(topic)]


def test_numbers_go_on_where_the_topic_ends() -> None:
    found = table(
        RegistryRecord(topic="t", partitions=(row("A"), row("B", hosted=False))),
        RegistryRecord(topic="u", partitions=(row("A"),)),
        RegistryRecord(topic="t", first=2, partitions=(row("C"),)),
    )
    assert found.partitions("t") == (
        NumberedPartition("t", 0, "A", "GATEWAY"),
        NumberedPartition("t", 1, "B", "GATEWAY", hosted=False),
        NumberedPartition("t", 2, "C", "GATEWAY"),
    )
    assert (list(found.topics), len(found), found.applied) == (["t", "u"], 4, 3)
    assert (found.number(TopicPartition("t", "C")), found.number(TopicPartition("u", "C"))) == (
        2,
        None,
    )
    assert found.get("t", 1) == found.partitions("t")[1]
    assert found.get("t", 3) is found.get("t", -1) is found.get("x", 0) is None


def test_what_does_not_fit_is_counted_and_passed_over() -> None:
    begun = RegistryRecord(topic="t", partitions=(row("A"),))
    for wrong in (
        None,
        begun,
        RegistryRecord(topic="t", first=1, partitions=(row("A"),)),
        RegistryRecord(topic="t", first=2, partitions=(row("B"),)),
        RegistryRecord(topic="__dafka.own", partitions=(row("B"),)),
        RegistryRecord(topic="two\nlines", partitions=(row("B"),)),
        RegistryRecord(topic="t" * 300, partitions=(row("B"),)),
        RegistryRecord(topic="u", partitions=(("B", "", True),)),
        RegistryRecord(topic="u", partitions=(("", "G", True),)),
        RegistryRecord(topic="u", partitions=(("B", "ü", True),)),
    ):
        found = table(begun, wrong)
        assert (names(found), list(found.topics), found.skipped) == (["A"], ["t"], 1)


def test_a_topic_that_is_deleted_has_no_numbers_and_may_begin_anew() -> None:
    rows = (row("A", hosted=False), row("B"))
    begun = RegistryRecord(topic="t", partitions=rows)
    other = RegistryRecord(topic="u", partitions=(row("A"),))
    found = table(begun, other, *deletion_records("t", {"A": 7, "B": 0}))
    assert (names(found), list(found.topics), len(found)) == ([], ["u"], 1)
    tp = TopicPartition("t", "A")
    assert (
        found.number(tp),
        found.deleted_end(tp),
        found.deleted_end(TopicPartition("u", "A")),
    ) == (None, 7, 0)
    # Records in a partition that a gateway hosted belong to the deleted topic.
    assert found.deleted_end(TopicPartition("t", "B")) == MAX_END
    for record in (*deletion_records("t", {"A": 3}), begun):
        found.apply(record)
    assert (names(found), found.deleted_end(tp), found.skipped) == (["A", "B"], 7, 0)


def test_configs_of_a_topic_are_replaced_and_deleted_with_it() -> None:
    made, configs = RegistryRecord(topic="t", partitions=(row("A"),)), {"max.message.bytes": 5}
    found = table(RegistryRecord(topic="t", configs=configs), made)
    assert found.configs("t") == {}
    for record, expected in (
        (RegistryRecord(topic="t", configs=configs), configs),
        (RegistryRecord(topic="t", configs={"min.insync.replicas": 2}), {"min.insync.replicas": 2}),
        (RegistryRecord(topic="t", first=1, partitions=(row("B"),)), {"min.insync.replicas": 2}),
        (RegistryRecord(topic="t", deleted=(("A", 0), ("B", 0))), {}),
        (made, {}),
    ):
        found.apply(record)
        assert found.configs("t") == expected
    assert parse_record(RegistryRecord(topic="t", configs={"a": -1}).packed()) is None


def test_part_of_a_record_may_fit() -> None:
    record = RegistryRecord(topic="t", partitions=(row("A"), row("A"), row("B")))
    found = table(record)
    # B claims number 2, and number 1 does not exist.
    assert (names(found), found.skipped) == (["A"], 2)


def test_there_are_not_more_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_table, "MAX_PARTITIONS", 1_500)
    rows = tuple(row(f"P{number}") for number in range(registry_table.MAX_PARTITIONS + 1))
    found = table(
        *assignment_records("t", [NumberedPartition("t", n, *r) for n, r in enumerate(rows)])
    )
    assert (len(found), found.skipped) == (registry_table.MAX_PARTITIONS, 1)


def test_the_first_turn_gives_the_cluster_its_id() -> None:
    found = table(
        None, RegistryRecord(committed=1), RegistryRecord(lease="AB"), RegistryRecord(lease="C")
    )
    assert found.cluster_id == "AB"


def test_nobody_knows_what_is_agreed_on_later() -> None:
    assert committed_end(RegistryRecord(committed=5), 5) == 5
    assert committed_end(RegistryRecord(committed=6), 5) == 0
    assert committed_end(None, 5) == 0


def test_records_are_short_and_say_all() -> None:
    many = [NumberedPartition("t", 7 + n, f"{n:032X}", "G" * 32) for n in range(2_500)]
    records = assignment_records("t", many)
    assert [(each.first, len(each.partitions)) for each in records] == [
        (7, 1_000),
        (1_007, 1_000),
        (2_007, 500),
    ]
    assert all(parse_record(each.packed()) == each for each in records)
    assert all(len(each.packed()) < registry_table.MAX_RECORD_BYTES // 4 for each in records)


def test_a_record_is_a_json_object_with_a_version() -> None:
    record = RegistryRecord(topic="t", first=3, partitions=(row("A"),))
    text = b'{"v": 1, "topic": "t", "first": 3, "partitions": [["A", "GATEWAY", true]]}'
    assert record.packed() == text
    assert parse_record(text) == record
    assert parse_record(text.replace(b'"v": 1', b'"v": 2')) is None
    later = text.replace(b'"first"', b'"colour": "green", "first"')
    assert parse_record(later) == record  # fields of later versions are ignored


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_any_octets_are_a_record_or_none(content: bytes) -> None:
    table(parse_record(content))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab"), inner),
    ),
    st.sampled_from(["lease", "committed", "topic", "first", "partitions"]),
)
def test_members_of_any_kind_are_a_record_or_none(value: object, member: str) -> None:
    table(parse_record(json.dumps({"v": 1, member: value}).encode()))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00 no JSON",
        b"[1, 2]",
        b'{"v": 1, "topic": "flights", "first": 1, "partitions": [["x"]]}',
        b'{"v": 1, "topic": 7}',
        b"[" * 100_000,
        b'{"v": 1, "lease": "' + b"x" * 2_000_000 + b'"}',
    ],
)
def test_what_is_no_record_is_none(content: bytes) -> None:
    assert parse_record(content) is None


def test_topics_that_kafka_clients_cannot_name_have_no_numbers() -> None:
    assert all(map(is_numbered, ["t", "Flüge nach Wien", "a.b_c-d", "x" * 255]))
    assert not any(map(is_numbered, ["__dafka.queries", "\udcff", "a\nb", "a\0b", "", "x" * 256]))


def lead(number: int, leader: str = "G2", **more: object) -> RegistryRecord:
    fields: dict[str, object] = {"owner": "G1", "life": EpochId(number, 7, 2)}
    return RegistryRecord(leader=leader, stores=("G1", "G2", "S"), **fields | more)  # type: ignore[arg-type]


def test_the_leader_with_the_newest_life_counts() -> None:
    found = table(lead(5), lead(4, "G3"), lead(5, "G3"), lead(6, "G3"))
    assert found.leads == {"G1": Lead("G1", "G3", EpochId(6, 7, 2), ("G1", "G2", "S"), 3)}
    assert found.skipped == 2
    assert parse_record(lead(5).packed()) == lead(5)


@pytest.mark.parametrize(
    "invalid",
    [
        {"owner": "\0"},
        {"leader": ""},
        {"life": EpochId(0, 7, 2)},
        {"life": EpochId(MAX_NUMBER, 7, 2)},
        {"life": EpochId(5, 2**64, 2)},
        {"life": EpochId(5, 7, 256)},
        {"stores": ("G1", "")},
    ],
)
def test_an_invalid_leader_is_skipped(invalid: dict[str, object]) -> None:
    fields = {"leader": "G2", "stores": ("G1",), "owner": "G1", "life": EpochId(5, 7, 2)} | invalid
    found = table(RegistryRecord(**fields))  # type: ignore[arg-type]
    assert (dict(found.leads), found.skipped) == ({}, 1)

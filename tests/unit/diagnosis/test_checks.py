"""What the facts about a cluster mean."""

from __future__ import annotations

from typing import Any

from dafka_core.diagnosis.checks import check_all, shown_s
from dafka_core.diagnosis.facts import Facts, FileAccess, StoreFacts
from dafka_core.diagnosis.findings import Finding, Severity
from dafka_core.records import KnownStore, PartitionInfo, TopicPartition

OK, WARNING, PROBLEM = Severity.OK, Severity.WARNING, Severity.PROBLEM
URI = ("grpc://h:1",)


def served(store: str = "A", ahead_s: float | None = 0.0, **more: Any) -> StoreFacts:
    return StoreFacts(store, locations=URI, ahead_s=ahead_s)._replace(**more)


def found(facts: Facts, about: str) -> list[tuple[Severity, str]]:
    return [(each.severity, str(each)) for each in check_all(facts) if each.about == about]


def only(facts: Facts, about: str) -> tuple[Severity, str]:
    (one,) = found(facts, about)
    return one


def test_no_store() -> None:
    severity, says = only(Facts(tower_found=True, node_count=3), "stores")
    assert severity is PROBLEM
    assert says.startswith("the tower tells of 3 other nodes, and of no store; start one")
    assert "of no other node" in only(Facts(tower_found=True), "stores")[1]
    assert found(Facts(tower_found=False), "stores") == []  # the tower is what is wrong


def test_stores_and_how_they_are_reached() -> None:
    stores = (
        served("A"),
        StoreFacts("B", knows_queries=False),
        StoreFacts("C"),
        served("D", None, failure="refused"),
        served("E", None, failure="refused", connects=False),
    )
    kinds = found(Facts(stores=stores), "stores")
    assert [severity for severity, _ in kinds] == [OK, WARNING, WARNING, WARNING, PROBLEM]
    says = [sentence for _, sentence in kinds]
    assert says[0] == "store A answers by Arrow Flight at grpc://h:1"
    assert says[1].startswith("store B is a C node")
    assert says[2].startswith("store C serves no Arrow Flight")
    assert says[3].startswith("store D does not answer by Arrow Flight: refused; see that it runs")


def test_a_store_that_is_named_must_answer() -> None:
    named = StoreFacts(*URI, locations=URI, failure="refused")
    assert only(Facts(stores=(named,)), "stores")[0] is PROBLEM
    (finding,) = (each for each in check_all(Facts(stores=(named._replace(stranger="SSH"),))))
    assert finding.lasts
    assert str(finding).startswith(
        "grpc://h:1 is no store: something else than a store's Arrow Flight listens there (it spe"
    )


def test_a_store_that_is_away() -> None:
    severity, says = only(Facts(stores=(), away=(KnownStore("B", "tcp://h:5"),)), "stores")
    assert severity is WARNING
    assert says.startswith("store B (tcp://h:5, it is not known when it was heard last) is away")
    assert says.endswith("start it again, or 'dafka store forget B' if it is gone")


def test_connections_that_go_one_way() -> None:
    one = served("A", connects=False)
    severity, says = only(Facts(stores=(one,), endpoint="tcp://me:1"), "connections")
    assert severity is WARNING
    assert says.startswith("A cannot connect to this node at tcp://me:1: only what goes by Arrow")
    severity, _ = only(Facts(stores=(one._replace(locations=()),)), "connections")
    assert severity is PROBLEM
    assert found(Facts(stores=(served(),)), "connections") == []


def test_topics() -> None:
    heads = {
        info.tp: info
        for info in (PartitionInfo("flights", "P", 2, 5), PartitionInfo("flights", "Q", 0, 1))
    }
    facts = Facts(topics=("flights", "flihgts"), heads=heads, asked=True)
    there, misspelt = found(facts, "topic")
    assert there == (OK, "topic 'flights' has 2 partitions with 4 records")
    assert misspelt[0] is PROBLEM
    assert misspelt[1].startswith("no store has topic 'flihgts' (did you mean 'flights'?); corr")
    assert found(facts._replace(asked=False), "topic") == []  # nobody could say
    one = Facts(topics=("t",), heads={TopicPartition("t", "P"): PartitionInfo("t", "P", 0, 1)})
    assert only(one._replace(asked=True), "topic")[1] == "topic 't' has 1 partition with 1 records"


def test_clocks_of_stores_against_each_other_and_against_here() -> None:
    agree = Facts(stores=(served("A", 50.0), served("B", -9.0), served("C", None)))
    assert only(agree, "clocks") == (OK, "the clocks agree within 60 s")
    says = found(Facts(stores=(served("A", 7_200.0), served("B", 0.0))), "clocks")
    assert [severity for severity, _ in says] == [WARNING, WARNING]
    assert says[0][1].startswith("the clocks of store B and store A are 2.0 h apart; set the clo")
    assert says[1][1].startswith("the clock of store A is 2.0 h ahead of this machine's")
    behind = only(Facts(stores=(served("A", -90.0),)), "clocks")
    assert "store A is 90.0 s behind this machine's" in behind[1]
    assert found(Facts(stores=(StoreFacts("A"),)), "clocks") == []  # nobody has said


def test_a_clock_in_doubt_is_reported() -> None:
    doubted = served("A", clock_doubt="the store's clock is 48.0 h ahead of the log")
    severity, says = only(Facts(stores=(doubted, served("B"))), "clocks")
    assert severity is WARNING
    assert says.startswith("the clock of store A is in doubt, and nothing is deleted by age there")
    assert "48.0 h ahead of the log; set it by a network (NTP)" in says


def test_a_slow_answer_does_not_make_a_clock_wrong() -> None:
    slow = Facts(stores=(served("A", 61.0, unsure_s=2.0),))
    assert only(slow, "clocks")[0] is OK


def test_versions() -> None:
    old = served("A", lacks=("dafka.sizes.v1",))
    new = served("B", more=("dafka.later.v1",))
    severity, says = found(Facts(stores=(old, new)), "versions")[0]
    assert severity is WARNING
    assert says.startswith("store A is of an older version than this program: it lacks dafka.si")
    assert "store B is of a newer version" in found(Facts(stores=(old, new)), "versions")[1][1]
    assert found(Facts(stores=(served(),)), "versions") == []


def test_files() -> None:
    readable = served(file=FileAccess.READABLE)
    assert only(Facts(stores=(readable,)), "files") == (
        OK,
        "the file of store A can be read from here",
    )
    severity, says = only(Facts(stores=(served(file=FileAccess.UNREADABLE),)), "files")
    assert severity is WARNING
    assert "records come by Arrow Flight" in says


def test_each_finding_that_is_not_ok_says_what_to_do() -> None:
    store = StoreFacts("A", False, False, URI, "f", "", 99.0, 0.0, ("x",), (), FileAccess(3))
    facts = Facts((), True, 0, "e", (store,), (KnownStore("B"),), ("t",), {}, asked=True)
    findings: list[Finding] = check_all(facts)
    assert {each.about for each in findings} >= {"stores", "connections", "topic", "clocks"}
    assert all(each.remedy for each in findings if each.severity is not OK)


def test_times_as_people_say_them() -> None:
    times = (0.25, 119, 600, 7_200, 400_000)
    assert [shown_s(each) for each in times] == ["0.2 s", "119.0 s", "10.0 min", "2.0 h", "4.6 d"]


def test_stores_that_go_by_different_rules_of_retention() -> None:
    day, none = served("A", rules=("*=1d",), rules_set=True), served("B", rules=())
    severity, says = only(Facts(stores=(day, none)), "retention")
    assert severity is WARNING
    assert "store A by *=1d, store B by none; unless that is meant so" in says
    same, unknown = served("B", rules=("*=1d",)), served("C")
    started = day._replace(rules_set=False)
    for stores in ((day, same, unknown), (started, none)):
        assert found(Facts(stores=stores), "retention") == []

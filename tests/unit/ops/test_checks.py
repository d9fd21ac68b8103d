"""Findings from the facts about a cluster."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dafka_core.cli.inspect_commands import OK as OK_STATE
from dafka_core.cli.inspect_commands import _states
from dafka_core.config.node_options import SecurityOptions, TowerAddress
from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition
from dafka_core.ops.checks import Facts, FileAccess, StoreFacts, check_all, check_security, shown_s
from dafka_core.ops.findings import Finding, Severity, ok, problem, problems, warning
from dafka_core.ops.port_probe import LOCKED, Answer, PortFacts, TowerFacts
from dafka_core.security.key_files import new_key, read_secret

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
    assert says.startswith("the tower reports 3 other nodes, but no store; start one")
    assert "reports no other node" in only(Facts(tower_found=True), "stores")[1]
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
    assert says[0] == "store A responds by Arrow Flight at grpc://h:1"
    assert says[1].startswith("store B is a C node")
    assert says[2].startswith("store C serves no Arrow Flight")
    assert says[3].startswith(
        "store D does not respond by Arrow Flight: refused; check that it runs"
    )


def test_a_store_that_is_named_must_answer() -> None:
    named = StoreFacts(*URI, locations=URI, failure="refused")
    assert only(Facts(stores=(named,)), "stores")[0] is PROBLEM
    (finding,) = (each for each in check_all(Facts(stores=(named._replace(stranger="SSH"),))))
    assert finding.lasts
    assert str(finding).startswith(
        "grpc://h:1 is not a store's Arrow Flight service: another program responds with"
    )


def test_a_store_that_is_away() -> None:
    severity, says = only(Facts(stores=(), away=(KnownStore("B", "tcp://h:5"),)), "stores")
    assert severity is WARNING
    assert says.startswith("store B (tcp://h:5, never seen) is away")
    assert says.endswith("restart it, or 'dafka store forget B' if it is gone for ever")


def test_connections_that_go_one_way() -> None:
    one = served("A", connects=False)
    severity, says = only(Facts(stores=(one,), endpoint="tcp://me:1"), "connections")
    assert severity is WARNING
    assert says.startswith(
        "A cannot connect to this node at tcp://me:1: only operations over Arrow"
    )
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
    assert found(facts._replace(asked=False), "topic") == []  # unknown
    one = Facts(topics=("t",), heads={TopicPartition("t", "P"): PartitionInfo("t", "P", 0, 1)})
    assert only(one._replace(asked=True), "topic")[1] == "topic 't' has 1 partition with 1 records"


def test_clocks_of_stores_against_each_other_and_against_here() -> None:
    agree = Facts(stores=(served("A", 50.0), served("B", -9.0), served("C", None)))
    assert only(agree, "clocks") == (OK, "the clocks agree within 60 s")
    says = found(Facts(stores=(served("A", 7_200.0), served("B", 0.0))), "clocks")
    assert [severity for severity, _ in says] == [WARNING, WARNING]
    assert says[0][1].startswith("the clocks of store B and store A are 2.0 h apart; synchronize")
    assert says[1][1].startswith("the clock of store A is 2.0 h ahead of this machine's")
    behind = only(Facts(stores=(served("A", -90.0),)), "clocks")
    assert "store A is 90.0 s behind this machine's" in behind[1]
    assert found(Facts(stores=(StoreFacts("A"),)), "clocks") == []  # not reported


def test_a_clock_in_doubt_is_reported() -> None:
    doubted = served("A", clock_doubt="the store's clock is 48.0 h ahead of the log")
    severity, says = only(Facts(stores=(doubted, served("B"))), "clocks")
    assert severity is WARNING
    assert says.startswith("the clock of store A is in doubt, so it deletes nothing by age")
    assert "48.0 h ahead of the log; synchronize it (NTP)" in says


def test_a_full_disk_is_a_problem() -> None:
    full = served("A", refusal="the disk is full: free some space")
    severity, says = only(Facts(stores=(full, served("B"))), "disks")
    assert severity is PROBLEM
    assert says.startswith("store A accepts no records: the disk is full")
    assert found(Facts(stores=(served("B"),)), "disks") == []


def test_damaged_records_are_a_warning_and_the_status_says_so() -> None:
    facts = Facts(stores=(served("A", damaged=2), served("B")))
    severity, says = only(facts, "damage")
    assert severity is WARNING
    sentence = "store A has damaged records in 2 partitions, not replaced by another store's yet"
    assert says.startswith(sentence)
    assert [(each.state, each.why) for each in _states(facts)] == [
        (OK_STATE, sentence),
        (OK_STATE, ""),
    ]


def test_a_slow_answer_does_not_make_a_clock_wrong() -> None:
    slow = Facts(stores=(served("A", 61.0, unsure_s=2.0),))
    assert only(slow, "clocks")[0] is OK


def test_versions() -> None:
    old = served("A", lacks=("dafka.sizes.v1",))
    new = served("B", more=("dafka.later.v1",))
    severity, says = found(Facts(stores=(old, new)), "versions")[0]
    assert severity is WARNING
    assert says.startswith("store A has an older version than this program: it lacks dafka.si")
    assert "store B has a newer version" in found(Facts(stores=(old, new)), "versions")[1][1]
    assert found(Facts(stores=(served(),)), "versions") == []


def test_files() -> None:
    readable = served(file=FileAccess.READABLE)
    assert only(Facts(stores=(readable,)), "files") == (
        OK,
        "the file of store A can be read from here",
    )
    severity, says = only(Facts(stores=(served(file=FileAccess.UNREADABLE),)), "files")
    assert severity is WARNING
    assert "records are read by Arrow Flight" in says


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
    assert "(store A: *=1d, store B: none); unless this is intended" in says
    same, unknown = served("B", rules=("*=1d",)), served("C")
    started = day._replace(rules_set=False)
    for stores in ((day, same, unknown), (started, none)):
        assert found(Facts(stores=stores), "retention") == []


NO_KEYS = SecurityOptions()


def tower(host: str, said: str) -> TowerFacts:
    port = PortFacts(host, 1, Answer.ZEROMQ, said)
    return TowerFacts(TowerAddress(host, 1, 2), port, port)


def sentences(config: SecurityOptions, facts: Facts) -> list[str]:
    return [str(each) for each in check_security(config, facts)]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (Facts((tower("127.0.0.1", "XSUB"),)), []),
        (Facts((tower("10.0.0.1", LOCKED),)), []),
        (Facts((tower("10.0.0.1", ""),)), []),
        (Facts((tower("10.0.0.1", "XSUB"),)), ["tower 10.0.0.1:1:2 is open to every client"]),
        (Facts(stores=(StoreFacts("S", locations=("grpc://127.0.0.1:1",)),)), []),
        (Facts(stores=(StoreFacts("S", locations=("grpc+tls://10.0.0.1:1",)),)), []),
        (
            Facts(stores=(StoreFacts("S", locations=("grpc://[fd00::1]:1",)),)),
            ["store S serves Arrow Flight at grpc://[fd00::1]:1 to every client"],
        ),
    ],
)
def test_what_other_machines_reach_without_a_key_is_said(facts: Facts, says: list[str]) -> None:
    found = check_security(NO_KEYS, facts)
    warned = [str(each) for each in found if each.severity is Severity.WARNING]
    assert [each[: len(said)] for each, said in zip(warned, says, strict=True)] == says
    assert all("give towers and nodes keys" in each for each in warned)
    assert any(each.severity is Severity.OK for each in found) == (not says)


def test_a_directory_that_everybody_reads_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    facts = Facts(stores=(StoreFacts("S", locations=(f"grpc+unix://{tmp_path}/flight.sock",)),))
    (said,) = sentences(NO_KEYS, facts)
    assert "all users of this machine can read the records of store S" in said
    tmp_path.chmod(0o700)
    assert "no keys are used" in sentences(NO_KEYS, facts)[0]


def test_that_insecure_is_set_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_INSECURE", "true")
    (said,) = sentences(NO_KEYS, Facts())
    assert "is set here" in said


def test_keys_are_looked_at(tmp_path: Path) -> None:
    secrets, allowed = tmp_path / "secrets", tmp_path / "allowed"
    allowed.mkdir()
    for name, roles in (("hub", ("tower", "store")), ("s", ("store",)), ("me", ("consume",))):
        new_key(secrets, name, roles)
        shutil.copy(secrets / f"{name}.key", allowed)
    own = secrets / "me.key_secret"
    config = SecurityOptions(secret_key_file=str(own), allowed_keys=str(allowed))
    own_key, of_tower = sentences(config, Facts())
    assert own_key == "this node has key me, with consume"
    assert of_tower.startswith("key hub has role tower and other roles; create a key")
    new_key(secrets, "hub2", ("tower",))
    shutil.copy(secrets / "hub2.key", allowed / "hub.key")
    shutil.copy(secrets / "s.key_secret", allowed)
    shutil.copy(own, allowed)  # another file with the same secret
    allowed.chmod(0o770)
    text = (allowed / "s.key").read_text()
    (allowed / "s.key").write_text(
        "\n".join(x for x in text.split("\n") if "certificate =" not in x)
    )
    (allowed / "me.key").unlink()
    said = sentences(config, Facts())
    for number, each in enumerate(
        (
            "own key, .*, is not in .*; copy its .key file there",
            "a group can write to .*, and so admit any key",
            r"the secret of key s is here, too \(.*s.key_secret\); move it to its owner",
            "Arrow Flight rejects key s: .*'dafka keys renew s'",
        )
    ):
        assert re.search(each, said[number]), said
    assert len(said) == 4


def test_who_else_can_write_to_the_files_of_keys_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, own = new_key(tmp_path, "me", ("consume",))
    config = SecurityOptions(secret_key_file=str(own), allowed_keys=str(tmp_path))
    public.chmod(0o664)
    said = sentences(config, Facts())
    assert said[1:] == [
        f"a group can write to {public}, and so admit any key; 'chmod g-w {public}'"
    ]
    public.chmod(0o644)
    for path in (tmp_path, public, own):
        give_away(path, monkeypatch)
    # The node's user owns the secret, too, and another user checks it.
    assert len(sentences(config, Facts())) == 1
    monkeypatch.setenv("OWN_KEY", read_secret(str(own)).secret.decode())
    own.unlink()
    said = sentences(SecurityOptions("env:OWN_KEY", str(tmp_path)), Facts())
    assert len(said) == 2
    owned = rf"^user \d+ owns {tmp_path} and 1 more, and can admit any key; 'chown root {tmp_path} "
    assert re.search(owned, said[1])


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file another user's."""
    if os.geteuid() == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)


def test_keys_that_no_node_starts_with_are_a_problem(tmp_path: Path) -> None:
    config = SecurityOptions(secret_key_file=str(tmp_path / "x"), allowed_keys=str(tmp_path))
    (found,) = check_security(config, Facts())
    assert found.severity is Severity.PROBLEM
    assert "must be a file that 'dafka keys new' made" in found.sentence


def test_a_store_goes_by_its_address_or_by_its_uri() -> None:
    assert StoreFacts("AB12").name == "store AB12"
    assert not StoreFacts("AB12").is_named
    assert StoreFacts("grpc://h:1").name == "grpc://h:1"
    assert StoreFacts("grpc://h:1").is_named


def test_a_finding_is_a_sentence_and_what_to_do() -> None:
    found = [ok("tower", "it answers"), warning("clocks", "they differ", "set them")]
    assert [str(each) for each in found] == ["it answers", "they differ; set them"]
    assert [each.severity.value for each in found] == ["ok", "warning"]


def test_problems_alone_are_problems() -> None:
    wrong = problem("stores", "there is none", "start one")
    assert problems([ok("a", "b"), warning("a", "b", "c"), wrong]) == [wrong]
    assert wrong.severity is Severity.PROBLEM
    assert not wrong.lasts
    assert problem("a", "b", "c", lasts=True).lasts

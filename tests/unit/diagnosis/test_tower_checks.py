"""What is said of towers, by who listens at their ports."""

from __future__ import annotations

import pytest

from dafka_core.diagnosis.findings import Severity
from dafka_core.diagnosis.port_probe import Answer, PortFacts
from dafka_core.diagnosis.tower_checks import TowerFacts, check_towers
from dafka_core.node_options import TowerAddress

ZEROMQ, STRANGER, MUTE = Answer.ZEROMQ, Answer.STRANGER, Answer.MUTE
REFUSED, UNREACHABLE, UNKNOWN_HOST = Answer.REFUSED, Answer.UNREACHABLE, Answer.UNKNOWN_HOST

Said = tuple[Answer, str]
SUB, PUB, KEYS = (ZEROMQ, "XSUB"), (ZEROMQ, "XPUB"), (ZEROMQ, "CURVE")


def facts(sub: Said, pub: Said, host: str = "h") -> TowerFacts:
    tower = TowerAddress(host, 1, 2)
    return TowerFacts(tower, PortFacts(host, 1, *sub), PortFacts(host, 2, *pub))


@pytest.mark.parametrize(
    ("sub", "pub", "lasts", "says"),
    [
        ((REFUSED, ""), (REFUSED, ""), False, "nothing listens at h:1:2; start one there with"),
        (PUB, SUB, True, "tower h:1:2 has its ports the other way round; name it as h:2:1"),
        (SUB, (REFUSED, ""), False, "nothing listens at h:2; name the tower's ports as 'dafka to"),
        (SUB, SUB, True, "another ZeroMQ program listens at h:2, with a socket XSUB, no tower's X"),
        (SUB, (ZEROMQ, ""), False, "h:2, with a socket that says nothing of itself, no tower's"),
        ((STRANGER, "SSH"), PUB, True, "something else listens at h:1, no tower (it speaks 'SSH')"),
        ((STRANGER, ""), (STRANGER, ""), False, "who listens at h:1 ends the connection: no tower"),
        ((MUTE, ""), (MUTE, ""), False, "who listens at h:1 says nothing: no tower, or one that"),
        ((UNREACHABLE, ""), (UNREACHABLE, ""), False, "h:1 cannot be reached from here and h:2 ca"),
        ((UNREACHABLE, ""), PUB, False, "see whether that is its address, and whether a firewall"),
        ((UNKNOWN_HOST, ""), (UNKNOWN_HOST, ""), True, "there is no host h; correct the name"),
    ],
)  # fmt: skip
def test_what_is_wrong(sub: Said, pub: Said, lasts: bool, says: str) -> None:
    (found,) = check_towers([facts(sub, pub)])
    assert found.severity is Severity.PROBLEM
    assert says in str(found)
    assert found.lasts is lasts


def test_a_tower_that_lets_in_owners_of_keys() -> None:
    for found in (None, True):
        (finding,) = check_towers([facts(KEYS, KEYS)], found=found)
        assert finding.severity is Severity.OK
    (finding,) = check_towers([facts(KEYS, KEYS)], found=False)
    assert "lets in owners of keys only; set secret_key_file" in str(finding)


def test_a_tower_that_answers() -> None:
    for found in (None, True):
        (finding,) = check_towers([facts(SUB, PUB)], found=found)
        assert finding.severity is Severity.OK
    (finding,) = check_towers([facts(SUB, PUB)], found=False)
    assert finding.severity is Severity.PROBLEM
    assert "a tower listens at h:1:2, and passes no beacon on" in str(finding)


def test_one_of_two_towers_may_be_away() -> None:
    away = (REFUSED, "")
    found = check_towers([facts(away, away, "a"), facts(SUB, PUB, "b")])
    assert [each.severity for each in found] == [Severity.WARNING, Severity.OK]
    found = check_towers([facts(away, away, "a"), facts(away, away, "b")])
    assert [each.severity for each in found] == [Severity.PROBLEM, Severity.PROBLEM]

"""What is said of towers, by who listens at their ports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dafka_core.diagnosis.findings import Finding, ok, problem, warning
from dafka_core.diagnosis.port_probe import LOCKED, Answer, PortFacts, probed
from dafka_core.node_options import TowerAddress

ABOUT: Final = "tower"

SUB_KIND: Final = "XSUB"
PUB_KIND: Final = "XPUB"
"""The sockets of a tower: that to which nodes send, and that from which they hear."""

_NAME_ONE: Final = "name a running tower (option 'tower', environment DAFKA_TOWER)"
_AS_PRINTED: Final = "name the tower's ports as 'dafka tower' prints them: HOST:SUB_PORT:PUB_PORT"


class TowerFacts(NamedTuple):
    """A tower that was named, and who listens at its ports."""

    tower: TowerAddress
    sub: PortFacts
    pub: PortFacts


def towers_probed(towers: Sequence[TowerAddress], timeout_s: float) -> list[TowerFacts]:
    """Looks at all ports at the same time, for at most so long."""
    places = [(tower.host, port) for tower in towers for port in (tower.sub_port, tower.pub_port)]
    found = probed(places, timeout_s)
    return [TowerFacts(*each) for each in zip(towers, found[::2], found[1::2], strict=True)]


def check_towers(facts: Iterable[TowerFacts], *, found: bool | None = None) -> list[Finding]:
    """A finding for each tower.

    One that is away is a problem where there is no other.

    Args:
        facts: of all towers that were named.
        found: whether a tower has answered to a node as towers do; None where none has asked.
    """
    checked = [
        _check_locked(each.tower, found=found)
        if _kind(each.sub) == _kind(each.pub) == LOCKED
        else _check(each, found=found)
        for each in facts
    ]
    if any(not each.remedy for each in checked):
        return [warning(ABOUT, *each[2:4]) if each.remedy else each for each in checked]
    return checked


def _check(facts: TowerFacts, *, found: bool | None) -> Finding:
    tower, sub, pub = facts
    kinds = _kind(sub), _kind(pub)
    if kinds == (SUB_KIND, PUB_KIND):
        if found is False:
            remedy = f"start it again, or {_NAME_ONE}"
            return problem(ABOUT, f"a tower listens at {tower}, and passes no beacon on", remedy)
        return ok(ABOUT, f"a tower answers at {tower}")
    if kinds == (PUB_KIND, SUB_KIND):
        other = TowerAddress(tower.host, tower.pub_port, tower.sub_port)
        sentence = f"tower {tower} has its ports the other way round"
        return problem(ABOUT, sentence, f"name it as {other}", lasts=True)
    wrong = [_wrong(sub, SUB_KIND), _wrong(pub, PUB_KIND)]
    if sub.answer is Answer.REFUSED and pub.answer is Answer.REFUSED:
        remedy = f"start one there with 'dafka tower', or {_NAME_ONE}"
        return problem(ABOUT, f"nothing listens at {tower}", remedy)
    if sub.answer is Answer.UNKNOWN_HOST:
        sentence = f"there is no host {tower.host}"
        return problem(ABOUT, sentence, f"correct the name, or {_NAME_ONE}", lasts=True)
    sentence = " and ".join(dict.fromkeys(each for each in wrong if each))
    if Answer.UNREACHABLE in (sub.answer, pub.answer):
        remedy = "see whether that is its address, and whether a firewall lets these ports pass"
        return problem(ABOUT, sentence, remedy, lasts=_is_another(sub, pub))
    return problem(ABOUT, sentence, _AS_PRINTED, lasts=_is_another(sub, pub))


def _check_locked(tower: TowerAddress, *, found: bool | None) -> Finding:
    if found is not False:
        return ok(ABOUT, f"a tower answers at {tower}, to owners of allowed keys")
    remedy = "set secret_key_file and allowed_keys to keys that it knows (docs/security.md)"
    return problem(ABOUT, f"who listens at {tower} lets in owners of keys only", remedy)


def _kind(port: PortFacts) -> str:
    return port.said if port.answer is Answer.ZEROMQ else ""


def _is_another(sub: PortFacts, pub: PortFacts) -> bool:
    """Whether a port is somebody else's: no waiting makes it a tower's."""
    others = ((sub, SUB_KIND), (pub, PUB_KIND))
    return any(
        (port.answer is Answer.STRANGER and port.said) or _kind(port) not in ("", kind)
        for port, kind in others
    )


def _wrong(port: PortFacts, kind: str) -> str:
    """What is wrong with a port that should be a tower's socket of this kind; empty if nothing."""
    match port.answer:
        case Answer.ZEROMQ if port.said == kind:
            return ""
        case Answer.ZEROMQ:
            what = f"a socket {port.said}" if port.said else "a socket that says nothing of itself"
            return f"another ZeroMQ program listens at {port.place}, with {what}, no tower's {kind}"
        case Answer.STRANGER if port.said:
            return f"something else listens at {port.place}, no tower (it speaks {port.said!r})"
        case Answer.STRANGER:
            what = "no tower, or a proxy whose tower is not there"
            return f"who listens at {port.place} ends the connection: {what}"
        case Answer.MUTE:
            return f"who listens at {port.place} says nothing: no tower, or one that stands still"
        case Answer.REFUSED:
            return f"nothing listens at {port.place}"
        case _:
            return f"{port.place} cannot be reached from here"

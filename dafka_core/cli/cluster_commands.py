"""``dafka status``, ``nodes`` and ``doctor``: the nodes of a cluster, and its problems."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dafka_core
from dafka_core.cli import flags, output
from dafka_core.cli.store_clients import parse_least, parse_uris
from dafka_core.config.missing_stores import EVERY_STORE
from dafka_core.config.node_options import ReaderOptions
from dafka_core.errors import DafkaError

if TYPE_CHECKING:
    from dafka_core.ops.checks import Facts


OK, SILENT, AWAY, FULL, WRONG = "ok", "silent", "away", "full", "wrong"

SETTLE_S: Final = 1.5  # time in which nodes connect to a new node and announce their kind

_WAITING: Final = ("tower_timeout_s", "wait_for_tower")
"""Options that probes do not have: they don't wait for a tower."""


class State(NamedTuple):
    """The state of a tower or a store."""

    what: str
    name: str
    state: str
    why: str = ""


@flags.min_stores_option
@flags.json_option
@flags.timeout_option
@flags.stores_option
@flags.table_options(ReaderOptions, without=_WAITING)
def status(*, min_stores: str | None, timeout_s: float, uris: str, **options: Any) -> None:
    """Exit with 0 if a tower and all known stores respond, else with 1: for probes.

    With --min-stores N, N stores are enough. 'dafka doctor' names causes and remedies.
    """
    from dafka_core.ops.gathering import gathered

    least = parse_least(min_stores)
    states = [*_states(gathered(options, (), parse_uris(uris), timeout_s=timeout_s))]
    output.table(State._fields, states)
    if why := _why_not(states, least):
        raise DafkaError(why)


def _states(facts: Facts) -> Iterator[State]:
    from dafka_core.ops.checks import damage
    from dafka_core.ops.findings import Severity
    from dafka_core.ops.port_probe import check_towers

    towers = check_towers(facts.towers, found=facts.tower_found)
    for tower, finding in zip(facts.towers, towers, strict=True):
        is_ok = finding.severity is Severity.OK
        yield State("tower", str(tower.tower), *((OK,) if is_ok else (WRONG, finding.sentence)))
    for store in facts.stores:
        if store.failure:
            yield State("store", store.store, SILENT, store.failure)
        elif not store.locations and not store.connects:
            yield State("store", store.store, SILENT, "not connected, and does not serve Flight")
        elif store.refusal:
            yield State("store", store.store, FULL, store.refusal)
        else:
            yield State(
                "store",
                store.store,
                OK,
                damage(store.name, store.damaged).sentence if store.damaged else "",
            )
    for known in facts.away:
        yield State("store", known.store, AWAY, "other stores know it, and it does not respond")


def _why_not(states: list[State], least: int | None) -> str:
    towers = [each.state for each in states if each.what == "tower"]
    stores = [each.state for each in states if each.what == "store"]
    if towers and OK not in towers:
        return "no tower responds"
    here = stores.count(OK)
    if not here:
        return "no store accepts records" if FULL in stores else "no store responds"
    if least is not None and least != EVERY_STORE:
        return f"{here} stores respond, and {least} are required" if here < least else ""
    gone = len(stores) - here
    if not gone:
        return ""
    full = f", or are {FULL}" if FULL in stores else ""
    return f"{gone} of {len(stores)} stores do not respond{full}"


@flags.json_option
@flags.table_options(ReaderOptions)
def nodes(**options: Any) -> None:
    """List the towers, and the producers, consumers, stores and readers with their topics.

    It takes two seconds: nodes connect to this command and announce themselves.
    """
    from dafka_core.config.node_options import ALL_NODES

    # With ALL_NODES, each node connects to this reader and announces its kind.
    with dafka_core.Reader(**{**options, "connect_to": ALL_NODES}) as reader:
        time.sleep(SETTLE_S)
        found = reader.neighbours()
        towers = reader.towers()
    rows: list[tuple[object, ...]] = [("", "tower", each, True, "") for each in towers]
    rows += [
        (each.node, each.kind or "-", each.endpoint, each.connected, ",".join(each.topics))
        for each in found
    ]
    output.table(("node", "kind", "endpoint", "connected", "topics"), rows)


@flags.option(
    "--topic",
    multiple=True,
    type=flags.TOPIC,
    metavar="TOPIC",
    help="A topic to check; may be given several times.",
)
@flags.json_option
@flags.timeout_option
@flags.stores_option
@flags.table_options(ReaderOptions, without=_WAITING)
def doctor(*, topic: Sequence[str], timeout_s: float, uris: str, **options: Any) -> None:
    """Diagnose a cluster: towers, stores, topics, clocks, versions, locks and connections.

    Exits with 1 if it finds a problem; warnings do not count.
    """
    from dafka_core.ops.checks import check_all, check_security
    from dafka_core.ops.findings import problems
    from dafka_core.ops.gathering import gathered

    facts = gathered(options, topic, parse_uris(uris), timeout_s=timeout_s)
    found = [*check_all(facts), *check_security(ReaderOptions.build(options), facts)]
    rows = [(each.severity.value, *each[1:4]) for each in found]
    names = ("severity", "about", "finding", "remedy")
    output.table(names, rows, wrapped=("finding", "remedy"))
    if wrong := problems(found):
        raise DafkaError("1 problem" if len(wrong) == 1 else f"{len(wrong)} problems")

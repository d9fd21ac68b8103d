"""The diagnosis of a query that finds no tower or no store at its start.

It is the diagnosis of ``dafka doctor``.  A problem that waiting cannot solve fails the query at
once; any other is logged once while the query waits.  A healthy start imports nothing of it.
"""

# ruff: noqa: PLC0415 -- a healthy start imports nothing more

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dafka_core import Reader
from dafka_core.config.node_options import ReaderOptions
from dafka_core.errors import NoStoreError, TowerNotFoundError
from dafka_spark.cluster.cluster_reader import ClusterReader
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import MeshAddress

if TYPE_CHECKING:
    from dafka_core.ops.findings import Finding

FIRST_TIMEOUT_S: Final = 1.0
"""A running tower answers earlier; after this time its ports are probed."""

_log = logging.getLogger("dafka_spark")


def join(open_reader: Callable[..., Reader], tower: str, settings: Mapping[str, Any]) -> Reader:
    """Open a reader with the settings of a node; explain if no tower answers in time."""
    options = ReaderOptions.build({"tower": tower, **settings})
    deadline = Deadline(options.tower_timeout_s)
    first_s = min(FIRST_TIMEOUT_S, deadline.timeout_s)
    try:
        return open_reader(**{**settings, "tower_timeout_s": first_s, "wait_for_tower": False})
    except TowerNotFoundError as error:
        found = _probe_towers(tower, found=False)
        is_hopeless = all(each.lasts for each in found)
        if not options.wait_for_tower and (is_hopeless or deadline.is_over):
            raise _diagnosed_error(error, deadline, found) from None
    until = "a tower answers" if options.wait_for_tower else f"{deadline.timeout_s:g} s have passed"
    _log.warning("%s. The query retries until %s", ". ".join(map(str, found)), until)
    try:
        return open_reader(**{**settings, "tower_timeout_s": max(deadline.left_s, 0.01)})
    except TowerNotFoundError as error:
        raise _diagnosed_error(error, deadline, found) from None


def explain(
    reader: ClusterReader, address: MeshAddress, error: NoStoreError, deadline: Deadline
) -> str:
    """Log why no store has answered yet, and return the diagnosis.

    Raise NoStoreError if the deadline has passed, or if waiting is pointless: every problem lasts,
    or one of a tower does.
    """
    from dafka_core.ops.checks import Facts, StoreFacts, check_all
    from dafka_core.ops.findings import problems
    from dafka_core.ops.gathering import asked, with_discovered
    from dafka_core.ops.port_probe import PROBE_S, towers_probed

    if isinstance(reader, Reader):
        towers = ReaderOptions.build({"tower": address.tower}).tower
        facts = with_discovered(
            Facts(tuple(towers_probed(towers, PROBE_S)), tower_found=True), reader
        )
    else:
        stores = [StoreFacts(name, locations=uris) for name, uris in reader.endpoints().items()]
        answers = asked(stores, (), PROBE_S, address.keys)
        facts = Facts(stores=tuple(each for each, _ in answers))
    found = problems(check_all(facts))
    text = ". ".join(map(str, found))
    lasting = [each for each in found if each.lasts]
    is_hopeless = lasting and (lasting == found or any(each.about == "tower" for each in lasting))
    if deadline.is_over or is_hopeless:
        raise no_store(error, deadline, text) from None
    if text:
        _log.warning("%s. The query waits for up to %g s", text, deadline.timeout_s)
    return text


def warn_of_towers(address: MeshAddress) -> None:
    """Log what is wrong with towers that report stores which do not connect."""
    for each in () if address.stores else _probe_towers(address.tower):
        if each.remedy:
            _log.warning("%s", each)


def no_store(error: NoStoreError, deadline: Deadline, diagnosis: str) -> NoStoreError:
    """Return the error with the whole time waited, and the diagnosis."""
    waited_s = round(deadline.waited_s, 1)
    full = NoStoreError(
        error.towers, waited_s, error.unconnected, error.endpoint, diagnosis=diagnosis
    )
    for note in getattr(error, "__notes__", ()):
        full.add_note(note)
    return full


def _probe_towers(tower: str, *, found: bool | None = None) -> list[Finding]:
    from dafka_core.ops.port_probe import PROBE_S, check_towers, towers_probed

    towers = ReaderOptions.build({"tower": tower}).tower
    return check_towers(towers_probed(towers, PROBE_S), found=found)


def _diagnosed_error(
    error: TowerNotFoundError, deadline: Deadline, found: Iterable[Finding]
) -> TowerNotFoundError:
    waited_s = round(deadline.waited_s, 1)
    diagnosis = error.diagnosis or ("" if error.unknown_hosts else ". ".join(map(str, found)))
    return TowerNotFoundError(error.towers, waited_s, error.unknown_hosts, diagnosis=diagnosis)

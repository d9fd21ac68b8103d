"""What a query says, and when it gives up, where no tower or no store answers at its start.

Nothing of it runs where they do, nor is it imported.  Who looks for them in vain for a moment has
the same diagnosis as ``dafka doctor``: what waiting cannot cure fails at once, anything else is
said once and waited for.
"""

# ruff: noqa: PLC0415 -- the late imports have their reason above

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dafka_core import Reader
from dafka_core.config.node_options import ReaderOptions
from dafka_core.errors import NoStoreError, TowerNotFoundError
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import MeshAddress

if TYPE_CHECKING:
    from dafka_core.ops.findings import Finding

LOOK_S: Final = 1.0
"""A tower that is there answers in less; then who listens in its place is looked at."""

_log = logging.getLogger("dafka_spark")


def join(open_reader: Callable[..., Reader], tower: str, settings: Mapping[str, Any]) -> Reader:
    """What ``open_reader`` opens with the settings of a node.

    Raises:
        TowerNotFoundError: no tower answers, or none ever will; it says why.
    """
    options = ReaderOptions.build({"tower": tower, **settings})
    deadline = Deadline(options.tower_timeout_s)
    first = {"tower_timeout_s": min(LOOK_S, deadline.timeout_s), "wait_for_tower": False}
    try:
        return open_reader(**{**settings, **first})
    except TowerNotFoundError as error:
        found = _look_at_towers(tower, found=False)
        is_hopeless = all(each.lasts for each in found)
        if not options.wait_for_tower and (is_hopeless or deadline.is_over):
            raise _told(error, deadline, found) from None
    until = "a tower answers" if options.wait_for_tower else f"{deadline.timeout_s:g} s have passed"
    _log.warning("%s. The query looks for a tower until %s", _text(found), until)
    try:
        return open_reader(**{**settings, "tower_timeout_s": max(deadline.left_s, 0.01)})
    except TowerNotFoundError as error:
        raise _told(error, deadline, found) from None


def explain(reader: Reader, address: MeshAddress, error: NoStoreError, deadline: Deadline) -> str:
    """Says once why no store has answered yet; gives what it has said.

    Raises:
        NoStoreError: no waiting helps, or the time is over.
    """
    found = diagnosed(reader, address)
    if deadline.is_over or _is_hopeless(found):
        raise no_store(error, deadline, _text(found)) from None
    text = _text(found)
    if text:
        _log.warning("%s. The query waits for up to %g s", text, deadline.timeout_s)
    return text


def warn_of_towers(address: MeshAddress) -> None:
    """Says what is wrong with towers that have let this process hear of stores."""
    for each in () if address.stores else _look_at_towers(address.tower):
        if each.remedy:
            _log.warning("%s", each)


def no_store(error: NoStoreError, deadline: Deadline, diagnosis: str) -> NoStoreError:
    """The same error with the whole time that was waited, and the reason."""
    waited_s = round(deadline.waited_s, 1)
    told = NoStoreError(error.towers, waited_s, error.unmet, error.endpoint, diagnosis=diagnosis)
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told


def diagnosed(reader: Reader, address: MeshAddress) -> list[Finding]:
    """The problems that keep stores from answering."""
    from dafka_core.ops.checks import Facts, check_all
    from dafka_core.ops.findings import problems
    from dafka_core.ops.gathering import asked, heard, named_stores
    from dafka_core.ops.port_probe import PROBE_S, towers_probed

    if address.stores:
        answers = asked(named_stores(address.stores), (), PROBE_S, address.keys)
        facts = Facts(stores=tuple(each for each, _ in answers))
    else:
        towers = ReaderOptions.build({"tower": address.tower}).tower
        facts = heard(Facts(tuple(towers_probed(towers, PROBE_S)), tower_found=True), reader)
    return problems(check_all(facts))


def _look_at_towers(tower: str, *, found: bool | None = None) -> list[Finding]:
    from dafka_core.ops.port_probe import PROBE_S, check_towers, towers_probed

    towers = ReaderOptions.build({"tower": tower}).tower
    return check_towers(towers_probed(towers, PROBE_S), found=found)


def _is_hopeless(found: Sequence[Finding]) -> bool:
    """Whether waiting is in vain; one of several stores may still come."""
    lasting = [each for each in found if each.lasts]
    return bool(lasting) and (lasting == [*found] or any(each.about == "tower" for each in lasting))


def _told(
    error: TowerNotFoundError, deadline: Deadline, found: Iterable[Finding]
) -> TowerNotFoundError:
    waited_s = round(deadline.waited_s, 1)
    diagnosis = error.diagnosis or ("" if error.unknown_hosts else _text(found))
    return TowerNotFoundError(error.towers, waited_s, error.unknown_hosts, diagnosis=diagnosis)


def _text(found: Iterable[Finding]) -> str:
    return ". ".join(map(str, found))

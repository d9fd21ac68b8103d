"""Which known name somebody may have meant who wrote another one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from rapidfuzz.distance import OSA

from dafka_core.model.names import quoted

_FOLDED: Final = str.maketrans("", "", "-_. ")
"""What does not tell names apart, besides case."""

_LEAST: Final = 3
"""Letters that say which name was meant; each shorter one is near to all others."""

_MOST_LISTED: Final = 10
"""Where none is near."""

_MOST_COMPARED: Final = 64
"""Of longer names only so much is compared, letter by letter."""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` is a slip of the fingers from, or None.

    That is one letter missing, added, wrong or swapped with its neighbour for each four letters, or
    a name that was not written to its end.  'others' is not near to 'orders'.
    """
    wanted = _fold(name)
    if len(wanted) < _LEAST:
        return None
    most = max(1, len(wanted) // 4)
    found = ((_slips(wanted, _fold(each), most), each) for each in known)
    return min(((slips, each) for slips, each in found if slips <= most), default=(0, None))[1]


def what_there_is(name: str, known: Collection[str], what: str) -> str:
    """For a name that is not there: the nearest of those that are, or some of them."""
    if near := nearest_name(name, known):
        return f"did you mean {quoted(near)}?"
    if not known:
        return f"there are no {what}"
    some = ", ".join(map(quoted, sorted(known)[:_MOST_LISTED]))
    more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    return f"there are {some}{more}"


def _fold(name: str) -> str:
    return name.lower().translate(_FOLDED)[:_MOST_COMPARED]


def _slips(one: str, other: str, most: int) -> int:
    """How many there are between two names; more than ``most`` where those are too many."""
    if other.startswith(one) and one:
        return min(len(other) - len(one), most)
    return OSA.distance(one, other, score_cutoff=most)

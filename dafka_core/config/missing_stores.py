"""Messages about known stores that are away, whose records are missing from results.

Lists and queries name them, or fail if the user requires more stores than are present.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from dafka_core.config.options import parse_int
from dafka_core.errors import ConfigError
from dafka_core.model.names import escape
from dafka_core.model.timestamps import shown_time

if TYPE_CHECKING:
    from dafka_core.model.records import KnownStore

ALL: Final = "all"
EVERY_STORE: Final = 0  # ``all`` as a number
MOST_NAMES: Final = 10  # listed in an error


def parse_min_stores(value: Any) -> int:
    """Parse a number of stores, or ``all`` as ``EVERY_STORE``; raise ValueError for others."""
    if str(value).strip().lower() == ALL:
        return EVERY_STORE
    with suppress(ValueError):
        if (count := parse_int(value)) >= 1:
            return count
    raise ValueError(f"must be a whole number, at least 1, or {ALL}")


def described(store: KnownStore) -> str:
    """Describe a store by its address, endpoint and last sign of life."""
    seen = f"last seen {shown_time(store.seen_us)}" if store.seen_us else "never seen"
    where = f"{store.endpoint}, " if store.endpoint else ""
    return f"store {escape(store.store)} ({where}{seen})"


def if_gone(store: KnownStore) -> str:
    """Return the remedy for a store that does not return."""
    if "://" in store.store:  # a URI of option stores, whose store has never answered
        return "if it is gone for ever, leave it out of option stores"
    return f"if it is gone for ever, 'dafka store forget {escape(store.store)}'"


def warning(store: KnownStore) -> str:
    """Return the warning for a result without the store."""
    missing = "records that only it has are missing from this result"
    return f"{described(store)} is away: {missing}; {if_gone(store)}"


def check_min_stores(
    option: str, least: int | None, there: int, missing: Sequence[KnownStore]
) -> None:
    """Raise ConfigError, which names the missing stores, if too few stores are there.

    ``least`` is the required number, or ``EVERY_STORE``; None requires none.
    """
    if least is None or (there >= least and not (least == EVERY_STORE and missing)):
        return
    names = ", ".join(map(described, missing[:MOST_NAMES])) or "no other store is known"
    more = f" and {len(missing) - MOST_NAMES} more" if len(missing) > MOST_NAMES else ""
    value = ALL if least == EVERY_STORE else least
    stores = "1 store has" if there == 1 else f"{there} stores have"
    raise ConfigError(option, value, f"{stores} answered; away: {names}{more}")

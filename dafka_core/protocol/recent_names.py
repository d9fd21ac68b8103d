"""Names that peers choose, with something for each: as many as may be, the newest ones."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class RecentNames(dict[str, T]):
    """At most ``most`` names; the oldest is the likeliest to be gone."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, name: str, value: T) -> None:
        """Adds a name, or makes it the newest."""
        self.pop(name, None)
        self[name] = value
        if len(self) > self._most:
            del self[next(iter(self))]

"""Contexts that end with ``close``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A class whose objects are contexts: leaving one closes it."""

    @abstractmethod
    def close(self) -> None:
        """Ends; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

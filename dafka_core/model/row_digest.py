"""A digest of rows in any order: it shows if two writes contain the same rows."""

from __future__ import annotations

from typing import Self

import xxhash

from dafka_core.model.values import Values


class RowDigest:
    """The number of rows and the sum of their hashes, which does not depend on their order.

    128 bits reveal any changed, missing or duplicate row, but not a deliberate forgery.
    """

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._sum = 0

    def add(self, values: Values) -> Self:
        """Include some rows."""
        self.count += len(values)
        self._sum += sum(map(xxhash.xxh3_128_intdigest, values.to_list()))
        self._sum %= 1 << 128
        return self

    def __add__(self, other: RowDigest) -> RowDigest:
        """Return the digest of the rows of both."""
        both = RowDigest(self.count + other.count)
        both._sum = (self._sum + other._sum) % (1 << 128)
        return both

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a digest; raise ValueError if it is invalid."""
        count, _, total = text.partition(":")
        digest = cls(int(count))
        digest._sum = int(total, 16)
        return digest

    def __str__(self) -> str:
        """Return the count and the sum as 32 hexadecimal digits."""
        return f"{self.count}:{self._sum:032X}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowDigest):
            return NotImplemented
        return (self.count, self._sum) == (other.count, other._sum)

    __hash__ = None  # type: ignore[assignment]  # it changes

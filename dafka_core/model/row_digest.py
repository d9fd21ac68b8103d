"""A digest of rows in any order: it shows if two writes contain the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import xxhash

from dafka_core.model.values import Values


@dataclass
class RowDigest:
    """The number of rows and the sum of their hashes, which does not depend on their order.

    128 bits reveal any changed, missing or duplicate row, but not a deliberate forgery.
    """

    count: int = 0
    total: int = 0

    def add(self, values: Values) -> Self:
        """Include some rows."""
        hashes = map(xxhash.xxh3_128_intdigest, values.to_list())
        self.count += len(values)
        self.total = (self.total + sum(hashes)) % (1 << 128)
        return self

    def __add__(self, other: RowDigest) -> RowDigest:
        """Return the digest of the rows of both."""
        return RowDigest(self.count + other.count, (self.total + other.total) % (1 << 128))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a digest; raise ValueError if it is invalid."""
        count, _, total = text.partition(":")
        return cls(int(count), int(total, 16))

    def __str__(self) -> str:
        """Return the count and the sum as 32 hexadecimal digits."""
        return f"{self.count}:{self.total:032X}"

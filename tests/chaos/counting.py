"""Input and output, compared as multisets."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

EXAMPLES = 3  # examples of each kind in a difference


class Difference(NamedTuple):
    """A difference.

    ``losses`` are missing in the output, ``doubles`` are there too often, ``strangers`` were never
    input. ``examples`` has some of them, with their kind.
    """

    losses: int
    doubles: int
    strangers: int
    examples: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.losses or self.doubles or self.strangers)

    def __str__(self) -> str:
        return (
            f"{self.losses} lost, {self.doubles} doubled, {self.strangers} never written: "
            + "; ".join(self.examples)
        )


def compare(
    required: Iterable[Hashable],
    found: Iterable[Hashable],
    allowed: Iterable[Hashable] | None = None,
) -> Difference:
    """Compare: all of ``required`` must be found, and nothing outside ``allowed``.

    Without ``allowed`` it is ``required``. With it, ``required`` are the acknowledged values of all
    that were sent.
    """
    must, got = Counter(required), Counter(found)
    may = must if allowed is None else Counter(allowed)
    lost = must - got
    extra = got - may
    strangers = Counter({value: count for value, count in extra.items() if value not in may})
    doubled = extra - strangers
    examples = tuple(
        f"{kind} {str(value)[:60]}: {must[value]} to {may[value]} were right, found {got[value]}"
        for kind, values in (("lost", lost), ("doubled", doubled), ("stranger", strangers))
        for value in list(values)[:EXAMPLES]
    )
    return Difference(lost.total(), doubled.total(), strangers.total(), examples)

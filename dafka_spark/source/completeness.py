"""Whether records are those asked for, all of them: of a source's reply, and of a range's rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dafka_core.kept_records import Records
from dafka_spark.errors import IncompleteBatchError, StoreLostDataError
from dafka_spark.source.range_planner import OffsetRange


class CompletenessCheck:
    """Sees that the rows of a range come in order and once each, and that none is missing.

    It does not know where they came from, so the last check, before Spark gets them, finds a
    mistake made anywhere before it.  ``lost`` has the offsets that ``failOnDataLoss`` lets a query
    do without, as they are found: no others may be missing.  ``name`` is for errors.
    """

    def __init__(
        self, wanted: OffsetRange, lost: Sequence[range] = (), name: str = "the whole range"
    ) -> None:
        self.position = wanted.start
        self._wanted = wanted
        self._lost = lost
        self._name = name

    def take(self, offset: int, rows: int) -> None:
        """Counts the next rows, the first of them at ``offset``, also those left out by ``where``.

        Raises:
            IncompleteBatchError: others were to come next.
        """
        self._pass_over_lost()
        if offset != self.position or offset + rows > self._wanted.end:
            why = f"{self._name}: rows are missing, came twice, or are more than were planned"
            raise incomplete(self._wanted, self.position, offset, why)
        self.position += rows

    def finish(self) -> None:
        """Raises ``IncompleteBatchError`` unless all rows have come."""
        self._pass_over_lost()
        if self.position != self._wanted.end:
            why = f"{self._name}: the rows end before what was planned"
            raise incomplete(self._wanted, self.position, None, why)

    def _pass_over_lost(self) -> None:
        for lost in self._lost:
            if lost.start == self.position:
                self.position = lost.stop


def checked_reply(name: str, asked: OffsetRange, batches: Iterable[Records]) -> Iterator[Records]:
    """The batches of the reply of the source with this name.

    Raises:
        StoreLostDataError: records are missing before others that came.
        IncompleteBatchError: other records came than those asked for, or too few.
    """
    check = CompletenessCheck(asked, name=name)
    for batch in batches:
        if batch.offset > check.position:
            why = f"the records of {name} do not go on where those before them ended"
            lost_end = min(batch.offset, asked.end)
            raise StoreLostDataError(
                *asked.tp, check.position, batch.offset, why, lost_end=lost_end
            )
        check.take(batch.offset, batch.end - batch.offset)
        yield batch
    check.finish()


def incomplete(
    wanted: OffsetRange, expected: int, found: int | None, why: str
) -> IncompleteBatchError:
    """The error of a range of which another offset came than the expected one; None: no more."""
    return IncompleteBatchError(
        *wanted.tp, wanted.start, wanted.end, expected=expected, found=found, why=why
    )

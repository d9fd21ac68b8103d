"""Whether records are those asked for: of one source's reply, and last of a range's rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dafka_core.records import RecordBatch
from dafka_spark.errors import IncompleteBatchError, StoreLostDataError
from dafka_spark.source.range_planner import OffsetRange


def checked_reply(
    source: str, asked: OffsetRange, batches: Iterable[RecordBatch]
) -> Iterator[RecordBatch]:
    """The batches of a reply, as long as they are the records asked for.

    Raises:
        StoreLostDataError: records are missing before others that came.
        IncompleteBatchError: other records came, or too few.
    """
    position = asked.start
    for batch in batches:
        if batch.offset > position:
            why = f"the records of {source} do not go on where those before them ended"
            lost_end = min(batch.offset, asked.end)
            raise StoreLostDataError(
                *asked.tp, position, available=batch.offset, why=why, lost_end=lost_end
            )
        if batch.offset < position or batch.end > asked.end:
            why = f"{source}: other records came than those asked for"
            raise incomplete(asked, position, batch.offset, why)
        position = batch.end
        yield batch
    if position < asked.end:
        why = f"{source}: the reply ends before what was asked for"
        raise incomplete(asked, position, None, why)


class CompletenessCheck:
    """The last look at a range before its rows go to Spark: all of them, each once, in order.

    It counts the rows and knows nothing of where they came from, so that it finds a mistake made
    anywhere before it.  ``lost`` has the offsets that ``failOnDataLoss`` lets a query do without,
    as they are found: the only ones that may be missing.
    """

    def __init__(self, wanted: OffsetRange, lost: Sequence[range]) -> None:
        self._wanted = wanted
        self._lost = lost
        self._position = wanted.start

    def take(self, offset: int, rows: int) -> None:
        """Counts rows that are about to be handed over, the first of them at ``offset``.

        Raises:
            IncompleteBatchError: they are not the next ones.
        """
        self._pass_over_lost()
        if offset != self._position or offset + rows > self._wanted.end:
            why = "rows are missing, came twice, or are more than were planned"
            raise incomplete(self._wanted, self._position, offset, why)
        self._position += rows

    def finish(self) -> None:
        """Raises ``IncompleteBatchError`` unless all rows have come."""
        self._pass_over_lost()
        if self._position != self._wanted.end:
            raise incomplete(
                self._wanted, self._position, None, "the rows end before what was planned"
            )

    def _pass_over_lost(self) -> None:
        for lost in self._lost:
            if lost.start == self._position:
                self._position = lost.stop


def incomplete(
    wanted: OffsetRange, expected: int, found: int | None, why: str
) -> IncompleteBatchError:
    """The error of a range of which another offset came than the expected one, or none."""
    return IncompleteBatchError(
        *wanted.tp, wanted.start, wanted.end, expected=expected, found=found, why=why
    )

"""The last look at a range before its rows go to Spark: all of them, each once, in order."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_spark.errors import IncompleteBatchError
from dafka_spark.source.range_planner import OffsetRange


class CompletenessCheck:
    """Counts the rows of one range.

    It knows nothing of where they came from, so that a mistake anywhere before it is found.
    ``lost`` are the offsets that ``failOnDataLoss`` lets a query do without, as they are found:
    the only ones that may be missing.
    """

    def __init__(self, wanted: OffsetRange, lost: Sequence[range]) -> None:
        self._wanted = wanted
        self._lost = lost
        self._at = wanted.start

    def take(self, offset: int, rows: int) -> None:
        """Rows are about to be handed over, the first of them at ``offset``.

        Raises:
            IncompleteBatchError: they are not the next ones.
        """
        self._leave_out()
        if offset != self._at:
            raise self._wrong(offset, "rows are missing, or came twice")
        if offset + rows > self._wanted.end:
            raise self._wrong(offset, f"{rows} rows came, which are more than were planned")
        self._at += rows

    def finish(self) -> None:
        """No more rows come.

        Raises:
            IncompleteBatchError: some should.
        """
        self._leave_out()
        if self._at != self._wanted.end:
            raise self._wrong(None, "the rows end before what was planned")

    def _leave_out(self) -> None:
        for lost in self._lost:
            if lost.start == self._at:
                self._at = lost.stop

    def _wrong(self, found: int | None, why: str) -> IncompleteBatchError:
        wanted = self._wanted
        return IncompleteBatchError(
            wanted.topic,
            wanted.partition,
            wanted.start,
            wanted.end,
            expected=self._at,
            found=found,
            why=why,
        )

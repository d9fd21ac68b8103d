"""Where a task gets its records from, and how it goes on elsewhere when that fails.

A range comes with the stores that were seen to have some of it.  Option ``fetch`` says how these
may be read: their files, where they are on this machine; by Arrow Flight; and, without any
store in particular, over the mesh.  Each of these sources is asked for what it is known to have,
from the record on that the one before it had reached.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from dafka_core.archive.archive_errors import ArchiveError
from dafka_core.epochs import NO_LIFE, EpochId
from dafka_core.errors import (
    DafkaError,
    DataLossError,
    HistoryChangedError,
    StoreUnreachableError,
)
from dafka_core.kept_records import Records
from dafka_core.records import PartitionInfo, merge_heads
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import (
    FetchError,
    IncompleteBatchError,
    RetentionAheadError,
    SourceLossError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.source.archive_source import ArchiveSource, sources_now
from dafka_spark.source.completeness import checked_reply, incomplete
from dafka_spark.source.data_loss import DataLossPolicy, classify, denial, replaced
from dafka_spark.source.range_planner import OffsetRange
from dafka_spark.source.record_sources import NotHereError, RecordSource

_log = logging.getLogger("dafka_spark")


Failures = list[tuple[RecordSource, DafkaError]]
"""The sources that have not given what they were asked for, and why."""


class RangeFetch:
    """The records of one range: complete and in order, from the sources that have them.

    Attributes:
        lost: the offsets that option ``failOnDataLoss`` has let the query do without, so far.
    """

    def __init__(
        self, wanted: OffsetRange, options: SourceOptions, sources: Sequence[RecordSource]
    ) -> None:
        self.lost: list[range] = []
        self._wanted = wanted
        self._options = options
        self._sources = sources
        self._has_mesh = any(source.known is None for source in sources)
        self._policy = DataLossPolicy(options)
        self._position = wanted.start
        self._denied_at: int | None = None
        self._looked_at: int | None = None
        self._archived: tuple[int, EpochId] = wanted.start, NO_LIFE
        """How far the archive was read, and the newest life that was known of it."""

    def batches(self) -> Iterator[Records]:
        """The records without those in ``lost``.

        Raises:
            SourceLossError: records are lost, and option ``failOnDataLoss`` is true.
            IncompleteBatchError: what came is not what was asked for.
            FetchError: no source that option ``fetch`` allows gave them for ``fetchTimeoutMs``.
            FetchTimeoutError: no node of the mesh sent them for ``fetchTimeoutMs``.
        """
        patience = Deadline(self._options.fetch_timeout_s)
        while self._position < self._wanted.end:
            begun = self._position
            failures = yield from self._round()
            if self._position > begun:
                # One source had the next records; the others may have those that follow.
                patience = Deadline(self._options.fetch_timeout_s)
            else:
                self._meet(failures, patience)

    def _round(self) -> Generator[Records, None, Failures]:
        begun, end = self._position, self._wanted.end
        failures: Failures = []
        idle: list[RecordSource] = []
        for source in self._sources:
            is_changed = any(isinstance(error, HistoryChangedError) for _, error in failures)
            if is_changed and isinstance(source, ArchiveSource):
                continue  # it has what was before
            stop = self._reach(source)
            if stop > self._position:
                yield from self._read(source, stop, failures)
            else:
                idle.append(source)
            if self._position >= end:
                return failures
        if self._position == begun and not self._has_mesh:
            # What was known may be old, and a record is lost only if every source lacks it.
            for source in idle:
                yield from self._read(source, end, failures)
        return failures

    def _reach(self, source: RecordSource) -> int:
        """The offset up to which to ask a source; the position reached: it is not asked."""
        position, end = self._position, self._wanted.end
        known, is_archive = source.known, isinstance(source, ArchiveSource)
        if known is not None and not is_archive:
            return min(known.stop, end) if position in known else position
        if known is not None and position not in known:
            return position
        # The mesh is slow: it is asked for no more than what the other sources do not have.  And
        # the archive, as it does not hear of newer histories, for no more than stores have not.
        others = (each for each in self._sources if each is not source and each.known)
        later = [each.known.start for each in others if each.known]
        return min([end, known.stop if known else end, *(at for at in later if at > position)])

    def _read(
        self, source: RecordSource, stop: int, failures: Failures
    ) -> Generator[Records, None, None]:
        begun = self._position
        asked = self._wanted.part(begun, stop)
        if self._archived[0] == begun and asked.after == NO_LIFE:
            asked = replace(asked, after=self._archived[1])
        try:
            for batch in checked_reply(source.name, asked, source.read(asked)):
                self._position = batch.end
                if isinstance(source, ArchiveSource):
                    self._archived = batch.end, source.life_before(batch.end)
                yield batch
        except DafkaError as error:
            if isinstance(error, DataLossError) and begun == self._position < error.wanted < stop:
                # It has sent nothing, as it lacks the end of the range: it may have the beginning.
                yield from self._read(source, error.wanted, failures)
                return
            failures.append((source, error))
            if source is not self._sources[-1] and not isinstance(error, NotHereError):
                text = "%s: %s; going on elsewhere from offset %d"
                _log.warning(text, source.name, error, self._position)

    def _meet(self, failures: Failures, patience: Deadline) -> None:
        """No source has given the next record: waits, fails, or leaves out what is lost."""
        position, wanted = self._position, self._wanted
        errors = [error for _, error in failures]
        for error in errors:
            if isinstance(error, HistoryChangedError):
                self._policy.fail_or_warn(replaced(error, position))
                # From here on, those that are the partition's now.
                self._wanted = replace(wanted, life=NO_LIFE, after=NO_LIFE)
                self._archived = position, NO_LIFE
                return
        if any(isinstance(error, ArchiveError) for error in errors):
            # What the archive has is not lost, and cannot be read.
            self._fail(failures)
        away = [error.store for error in errors if isinstance(error, StoreUnreachableError)]
        # The mesh comes last: it asks every store, and waits itself for those that come back.
        said = denial(errors[-1:] if self._has_mesh else errors, position, wanted.end)
        if said is not None and self._look_at_archive():
            return
        if said is None:
            waits = bool(away) and not patience.is_over
        else:
            waits = self._policy.waits(said, patience.waited_s)
        if waits and not self._has_mesh:
            patience.pause()
            return
        if said is None:
            self._fail(failures)
        loss = said if isinstance(said, SourceLossError) else None
        if loss is None:
            loss = classify(
                wanted.tp,
                position,
                wanted.end,
                self._held(),
                away=away[0] if away else "",
                waited_s=patience.waited_s,
            )
        if loss is None or loss.wanted > position:
            # The stores have the record now after all, or say one thing and do another.
            if self._denied_at == position:
                self._fail(failures, said)
            self._denied_at = position
            return
        loss = self._up_to_archived(loss)
        self._policy.fail_or_warn(loss)
        assert loss.lost_end is not None  # the range has an end
        self.lost.append(range(position, loss.lost_end))
        self._position = loss.lost_end

    def _look_at_archive(self) -> bool:
        """Sees what the archive has now; whether it has the next record.

        What stores have given up since the range was planned, it had before they did.
        """
        position, tp = self._position, self._wanted.tp
        if not self._options.archive or self._looked_at == position:
            return False
        self._looked_at = position
        archived = sources_now(self._options.archive, tp, position, self._wanted.end)
        others = [each for each in self._sources if not isinstance(each, ArchiveSource)]
        at = len(others) - self._has_mesh
        self._sources = [*others[:at], *archived, *others[at:]]
        return any(position in each.known for each in archived)

    def _up_to_archived(self, loss: SourceLossError) -> SourceLossError:
        """The same without what the archive has behind it: stores know nothing of that."""
        position, lost_end = self._position, loss.lost_end or 0
        archives = [each for each in self._sources if isinstance(each, ArchiveSource)]
        later = [s.known.start for s in archives if position < s.known.start < lost_end]
        if not later:
            return loss
        available = min(later)
        return RetentionAheadError(*self._wanted.tp, position, available, lost_end=available)

    def _held(self) -> PartitionInfo | None:
        infos: list[PartitionInfo] = []
        for source in self._sources:
            if isinstance(source, ArchiveSource) and source.known.stop <= self._position:
                continue  # it says nothing of what is behind it
            try:
                infos += source.heads(self._wanted.topic)
            except DafkaError as error:
                _log.warning("%s: %s", source.name, error)
        return merge_heads(infos).get(self._wanted.tp)

    def _fail(self, failures: Failures, denied: DataLossError | None = None) -> NoReturn:
        errors = [error for _, error in failures]
        if denied is not None and all(isinstance(error, DataLossError) for error in errors):
            why = f"stores say that they have it and do not give it ({denied})"
            raise incomplete(self._wanted, self._position, None, why) from denied
        for error in errors:
            if isinstance(error, IncompleteBatchError):
                raise error
        if self._has_mesh and len(errors) == 1:
            raise errors[0]
        tried = [f"{source.name}: {error}" for source, error in failures]
        wanted, fetch = self._wanted, self._options.fetch
        cause = errors[-1] if errors else None
        raise FetchError(*wanted.tp, self._position, wanted.end, fetch, tried) from cause

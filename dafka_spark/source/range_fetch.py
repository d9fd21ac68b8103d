"""Where a task gets its records from, and how it goes on elsewhere when that fails.

A range comes with the stores that were seen to have some of it.  Option ``fetch`` says which ways
to them are open: their logs, mapped, where they are on this machine; Arrow Flight; and, without
any store in particular, the mesh.  Each way is asked for what it is known to have, from the record
on that the one before it had reached.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from dafka_core.errors import DafkaError, DataLossError, StoreUnreachableError
from dafka_core.records import PartitionInfo, RecordBatch
from dafka_spark.cluster.deadline import Deadline
from dafka_spark.errors import (
    FetchError,
    IncompleteBatchError,
    RetentionAheadError,
    SourceLossError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.source.completeness import checked_reply, incomplete
from dafka_spark.source.data_loss import DataLossPolicy, judged
from dafka_spark.source.latest_offsets import furthest
from dafka_spark.source.range_planner import OffsetRange
from dafka_spark.source.record_sources import NotHereError, RecordSource

_log = logging.getLogger("dafka_spark")


class _Failure(NamedTuple):
    way: RecordSource
    error: DafkaError


class RangeFetch:
    """One range on its way: complete and in order, from wherever it can be had."""

    def __init__(
        self,
        wanted: OffsetRange,
        options: SourceOptions,
        ways: Sequence[RecordSource],
        *,
        times: bool,
    ) -> None:
        self.lost: list[range] = []
        """The offsets that option ``failOnDataLoss`` has let the query do without, so far."""
        self._wanted = wanted
        self._key = wanted.tp
        self._options = options
        self._ways = ways
        self._mesh = any(way.known is None for way in ways)
        self._times = times
        self._policy = DataLossPolicy(options.fail_on_data_loss)
        self._at = wanted.start
        self._patience = Deadline(options.fetch_timeout_s)
        self._denied = False

    def batches(self) -> Iterator[RecordBatch]:
        """The records, each offset seen to be there, or its loss met by ``failOnDataLoss``.

        Raises:
            SourceLossError: records are gone, and option ``failOnDataLoss`` is true.
            IncompleteBatchError: what came is not what was asked for.
            FetchError: no place that option ``fetch`` allows gave them for ``fetchTimeoutMs``.
            FetchTimeoutError: nobody in the mesh sent them for ``fetchTimeoutMs``.
        """
        self._patience = Deadline(self._options.fetch_timeout_s)
        while self._at < self._wanted.end:
            begun = self._at
            failures = yield from self._round()
            if self._at > begun:
                # Somebody had the next records; the others may have those that follow.
                self._patience, self._denied = Deadline(self._options.fetch_timeout_s), False
                continue
            loss = self._loss(failures)
            if loss is None:
                self._wait_or_fail(failures)
            elif not self._looks_again(loss):
                self._meet(loss, failures)

    def _round(self) -> Generator[RecordBatch, None, list[_Failure]]:
        """Asks every way for what it is known to have, then, if need be, for anything."""
        begun, end = self._at, self._wanted.end
        failures: list[_Failure] = []
        idle: list[RecordSource] = []
        for way in self._ways:
            stop = self._reach(way)
            if stop > self._at:
                yield from self._through(way, stop, failures)
            else:
                idle.append(way)
            if self._at >= end:
                return failures
        if self._at == begun and not self._mesh:
            # What was known may be old; and where nobody has the record, everybody must say so.
            for way in idle:
                yield from self._through(way, end, failures)
        return failures

    def _reach(self, way: RecordSource) -> int:
        """Up to where a way is to be asked from the record reached on; that itself: not at all."""
        at, end = self._at, self._wanted.end
        if way.known is not None:
            return min(way.known.stop, end) if at in way.known else at
        # The mesh is slow: it is asked for no more than those that are quick do not have.
        later = [way.known.start for way in self._ways if way.known and way.known.start > at]
        return min([*later, end])

    def _through(
        self, way: RecordSource, stop: int, failures: list[_Failure]
    ) -> Generator[RecordBatch, None, None]:
        begun = self._at
        try:
            yield from self._read(way, stop)
        except DataLossError as error:
            if begun == self._at < error.wanted < stop:
                # It says what it lacks before it sends anything, and has what lies before that.
                yield from self._through(way, error.wanted, failures)
            else:
                self._note(way, error, failures)
        except DafkaError as error:
            self._note(way, error, failures)

    def _read(self, way: RecordSource, stop: int) -> Iterator[RecordBatch]:
        asked = replace(self._wanted, start=self._at, end=stop)
        reply = way.read(asked, self._at, times=self._times)
        for batch in checked_reply(way.name, asked, reply):
            self._at = batch.end
            yield batch

    def _note(self, way: RecordSource, error: DafkaError, failures: list[_Failure]) -> None:
        failures.append(_Failure(way, error))
        if way is not self._ways[-1] and not isinstance(error, NotHereError):
            _log.warning("%s: %s; going on elsewhere from offset %d", way.name, error, self._at)

    def _loss(self, failures: Sequence[_Failure]) -> DataLossError | None:
        """What is lost, so far as all say it: the mesh, which asks everybody, or each place."""
        if not failures:
            return None
        losses = [error for _, error in failures if isinstance(error, DataLossError)]
        way, last = failures[-1]
        if way.known is None:
            return last if isinstance(last, DataLossError) else None
        if len(losses) < len(failures):
            return None
        later = [loss for loss in losses if self._is_before(loss)]
        if later:
            return min(later, key=lambda loss: loss.available or 0)
        return max(losses, key=lambda loss: loss.wanted)

    def _is_before(self, loss: DataLossError) -> bool:
        """Whether records are missing before others that are there, not at the end."""
        return loss.available is not None and loss.available > self._at

    def _looks_again(self, loss: DataLossError) -> bool:
        """A store that starts, or that catches up, ends too early for a moment."""
        if self._mesh or self._is_before(loss):
            return False
        return self._wait()

    def _wait(self) -> bool:
        """Waits a little, unless nothing has come for too long already."""
        if self._patience.is_over:
            return False
        self._patience.pause()
        return True

    def _meet(self, loss: DataLossError, failures: Sequence[_Failure]) -> None:
        """Finds out which kind of loss it is, and has ``failOnDataLoss`` decide."""
        at, end = self._at, self._wanted.end
        verdict = loss if isinstance(loss, SourceLossError) else None
        if verdict is None and loss.available is not None and self._is_before(loss):
            verdict = RetentionAheadError(*self._key, at, loss.available)
        if verdict is None:
            held = self._held()
            if held is not None and held.earliest <= at < held.end:
                # They have it now after all, or say one thing and do another.
                if self._denied:
                    raise self._denial(loss, failures) from loss
                self._denied = True
                return
            waited_s = self._patience.waited_s
            away = self._away(failures)
            verdict = judged(self._key, at, end, held, away=away, waited_s=waited_s)
        assert verdict is not None  # the record reached is neither held nor beyond the range
        stop = end
        if verdict.available is not None:
            stop = min(verdict.available, end)
        verdict.lost_end = stop
        self._policy.meet(verdict)
        self.lost.append(range(at, stop))
        self._at = stop

    def _denial(self, loss: DataLossError, failures: Sequence[_Failure]) -> DafkaError:
        if not all(isinstance(error, DataLossError) for _, error in failures):
            return self._failed(failures)
        why = f"stores say that they have it and do not give it ({loss})"
        return incomplete(self._wanted, self._at, None, why)

    def _held(self) -> PartitionInfo | None:
        """What all that can be asked have of the partition now."""
        infos = []
        for way in self._ways:
            try:
                info = way.held(self._wanted)
            except DafkaError as error:
                _log.warning("%s: %s", way.name, error)
                continue
            if info is not None:
                infos.append(info)
        return next(iter(furthest(infos)), None)

    def _away(self, failures: Sequence[_Failure]) -> str:
        """A store that was seen with the record reached and does not answer; empty: none."""
        for way, error in failures:
            known = way.known is not None and self._at in way.known
            if known and isinstance(error, StoreUnreachableError):
                return error.store
        return ""

    def _wait_or_fail(self, failures: Sequence[_Failure]) -> None:
        last = failures[-1].error if failures else None
        unreachable = any(isinstance(error, StoreUnreachableError) for _, error in failures)
        # The mesh has waited for stores that come back already.
        if unreachable and not self._mesh and self._wait():
            return
        for _, error in failures:
            if isinstance(error, IncompleteBatchError):
                raise error
        if last is not None and len(failures) == 1 and self._mesh:
            raise last
        raise self._failed(failures) from last

    def _failed(self, failures: Sequence[_Failure]) -> FetchError:
        return FetchError(
            *self._key,
            self._at,
            self._wanted.end,
            self._options.fetch,
            [f"{way.name}: {error}" for way, error in failures],
        )

"""Where a task gets its records from, and how it goes on elsewhere when that fails.

A range comes with the places that have it.  Option ``fetch`` says which ways to them are open:
their logs, mapped, where they are on this machine; Arrow Flight; and, without any place, the mesh.
Each way is asked from the record on that the one before it had reached.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from dafka_core.columnar.columns import RecordColumns
from dafka_core.columnar.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.columnar.places import Place
from dafka_core.errors import DafkaError, DataLossError, StoreUnreachableError
from dafka_spark import connections
from dafka_spark.dataloss import DataLossPolicy
from dafka_spark.errors import FetchError
from dafka_spark.joining import joined
from dafka_spark.options import AUTO, FLIGHT, LOCAL, MESH, SourceOptions
from dafka_spark.planning import OffsetRange

RETRY_S: Final = 0.2
"""Between rounds, when nobody can be reached and there is no mesh that would wait for them."""

_log = logging.getLogger("dafka_spark")


class Way(Protocol):
    """One place, and how it is read."""

    @property
    def name(self) -> str:
        """Which place, and how it is read; for errors."""

    def read(self, wanted: OffsetRange, start: int, *, times: bool) -> Iterator[RecordColumns]:
        """The records of a range from ``start`` on; ``times`` says whether theirs are needed."""


class NotHereError(DafkaError):
    """A log that this process cannot map: no failure, the next way is taken."""


@dataclass(frozen=True, slots=True)
class LocalWay:
    """The log of a store on this machine, with no server in between."""

    place: Place
    options: SourceOptions

    @property
    def name(self) -> str:
        """Which log."""
        return f"the log of store {self.place.store}"

    def read(self, wanted: OffsetRange, start: int, *, times: bool) -> Iterator[RecordColumns]:
        """See ``Way``; raises ``NotHereError`` where the log cannot be mapped."""
        with connections.lend_logs() as logs:
            log = logs.open(self.place)
            if log is None:
                raise NotHereError(self._why_not())
            yield from log.read(
                wanted.topic,
                wanted.partition,
                start,
                wanted.end,
                times=times,
                max_records=self.options.max_records_per_batch,
                max_bytes=self.options.max_bytes_per_batch,
            )

    def _why_not(self) -> str:
        place = self.place
        if not place.directory:
            return "the store does not say where it is"
        if not place.here:
            return "it is on another machine"
        return (
            f"this process cannot read {place.directory}, or the store has been started anew there"
        )


@dataclass(frozen=True, slots=True)
class FlightWay:
    """A store's Arrow Flight server."""

    place: Place
    options: SourceOptions

    @property
    def name(self) -> str:
        """Which store."""
        return f"store {self.place.store} by Arrow Flight"

    def read(self, wanted: OffsetRange, start: int, *, times: bool) -> Iterator[RecordColumns]:
        """See ``Way``."""
        with connections.lend_client(self.place) as client:
            yield from client.read(
                wanted.topic,
                wanted.partition,
                start,
                wanted.end,
                times=times,
                # A store sends no more than a block at a time.
                max_records=min(self.options.max_records_per_batch, MAX_BATCH_RECORDS),
                max_bytes=min(self.options.max_bytes_per_batch, MAX_BATCH_BYTES),
                timeout_s=self.options.fetch_timeout_s,
            )


@dataclass(frozen=True, slots=True)
class MeshWay:
    """Whoever in the mesh has the records."""

    connect: connections.Connect
    options: SourceOptions

    @property
    def name(self) -> str:
        """Nobody in particular."""
        return "the mesh"

    def read(self, wanted: OffsetRange, start: int, *, times: bool) -> Iterator[RecordColumns]:
        """See ``Way``."""
        options = self.options
        rest = (wanted.topic, wanted.partition, start, wanted.end)
        with self.connect(options.via) as source:
            written = source.times(*rest, timeout_s=options.fetch_timeout_s) if times else None
            runs = source.read(*rest, timeout_s=options.fetch_timeout_s)
            yield from joined(
                runs, written, options.max_records_per_batch, options.max_bytes_per_batch
            )


def ways(
    places: Sequence[Place], options: SourceOptions, connect: connections.Connect
) -> list[Way]:
    """The ways that option ``fetch`` allows, the best one first."""
    found: list[Way] = []
    if options.fetch in (AUTO, LOCAL):
        found.extend(LocalWay(place, options) for place in places)
    if options.fetch in (AUTO, FLIGHT):
        found.extend(FlightWay(place, options) for place in places)
    if options.fetch in (AUTO, MESH):
        found.append(MeshWay(connect, options))
    return found


class Fetch:
    """One range on its way: complete and in order, from wherever it can be had."""

    def __init__(
        self, wanted: OffsetRange, options: SourceOptions, ways: Sequence[Way], *, times: bool
    ) -> None:
        self._wanted = wanted
        self._options = options
        self._ways = ways
        self._times = times
        self._policy = DataLossPolicy(options.fail_on_data_loss)
        self._at = wanted.start

    def columns(self) -> Iterator[RecordColumns]:
        """The records, each offset seen to be there, or its loss met by ``failOnDataLoss``.

        Raises:
            DataLossError: records are gone, and option ``failOnDataLoss`` is true.
            FetchError: no place that option ``fetch`` allows gave them for ``fetchTimeoutMs``.
            FetchTimeoutError: nobody in the mesh sent them for ``fetchTimeoutMs``.
        """
        progress_at = time.monotonic()
        while self._at < self._wanted.end:
            begun = self._at
            failures: list[tuple[Way, DafkaError]] = []
            for way in self._ways:
                try:
                    yield from self._through(way)
                except DafkaError as error:
                    failures.append((way, error))
                    self._note(way, error)
                if self._at >= self._wanted.end:
                    return
            if self._at > begun:
                # Somebody had the next records; the others may have those that follow.
                progress_at = time.monotonic()
                continue
            loss = _loss(failures)
            if loss is None:
                self._wait_or_fail(failures, progress_at)
                continue
            self._policy.meet(loss)
            if loss.available is not None and loss.available > self._at:
                self._at = loss.available
            else:
                # What there is up to the loss, which may be nothing.
                self._wanted = replace(self._wanted, end=max(loss.wanted, self._at))

    def _through(self, way: Way) -> Iterator[RecordColumns]:
        wanted = self._wanted
        for columns in way.read(wanted, self._at, times=self._times):
            if columns.offset != self._at or columns.end > wanted.end:
                raise self._gap(columns.offset)
            self._at = columns.end
            yield columns
        if self._at < wanted.end:
            raise self._gap(None)

    def _gap(self, found: int | None) -> DataLossError:
        why = "the reply does not go on where the one before it ended"
        return DataLossError(self._wanted.topic, self._wanted.partition, self._at, found, why)

    def _note(self, way: Way, error: DafkaError) -> None:
        if way is not self._ways[-1] and not isinstance(error, NotHereError):
            _log.warning("%s: %s; going on elsewhere from offset %d", way.name, error, self._at)

    def _wait_or_fail(self, failures: Sequence[tuple[Way, DafkaError]], progress_at: float) -> None:
        last = failures[-1][1] if failures else None
        waited_s = time.monotonic() - progress_at
        # The mesh has waited for stores that come back already.
        mesh = any(isinstance(way, MeshWay) for way in self._ways)
        unreachable = any(isinstance(error, StoreUnreachableError) for _, error in failures)
        if unreachable and not mesh and waited_s < self._options.fetch_timeout_s:
            time.sleep(RETRY_S)
            return
        if last is not None and len(failures) == 1 and mesh:
            raise last
        raise FetchError(
            self._wanted.topic,
            self._wanted.partition,
            self._at,
            self._wanted.end,
            self._options.fetch,
            [f"{way.name}: {error}" for way, error in failures],
        ) from last


def _loss(failures: Sequence[tuple[Way, DafkaError]]) -> DataLossError | None:
    """What is lost for certain: the mesh says so, which asks everybody, or each place does."""
    if not failures:
        return None
    losses = [error for _, error in failures if isinstance(error, DataLossError)]
    way, last = failures[-1]
    if isinstance(way, MeshWay):
        return last if isinstance(last, DataLossError) else None
    if len(losses) < len(failures):
        return None
    later = [loss for loss in losses if loss.available is not None and loss.available > loss.wanted]
    if later:
        return min(later, key=lambda loss: loss.available or 0)
    return max(losses, key=lambda loss: loss.wanted)

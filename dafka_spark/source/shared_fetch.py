"""The records of a task's ranges: of many small ones with one request for each store.

A request, an answer and what both sides do for them cost a few milliseconds, as much as some
thousand records.  So a task that has several ranges asks each store, in one request, for all those
of which it was seen to have everything.  What does not come so, because the store is gone or has
lost records, is asked for at the next store, and in the end range by range (``range_fetch``), which
finds out what it means.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dafka_core.epochs import NO_LIFE
from dafka_core.errors import DafkaError
from dafka_core.flight.many_ranges import AskedRange, Part
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.kept_records import Records
from dafka_core.records import RecordBatch
from dafka_spark.cluster import connections
from dafka_spark.options import LOCAL, MESH, SourceOptions
from dafka_spark.source.archive_source import archive_sources
from dafka_spark.source.completeness import CompletenessCheck
from dafka_spark.source.range_fetch import RangeFetch
from dafka_spark.source.range_planner import OffsetRange
from dafka_spark.source.record_sources import open_sources

_log = logging.getLogger("dafka_spark")


class SharedFetch:
    """The records of ranges: each range's complete and in order.

    Args:
        times: whether those of the records are needed.
    """

    def __init__(
        self,
        ranges: Sequence[OffsetRange],
        options: SourceOptions,
        connect: connections.Connect,
        *,
        times: bool,
    ) -> None:
        self._ranges = ranges
        self._options = options
        self._connect = connect
        self._times = times
        self._left = dict(enumerate(ranges))
        """What has not come yet of each range, by its number; those without a record are not in."""
        self._failed: set[StoreLocation] = set()

    def batches(self) -> Iterator[Records]:
        """The records; raises what ``RangeFetch.batches`` raises."""
        if self._options.fetch != MESH and len(self._ranges) > 1:
            for choice in range(max(len(each.held) for each in self._ranges)):
                for location, numbers in self._by_store(choice).items():
                    if len(numbers) > 1 and location not in self._failed:
                        yield from self._ask(location, numbers)
        for _, wanted in sorted(self._left.items(), key=operator.itemgetter(0)):
            # Who did not answer for all of them is asked last.
            held = sorted(wanted.held, key=lambda each: each.location in self._failed)
            yield from self._alone(replace(wanted, held=tuple(held)))

    def _by_store(self, choice: int) -> dict[StoreLocation, list[int]]:
        stores: dict[StoreLocation, list[int]] = {}
        for number, wanted in sorted(self._left.items(), key=operator.itemgetter(0)):
            held = wanted.held[choice : choice + 1]
            if held and held[0].earliest <= wanted.start and wanted.end <= held[0].end:
                stores.setdefault(held[0].location, []).append(number)
        return stores

    def _ask(self, location: StoreLocation, numbers: Sequence[int]) -> Iterator[RecordBatch]:
        asked = [_asked(self._left[number]) for number in numbers]
        checks = [CompletenessCheck(self._left[number]) for number in numbers]
        try:
            with connections.lend_client(location, self._options.keys) as client:
                for parts in self._parts(client, asked):
                    for number, batch in parts:
                        checks[number].take(batch.offset, batch.count)
                        self._came(numbers[number], batch)
                        yield batch
        except DafkaError as error:
            self._failed.add(location)
            _log.warning("%s; going on elsewhere", error)

    def _parts(self, client: StoreClient, asked: Sequence[AskedRange]) -> Iterator[list[Part]]:
        options = self._options
        most_records, most_bytes = options.max_records_per_batch, options.max_bytes_per_batch
        sizes = {"max_records": most_records, "max_bytes": most_bytes}
        if options.fetch != LOCAL:
            timeout_s = options.fetch_timeout_s
            yield from client.read_many(asked, times=self._times, timeout_s=timeout_s, **sizes)
            return
        with connections.lend_logs() as logs:
            log = logs.open(client.location)
            if log is not None:  # else each range says why it cannot be read
                yield from log.read_many(client, asked, **sizes)

    def _came(self, number: int, batch: RecordBatch) -> None:
        wanted = self._left.pop(number)
        if batch.end < wanted.end:
            self._left[number] = wanted.part(batch.end, wanted.end)

    def _alone(self, wanted: OffsetRange) -> Iterator[Records]:
        sources = open_sources(
            wanted.held,
            self._options,
            self._connect,
            times=self._times,
            archived=archive_sources(self._options.archive, wanted.tp, wanted.archived),
        )
        fetch = RangeFetch(wanted, self._options, sources)
        completeness = CompletenessCheck(wanted, fetch.lost)
        for batch in fetch.batches():
            completeness.take(batch.offset, batch.end - batch.offset)
            yield batch
        completeness.finish()


def _asked(wanted: OffsetRange) -> AskedRange:
    lives = [None if life == NO_LIFE else life for life in (wanted.life, wanted.after)]
    return AskedRange(*wanted.tp, wanted.start, wanted.end, *lives)

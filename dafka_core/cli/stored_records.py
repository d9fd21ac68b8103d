"""The records that stores have, in bulk: by Arrow Flight, or over the mesh without it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from dafka_core.cli import output, store_clients
from dafka_core.cli.flags import of_table
from dafka_core.config.node_options import ReaderOptions
from dafka_core.errors import DataLossError, InvalidRequestError, StoreUnreachableError
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import (
    UNKNOWN_US,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    merge_heads,
    times_between,
)

if TYPE_CHECKING:
    from dafka_core import Reader
    from dafka_core.flight.store_client import StoreClient

_BATCH: Final[Mapping[str, Any]] = {"max_records": 50_000, "max_bytes": 8 << 20}


class _Holder(NamedTuple):
    client: StoreClient
    info: PartitionInfo


@dataclass(frozen=True)
class Range:
    """Records of a partition to be read: offsets ``start`` up to ``end`` (exclusive)."""

    info: PartitionInfo
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many there are."""
        return max(self.end - self.start, 0)


class StoredRecords:
    """What stores have, and the records of it.

    Args:
        clients: of the stores that serve Arrow Flight.
        reader: for stores that do not, and where no client has the records; None without a mesh.
        timeout_s: how long to wait for each answer.
    """

    def __init__(
        self, clients: Sequence[StoreClient], reader: Reader | None, timeout_s: float
    ) -> None:
        self._clients = clients
        self._reader = reader
        self._timeout_s = timeout_s
        self._holders: dict[TopicPartition, list[_Holder]] = defaultdict(list)

    @property
    def stores(self) -> set[str]:
        """The addresses of the stores."""
        others = () if self._reader is None else self._reader.stores()
        return {*others, *(client.location.store for client in self._clients)}

    def partitions(self, topics: Collection[str] | None) -> list[PartitionInfo]:
        """What the stores have of these topics, or of all, together.

        Raises:
            StoreUnreachableError: none answers; others that do not are named.
        """
        self._holders.clear()
        failures: list[StoreUnreachableError] = []
        for client in self._clients:
            try:
                found = client.heads(topics, timeout_s=self._timeout_s)
            except StoreUnreachableError as error:
                failures.append(error)
                continue
            for info in found:
                self._holders[info.tp].append(_Holder(client, info))
        if failures and len(failures) == len(self._clients) and self._reader is None:
            raise failures[0]
        for failure in failures:
            output.complain(f"{failure}: what only it has is missing")
        infos = [holder.info for each in self._holders.values() for holder in each]
        if self._reader is not None:
            infos += self._reader.partitions(topics, timeout_s=self._timeout_s)
        return [*merge_heads(infos).values()]

    def of_topic(self, topic: str, chosen: Collection[str] = ()) -> list[PartitionInfo]:
        """A topic's partitions, or those that are chosen.

        Raises:
            DafkaError: no store has the topic, or one of these; says which there are.
        """
        found = self.partitions([topic])
        return store_clients.chosen(found, topic, chosen, lambda: self.partitions(None))

    def offsets_at(self, infos: Iterable[PartitionInfo], time_us: int) -> dict[TopicPartition, int]:
        """Of each partition the first offset of that time or later; its end if there is none."""
        infos = [*infos]
        found: dict[TopicPartition, list[int]] = defaultdict(list)
        for client in self._clients:
            asked = [i.tp for i in infos if any(h.client is client for h in self._holders[i.tp])]
            times = [(*tp, time_us) for tp in asked]
            offsets = client.offset_for_times(times, timeout_s=self._timeout_s) if times else []
            for tp, offset in zip(asked, offsets, strict=True):
                if offset is not None:
                    found[tp].append(offset)
        for info in infos:
            if self._reader is not None and not self._holders[info.tp]:
                tp, start, end = info.tp, info.earliest, info.end
                written = self._reader.times(tp, start, end, timeout_s=self._timeout_s)
                found[tp] += [offset for offset, at_us in written if at_us >= time_us][:1]
        return {each.tp: min(found[each.tp], default=each.end) for each in infos}

    def read(self, wanted: Range) -> Iterator[RecordBatch]:
        """The records of a range, in order and complete, with their timestamps.

        Raises:
            DataLossError: stores have not got all of them any more.
            StoreUnreachableError: the stores that have them do not answer.
        """
        tp, offset, failure = wanted.info.tp, wanted.start, None
        life = None if wanted.info.life == NO_LIFE else wanted.info.life
        left = sorted(self._holders[tp], key=lambda each: -each.info.end)
        while offset < wanted.end:
            fitting = (each for each in left if each.info.earliest <= offset < each.info.end)
            if (holder := next(fitting, None)) is None:
                break
            left.remove(holder)
            client, info = holder
            end = min(info.end, wanted.end)
            try:
                for batch in client.read(
                    tp, offset, end, life=life, times=True, timeout_s=self._timeout_s, **_BATCH
                ):
                    offset = batch.end
                    yield batch
            except (StoreUnreachableError, DataLossError, InvalidRequestError) as error:
                failure = error
        if offset < wanted.end and self._reader is not None:
            yield from self._over_mesh(self._reader, tp, offset, wanted.end)
        elif offset < wanted.end:
            why = f"no store has all up to {wanted.end}"
            raise failure or DataLossError(*tp, offset, None, why)

    def _over_mesh(
        self, reader: Reader, tp: TopicPartition, start: int, end: int
    ) -> Iterator[RecordBatch]:
        written = reader.times(tp, start, end, timeout_s=self._timeout_s)
        table = np.array([(0, UNKNOWN_US), *written], np.int64)
        counts = np.diff(table[:, 0].clip(start, end), append=end)
        times = np.column_stack((counts, table[:, 1]))
        for batch in reader.read(tp, start, end, timeout_s=self._timeout_s):
            of_batch = times_between(times, batch.offset - start, batch.end - start)
            yield replace(batch, times=of_batch)


@contextmanager
def opened(timeout_s: float, uris: str, options: Mapping[str, Any]) -> Iterator[StoredRecords]:
    """The stores' records, as long as the context lasts; raises as ``store_clients.clients``."""
    with ExitStack() as stack:
        reader: Reader | None = None
        if uris:
            clients = store_clients.clients(timeout_s, uris, options)
        else:
            from dafka_core import Reader

            reader = stack.enter_context(Reader(**of_table(ReaderOptions, options)))
            clients, reader = store_clients.clients_of(reader, timeout_s)
        for client in clients:
            stack.enter_context(client)
        yield StoredRecords(clients, reader, timeout_s)

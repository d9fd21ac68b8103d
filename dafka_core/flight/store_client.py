"""One store, asked over Arrow Flight."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from pyarrow import flight

from dafka_core.config.security_options import NO_KEYS, KeyFiles
from dafka_core.errors import ClosedError, ConfigError, StoreUnreachableError
from dafka_core.flight import client_get, grpc_workarounds, limits, requests
from dafka_core.flight.client_keys import ClientKeys
from dafka_core.flight.client_put import PutStream
from dafka_core.flight.columns import VALUE
from dafka_core.flight.flight_errors import FLIGHT_ERRORS, translated, translating
from dafka_core.flight.grpc_workarounds import LOST_MS, CallDeadline, Watchdog
from dafka_core.flight.json_messages import (
    Digests,
    Done,
    DurableEnd,
    Heads,
    HeadsSince,
    LeaseGranted,
    LeasesGranted,
    Offsets,
    PartitionFacts,
    RecordSizes,
    SpaceUsed,
    Staged,
    TransactionStates,
)
from dafka_core.flight.requests import AskedRange, GetManyRequest, LeaseManyRequest, Part
from dafka_core.flight.store_location import StoreLocation, host_of, path_of
from dafka_core.model.epochs import EpochId
from dafka_core.model.json_message import JsonMessage
from dafka_core.model.log_entries import Discard
from dafka_core.model.records import (
    NO_VERSION,
    PartitionInfo,
    RecordBatch,
    StagedPartition,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.model.row_digest import RowDigest
from dafka_core.system.closing import ProcessBound

WAIT_MARGIN_S: Final = 5.0
"""How much later than asked for the answer to a wait may come."""

A = TypeVar("A", bound=JsonMessage)
T = TypeVar("T")


class StoreClient(ProcessBound):
    """A store's bulk service.  Thread-safe; connects when it is first used.

    Every call raises StoreUnreachableError when the store does not answer, or not in time,
    ClosedError after ``close``, and InvalidRequestError for an argument that it would refuse.

    Args:
        location: where it is.  Its socket is used when it is on this machine, else TCP.
        keys: with them it asks by TLS, and stores only that have one of the keys.

    Raises:
        ConfigError: none of the location's URIs, or a key, can be used.
    """

    def __init__(self, location: StoreLocation, keys: KeyFiles = NO_KEYS) -> None:
        self.location = location
        self._keys, self._trusted = ClientKeys.of(keys), b""
        uris = location.locations
        self._tcp = next((each for each in uris if host_of(each)), None)
        self._unix = next((each for each in uris if path_of(each)), None) if location.here else None
        if self._tcp is None and self._unix is None:
            raise ConfigError("locations", uris, "must have one like grpc://HOST:PORT")
        self._lock = threading.Lock()
        self._watchdog = Watchdog()
        self._client: flight.FlightClient | None = None
        self._closed = False
        self.uri = ""
        """Where it is connected to."""

    def describe(self, *, timeout_s: float) -> StoreLocation:
        """The store's location, with everything that it alone knows."""
        return self.ask(StoreLocation, timeout_s, requests.DescribeRequest())[0]

    def stores(self, *, timeout_s: float) -> list[StoreLocation]:
        """The stores that it knows of, itself included."""
        return self.ask(StoreLocation, timeout_s, requests.StoresRequest())

    def heads(self, topics: Collection[str] | None, *, timeout_s: float) -> list[PartitionInfo]:
        """What it holds, of these topics or of all (None)."""
        parts = [None] if topics is None else limits.parts(list(topics), limits.MAX_NAMES)
        answers = self.ask(Heads, timeout_s, *map(requests.HeadsRequest, parts))
        return [head for answer in answers for head in answer.heads]

    def facts(self, topic: str | None, *, timeout_s: float) -> list[PartitionFacts]:
        """What the partitions of a topic, or all, take and when they were written."""
        with self._asking(timeout_s) as (client, options):
            found = client.list_flights(requests.Criteria(topic).packed(), options)
            return [PartitionFacts.parse(each.app_metadata) for each in found]

    def watch(
        self, topics: Collection[str] | None, cursor: str, *, wait_s: float, timeout_s: float
    ) -> HeadsSince:
        """What of these topics, at most 10,000, or of all has changed since an answer's cursor.

        Without one it is all that the store holds of them.  It waits ``wait_s`` seconds at most
        until something has changed; the answer may be up to ``timeout_s`` later.
        """
        request = requests.WatchRequest(wait_s, None if topics is None else tuple(topics), cursor)
        answers = self.ask(HeadsSince, wait_s + timeout_s, request)
        heads = tuple(head for answer in answers for head in answer.heads)
        return replace(answers[-1], heads=heads)

    def offset_for_times(
        self, times: Sequence[tuple[str, str, int]], *, timeout_s: float
    ) -> list[int | None]:
        """The first offsets stored at a time or later; None where there is none.

        ``times`` are triples of topic, partition and microseconds since the epoch UTC.
        """
        parts = limits.parts(times, limits.MAX_TIMES)
        answers = self.ask(Offsets, timeout_s, *map(requests.OffsetsRequest, parts))
        return self._complete([each for answer in answers for each in answer.offsets], times)

    def record_sizes(self, ranges: Sequence[AskedRange], *, timeout_s: float) -> RecordSizes:
        """About how many bytes the records of up to 1,000 ranges take, in their order."""
        return self.ask(RecordSizes, timeout_s, requests.SizesRequest(tuple(ranges)))[0]

    def clock_us(self, *, timeout_s: float) -> int:
        """Return the store's clock, in microseconds since the epoch UTC."""
        return self.ask(Offsets, timeout_s, requests.OffsetsRequest(()))[0].now_us

    def wait(
        self,
        tp: TopicPartition,
        end: int,
        *,
        transaction: Transaction | None = None,
        timeout_s: float,
    ) -> int:
        """Waits until the store has the partition's records up to ``end`` on disk.

        With a ``transaction``, which ends there or before, the store then also has it, or a newer
        one, as the partition's last.  Returns how far it has the records, which is less than
        ``end`` when ``timeout_s`` seconds have passed.
        """
        request = requests.WaitRequest(*tp, end, timeout_s, transaction)
        return self.ask(DurableEnd, timeout_s + WAIT_MARGIN_S, request)[0].end

    def lease(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        life: EpochId | None = None,
        after: EpochId | None = None,
        done: str = "",
        timeout_s: float,
    ) -> LeaseGranted:
        """Where in the store's file the first of these records lie; see ``LocalLog``.

        It ends the lease ``done``, if there is one, and with ``start`` = ``end`` gives none.
        Lives are as those of ``read``, and so is what it raises.
        """
        request = requests.LeaseRequest(*tp, start, end, done, life=life, after=after)
        return self.ask(LeaseGranted, timeout_s, request)[0]

    def lease_many(
        self, ranges: Sequence[AskedRange], done: str, timeout_s: float
    ) -> LeasesGranted:
        """The same of up to 1,000 ranges, or the first of them, without those that are not held."""
        return self.ask(LeasesGranted, timeout_s, LeaseManyRequest(tuple(ranges), done))[0]

    def space(self, *, timeout_s: float) -> SpaceUsed:
        """What its file takes, and the leases that readers have."""
        return self.ask(SpaceUsed, timeout_s, requests.SpaceRequest())[0]

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        life: EpochId | None = None,
        after: EpochId | None = None,
        times: bool,
        max_records: int,
        max_bytes: int,
        timeout_s: float,
    ) -> Generator[RecordBatch]:
        """The records from ``start`` up to ``end`` (exclusive), in order and complete.

        Each batch has at most ``max_records``, and at most ``max_bytes`` of values unless it is
        one record.  Closing the generator ends the call.

        With ``life``, the newest of the partition's producer that the caller has heard of, the
        records are those of a history that goes on from its.  With ``after``, the one it had heard
        of when it read the records before ``start``, those are before ``start`` still.

        Raises:
            InvalidRequestError: an argument cannot be used; at once.
            DataLossError: the store does not hold all of the range.
            HistoryChangedError: a newer producer has taken over from ``life`` or ``after``.
            StoreUnreachableError: the connection is lost, or nothing came for ``timeout_s``
                seconds; what was handed out is good.
        """
        wanted = requests.GetRequest(*tp, start, end, (VALUE,), times, max_records, max_bytes)
        request = replace(wanted, life=life, after=after, store=self._store).fitted()
        return self.get(request.packed(), partial(client_get.range_records, request), timeout_s)

    def read_many(
        self,
        ranges: Sequence[AskedRange],
        *,
        times: bool,
        max_records: int,
        max_bytes: int,
        timeout_s: float,
    ) -> Generator[list[Part]]:
        """The records of up to 1,000 ranges, one after the other, with one request.

        Batches are as large as those of ``read``.  Each range's records are in order and without a
        hole from its start on.  Those of a range that the store lacks in part, or has of another
        history, may be too few, or none: ``read`` says why, and raises the same.
        """
        wanted = GetManyRequest(tuple(ranges), (VALUE,), times, max_records, max_bytes)
        request = replace(wanted, store=self._store).fitted()
        return self.get(request.packed(), partial(client_get.many_records, request), timeout_s)

    def transaction_states(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float
    ) -> list[TransactionState]:
        """How far these partitions and their transactions are; zeros if they are unknown."""
        asked = map(requests.TransactionsRequest, limits.parts(partitions, limits.MAX_TRANSACTIONS))
        answers = self.ask(TransactionStates, timeout_s, *asked)
        return self._complete([x for answer in answers for x in answer.transactions], partitions)

    def commit(self, transactions: Sequence[StagedTransaction], *, timeout_s: float) -> None:
        """Makes what was staged visible: all transactions, at most 10,000, at once, or nothing.

        They are on disk when this returns.  Where no answer came it may be repeated: what is
        committed already remains so.

        Raises:
            FencedError: an attempt has not (any more) staged what is to be committed.
            OffsetConflictError: a transaction does not begin at its partition's end.
        """
        self.ask(Done, timeout_s, requests.CommitRequest(tuple(transactions)))

    def digests(
        self, ranges: Sequence[tuple[str, str, str, int, int]], *, timeout_s: float
    ) -> list[RowDigest]:
        """Return the digest of each range: topic, partition, attempt, start, end (exclusive).

        Rows that the attempt has staged count; an empty attempt means those that readers see.

        Raises:
            DataLossError: the store does not hold all of a range, or not any more.
            FencedError: another attempt has taken the place of the one that is named.
        """
        asked = map(requests.DigestsRequest, limits.parts(ranges, limits.MAX_TRANSACTIONS))
        answers = self.ask(Digests, timeout_s, *asked)
        found = [RowDigest.parse(text) for answer in answers for text in answer.digests]
        return self._complete(found, ranges)

    def forget(self, store: str, *, timeout_s: float) -> None:
        """Has it forget another store, which is gone for ever, until that one comes again."""
        self.ask(Done, timeout_s, requests.ForgetRequest(store))

    def staged(self, *, timeout_s: float) -> list[StagedPartition]:
        """What is staged at the store, of every partition that has some."""
        answers = self.ask(Staged, timeout_s, requests.StagedRequest())
        return [each for answer in answers for each in answer.staged]

    def discard(self, discards: Sequence[Discard], *, timeout_s: float) -> None:
        """Gives up what attempts have staged; not what others have."""
        rows = tuple((*each.tp, each.attempt) for each in discards)
        self.ask(Done, timeout_s, requests.DiscardRequest(rows))

    def put(
        self,
        tp: TopicPartition,
        start: int,
        *,
        attempt: str = "",
        version: int = NO_VERSION,
        waited_s: float = 0.0,
        timeout_s: float,
    ) -> PutStream:
        """Records to be appended to a partition that ends at ``start``; see ``PutStream``.

        With an ``attempt`` (32 upper-case hexadecimal digits, its own) they are staged, for the
        transaction of that ``version`` if it has one: no reader sees them until ``commit``.
        ``start`` is then the partition's end, or that of what the same attempt has staged.

        ``timeout_s`` is how long a write may wait for the store without progress, and ``waited_s``
        how long one has waited before for one's turn (``StoreBusyError``).
        """
        request = requests.PutRequest(
            *tp, start, attempt, version, min(waited_s, limits.MAX_WAIT_S), store=self._store
        ).checked()
        call = self._deadline(timeout_s, self._break)
        return PutStream(self._connected(), request, call, self.uri, self._keys)

    def close(self) -> None:
        """Disconnects; what goes on ends with an error.  May be repeated."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        self._watchdog.close()
        if client is not None:
            client.close()

    @property
    def _store(self) -> str:
        return self.location.store

    def get(self, ticket: bytes, records: client_get.Records[T], timeout_s: float) -> Generator[T]:
        """What is made of the batches of a get."""
        client = self._connected()
        stream: Any = None

        def give_up() -> None:
            self._break() if stream is None else stream.cancel()

        with self._deadline(timeout_s, give_up).start() as call:
            try:
                call.wait()
                stream = client.do_get(flight.Ticket(ticket), self._keys.call_options())
                yield from records(client_get.chunks(stream, call))
            except (*FLIGHT_ERRORS, ValueError) as error:
                if self._closed:
                    raise ClosedError("store's client") from error
                raise call.translated(error, self._store) from error
            finally:
                if stream is not None:
                    stream.cancel()

    def ask(self, kind: type[A], timeout_s: float, *asked: requests.ActionRequest) -> list[A]:
        """What the store answers, one request after the other; at least one answer for each."""
        answers: list[A] = []
        for request in asked:
            body = replace(request, store=self._store).checked().packed()
            with self._asking(timeout_s) as (client, options):
                found = list(client.do_action(flight.Action(request.action, body), options))
                answers += [kind.parse(each.body.to_pybytes()) for each in found]
        if len(answers) < len(asked):
            raise StoreUnreachableError(self._store, "it gave no answer")
        return answers

    @contextmanager
    def _asking(self, timeout_s: float) -> Iterator[tuple[flight.FlightClient, Any]]:
        client = self._connected()
        with translating(self._store, timeout_s), self._watched(timeout_s):
            yield client, self._keys.call_options(timeout_s)

    def _complete(self, found: list[T], asked: Sequence[object]) -> list[T]:
        if len(found) != len(asked):
            raise StoreUnreachableError(self._store, "it answered other than it was asked")
        return found

    def _connected(self) -> flight.FlightClient:
        with self._lock:
            if self._closed:
                raise ClosedError("store's client")
            trusted = self._keys.trusted
            if self._client is None or trusted != self._trusted:
                if (why := grpc_workarounds.use()) is not None:
                    raise StoreUnreachableError(self._store, why)
                self.uri, self._trusted = self._nearest(), trusted
                try:  # streams of the client before, if there was one, go on
                    self._client = self._keys.connect(self.uri, trusted)
                except FLIGHT_ERRORS as error:
                    raise translated(error, self._store) from error
            return self._client

    def _nearest(self) -> str:
        if self._unix is not None and self._keys.may_use(self._unix):
            return self._unix
        if self._tcp is None:
            raise StoreUnreachableError(self._store, f"no process listens at {self._unix}")
        return self._keys.uri_of(self._tcp)

    def _deadline(self, timeout_s: float, give_up: Callable[[], None]) -> CallDeadline:
        return CallDeadline(self._watchdog, timeout_s, give_up, self._find_lost_host)

    @contextmanager
    def _watched(self, timeout_s: float) -> Iterator[None]:
        """An action, which gRPC ends in time; one that may take long ends with its host, too."""
        if timeout_s * 1000 <= LOST_MS:
            yield
        else:
            with self._deadline(math.inf, self._break).start() as call:
                call.wait()
                yield

    def _find_lost_host(self) -> None:
        grpc_workarounds.find_lost_host(grpc_workarounds.addresses_of(self.uri))

    def _break(self) -> None:
        """Ends all calls to the store: gRPC cannot cancel one that has not begun, nor a put."""
        addresses = grpc_workarounds.addresses_of(self.uri)
        grpc_workarounds.break_connections(addresses, socket.socket.getpeername)

"""The client of one store over Arrow Flight: actions, gets, puts and authentication."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import lru_cache, partial
from itertools import starmap
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyarrow import flight

from dafka_core.config.node_options import NO_KEYS, KeyFiles
from dafka_core.errors import ClosedError, ConfigError, DafkaError, StoreUnreachableError
from dafka_core.flight import grpc_workarounds, limits, requests
from dafka_core.flight.columns import OFFSET, TYPES, VALUE, VALUES_SCHEMA, parse_parts, schema_of
from dafka_core.flight.flight_errors import FLIGHT_ERRORS, translated
from dafka_core.flight.grpc_workarounds import LOST_MS, CallDeadline, Watchdog
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_location import (
    TLS_SCHEME,
    StoreLocation,
    host_of,
    path_of,
    tcp_location,
)
from dafka_core.model.epochs import EpochId
from dafka_core.model.json_message import JsonMessage, short
from dafka_core.model.log_entries import Discard
from dafka_core.model.names import escape, quoted
from dafka_core.model.records import (
    NO_VERSION,
    MatchedRecords,
    PartitionInfo,
    RecordBatch,
    Records,
    StagedPartition,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.model.values import Longs, RowDigest, Values
from dafka_core.security.allowed_keys import AllowedKeys
from dafka_core.security.key_files import KEY_HEADER, SERVER_NAME, pem, read_secret, tls_pair
from dafka_core.security.permissions import STORE
from dafka_core.storage import PartitionStatistics
from dafka_core.storage.environment import Space
from dafka_core.system.closing import ProcessBound

# Authentication of Flight clients by TLS, and options of gRPC.

CONNECT_TIMEOUT_MS: Final = 5_000
"""Timeout of one attempt to connect; a running store answers at once."""

GRPC_OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),  # stores are contacted directly, as nodes of the mesh are
    # Whole blocks in few frames, and room for two of them: measured best on one machine.
    ("grpc.http2.max_frame_size", 16_777_215),
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Not for its pings, the first of which is 24 days away: data sent to a vanished host breaks the
    # connection after the timeout (TCP_USER_TIMEOUT).
    ("grpc.keepalive_time_ms", (1 << 31) - 2),
    ("grpc.keepalive_timeout_ms", LOST_MS),
]

MIN_TIMEOUT_S: Final = 0.001  # gRPC interprets zero and less as no limit


class ClientKeys:
    """A client's own key, and its trusted stores, reread when they change.  Thread-safe."""

    def __init__(self, files: KeyFiles) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._allowed: AllowedKeys | None = None
        self._lock = threading.Lock()
        self._roots = b""
        self._tls: dict[str, bytes] = {}
        if files.secret_key_file:
            own = read_secret(files.secret_key_file)
            self._headers = [(KEY_HEADER.encode(), own.public)]
            pair = tls_pair(own.secret)
            self._tls = {"cert_chain": pair.certificate, "private_key": pair.private_key}
            self._allowed = AllowedKeys(files.allowed_keys, is_second=True)

    @property
    def trusted(self) -> bytes:
        """Return the certificates of the stores; empty without keys."""
        if self._allowed is not None:
            with self._lock:
                if self._allowed.look(time.monotonic()) or not self._roots:
                    found = (each.certificate for each in self._allowed.with_role(STORE))
                    self._roots = b"".join(map(pem, filter(None, found)))
        return self._roots

    def uri_of(self, location: str) -> str:
        """Return the URI to use for a location: with keys only TLS."""
        place = host_of(location)
        if self._allowed is None or place is None:
            return location
        return tcp_location(*place, is_tls=True)

    def may_use(self, location: str) -> bool:
        """Return True if a process listens at a local socket; with keys, one of this user's."""
        with contextlib.suppress(OSError):
            is_own = Path(str(path_of(location))).stat().st_uid == os.geteuid()
            return (is_own or self._allowed is None) and grpc_workarounds.accepts(location)
        return False

    def connect(self, uri: str, trusted: bytes) -> flight.FlightClient:
        """Create pyarrow's client; raise ConfigError if this store cannot be trusted."""
        if not uri.startswith(f"{TLS_SCHEME}:"):
            return flight.FlightClient(uri, generic_options=GRPC_OPTIONS)
        if self._allowed is None:
            why = f"must be set, and allowed_keys: the store at {uri} lets in owners of keys only"
            raise ConfigError("secret_key_file", "", why)
        if not trusted:
            why = (
                f"has no key with role {STORE} and a certificate, so no store can be trusted: run "
                "'dafka keys renew NAME' where the store's secret is, and copy NAME.key"
            )
            raise ConfigError("allowed_keys", str(self._allowed.directory), why)
        return flight.FlightClient(
            uri,
            tls_root_certs=trusted,
            override_hostname=SERVER_NAME,
            generic_options=GRPC_OPTIONS,
            **self._tls,
        )

    def call_options(self, timeout_s: float | None = None) -> Any:
        """Return pyarrow's options of a call."""
        timed = {} if timeout_s is None else {"timeout": max(timeout_s, MIN_TIMEOUT_S)}
        return flight.FlightCallOptions(headers=self._headers, **timed)


_keys_of = lru_cache(maxsize=64)(ClientKeys)  # the keys of a process, shared by its clients
DISCARD_S: Final = 5.0  # timeout for the end of an interrupted put


class PutStream(ProcessBound):
    """Appends values to one partition, or stages them, in order; a context.  For one thread.

    Nothing is certain before ``finish`` has returned, or ``durable`` has passed it.  A context left
    without it ends the put: written values may be stored, or not.  If Ctrl-C ends it, or another
    exception that is no ``Exception``, it does not wait for the store, discards staged values, and
    reports the result in a note.

    Args:
        options: of the call.
        origin: the arguments of its client, for another one.

    Attributes:
        end: the offset of the next value to be written.
        durable: the end of the values on the store's disk, as far as acknowledged.

    Raises, from each call:
        OffsetConflictError: the partition does not end where the put begins.
        FencedError: another attempt has replaced this one.
        TransactionExistsError: the transaction that it stages, or a newer one, is committed.
        StoreUnreachableError: the store is unreachable, or made no progress for the timeout.
    """

    def __init__(
        self,
        client: flight.FlightClient,
        request: requests.PutRequest,
        call: CallDeadline,
        options: Any,
        origin: tuple[StoreLocation, KeyFiles],
    ) -> None:
        self.end = self.durable = request.start
        self._client = client
        self._request = request
        self._store = request.store
        self._call = call
        self._options = options
        self._origin = origin
        self._writer: Any = None
        self._failure: DafkaError | None = None
        # The thread that reads the store's acknowledgements sets these, and ``durable``, and puts
        # an item into the queue afterwards.  A ``Condition`` fails at Ctrl-C.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._is_over = False  # the store accepts no more, or sends no more
        self._acks_failure: Exception | None = None
        self._acks = threading.Thread()  # started with the stream

    def wait_durable(self, end: int, *, timeout_s: float) -> int:
        """Wait until the partition is on disk up to ``end``, which has been written.

        Returns the partition's end on disk.  ``timeout_s`` is the longest wait without progress.
        """
        if self.durable < end and self._failure is not None:
            raise self._failure
        while self.durable < end and not self._is_over:
            try:
                self._news.get(timeout=timeout_s)
            except Empty:
                self._call.give_up()
                why = f"it has written nothing to disk for {timeout_s:g} s"
                raise self._fail(StoreUnreachableError(self._store, why)) from None
        if self.durable >= end:
            return self.durable
        with self._step() as writer:
            # Only then the store ends the acknowledgements.
            writer.done_writing()
            self._acks.join()
            if self._acks_failure is not None:
                raise self._fail(self._call.translated(self._acks_failure, self._store))
            writer.close()
        why = f"it has the records up to {self.durable} (exclusive), not up to {end}"
        raise self._fail(StoreUnreachableError(self._store, why))

    def write(self, values: pa.BinaryArray) -> None:
        """Send an Arrow array of binary without nulls; blocks while the store has enough."""
        if not isinstance(values, pa.Array) or values.type != TYPES[VALUE] or values.null_count:
            kind = getattr(values, "type", type(values).__name__)
            raise ConfigError("values", str(kind), "must be an array of binary without nulls")
        whole = RecordBatch(self._request.tp, self.end, Values.from_arrow(values))
        for part in whole.split(MAX_BATCH_RECORDS, MAX_BATCH_BYTES):
            batch = pa.RecordBatch.from_arrays([part.values.to_arrow()], schema=VALUES_SCHEMA)
            with self._step() as writer:
                writer.write_batch(batch)
            self.end = part.end

    def finish(self, timeout_s: float) -> int:
        """Wait for the disk, at most ``timeout_s`` without progress; return the end there."""
        self._call.timeout_s = timeout_s
        with self._step() as writer:
            writer.done_writing()
        self.wait_durable(self.end, timeout_s=timeout_s)
        with self._step() as writer:
            writer.close()
        self._leave()
        return self.durable

    def close(self) -> None:
        """End the put, finished or not.  Idempotent."""
        if self._writer is not None:
            # Closing waits for the store, and for the thread that reads the acknowledgements, which
            # ends when the store does: the deadline ends both.
            self._call.wait()
            with contextlib.suppress(*FLIGHT_ERRORS):
                self._writer.done_writing()
                self._acks.join()
            with contextlib.suppress(*FLIGHT_ERRORS):
                self._writer.close()
        self._leave()

    def _leave_with(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, Exception) or self._writer is None:
            self.close()
            return
        self._call.give_up()  # the store may be silent
        self.close()
        what = f"topic {quoted(self._request.topic)}, partition {escape(self._request.partition)}"
        if not self._request.attempt:
            error.add_note(
                f"{what}: the store has the records up to offset {self.durable} (exclusive); later "
                "ones may be stored, or not"
            )
            return
        try:
            # Over another connection: the client's has ended with the put.
            with StoreClient(*self._origin) as client:
                discard = Discard(self._request.tp, self._request.attempt)
                client.discard([discard], timeout_s=DISCARD_S)
            error.add_note(f"{what}: the staged records are discarded")
        except DafkaError as failure:
            error.add_note(
                f"{what}: the staged records are not discarded yet ({failure}); the store discards "
                "them after its staged_hours, or with 'dafka staged --discard'"
            )

    def _read_acks(self, reader: Any) -> None:
        try:
            while (metadata := reader.read()) is not None:
                ack = requests.DurableEnd.parse(metadata.to_pybytes())
                self._note(ack.end, is_over=ack.failed)
        except (*FLIGHT_ERRORS, ValueError) as error:
            self._acks_failure = error
        finally:
            self._note(self.durable, is_over=True)

    def _note(self, end: int, *, is_over: bool) -> None:
        if end > self.durable or is_over:
            self.durable = max(self.durable, end)
            self._is_over = self._is_over or is_over
            if self._news.empty():
                self._news.put(None)

    def _begin(self) -> None:
        descriptor = flight.FlightDescriptor.for_command(self._request.packed())
        self._call.start().wait()
        self._writer, reader = self._client.do_put(descriptor, VALUES_SCHEMA, self._options)
        # A thread of its own, as a writer does not wait for acknowledgements.
        self._acks = threading.Thread(
            target=self._read_acks, args=(reader,), name="dafka-flight-acks-read", daemon=True
        )
        self._acks.start()

    def _leave(self) -> None:
        self._failure = self._failure or ClosedError("put")
        self._writer = None
        self._call.close()

    @contextlib.contextmanager
    def _step(self) -> Iterator[Any]:
        self.check_process()
        if self._failure is not None:
            raise self._failure
        try:
            if self._writer is None:
                self._begin()
            self._call.wait()
            yield self._writer
        except FLIGHT_ERRORS as error:
            raise self._fail(self._call.translated(error, self._store)) from error
        finally:
            self._call.go_on()

    def _fail(self, error: DafkaError) -> DafkaError:
        self._failure = error
        return error


# The client's side of a get: the store's data match the request, or raise an error.
#
# Functions process batches as they arrive, and raise ValueError, with a sentence, for those that do
# not match the request.

Chunks = Iterator[tuple[pa.RecordBatch, pa.Buffer | None]]
"""Each batch, whose first column is ``value``, and its metadata."""

T = TypeVar("T")


def chunks(stream: Any, call: CallDeadline) -> Chunks:
    """Yield the batches of a stream of pyarrow's client."""
    while True:
        call.wait()
        try:
            columns, metadata = stream.read_chunk()
        except StopIteration:
            return
        call.go_on()
        # Bytes from the network must not point outside of the buffers they came in.
        columns.validate(full=True)
        yield columns, metadata


def records_of(request: requests.GetRequest, received: Chunks) -> Iterator[Records]:
    """Yield the records of a get, which asks for the values, and with ``where`` for offsets.

    Each range's are in order and without gaps from its start on, and complete unless the request is
    ``partial``.
    """
    schema, ranges = schema_of(request.columns), request.ranges
    ats, current = [each.start for each in ranges], 0
    for columns, metadata in received:
        if not columns.schema.equals(schema) or any(each.null_count for each in columns.columns):
            raise ValueError(f"a batch has {short(str(columns.schema))}, which was not requested")
        whole, first = Values.from_arrow(columns.column(0)), 0
        for number, start, end, count, times in parse_parts(
            metadata, len(whole), times=request.times
        ):
            if not current <= number < len(ranges):
                raise ValueError(f"range {number} arrived after range {current}")
            current, wanted, last = number, ranges[number], first + count
            if start != ats[number] or not start < end <= wanted.end:
                raise ValueError(f"offsets {start} to {end} arrived instead of {ats[number]}")
            values = whole if count == len(whole) else whole[first:last]
            ats[number] = end
            if request.where is not None:
                offsets: Longs = columns.column(1).to_numpy()[first:last]
                bounds = np.concatenate(([start - 1], offsets, [end]))
                if not (bounds[1:] > bounds[:-1]).all():
                    raise ValueError(f"records arrived outside of offsets {start} to {end}")
                yield MatchedRecords(wanted.tp, start, end, offsets, values, times)
            elif count == end - start:
                yield RecordBatch(wanted.tp, start, values, times=times)
            else:
                raise ValueError(f"{count} records arrived of offsets {start} to {end}")
            first = last
    for at, wanted in zip(ats, ranges, strict=True):
        if at != wanted.end and not request.partial:
            raise ValueError(f"the records of {wanted.tp} end at {at}, not at {wanted.end}")


RETRY_PAUSE_S: Final = 0.2
"""Pause before a refused action is repeated: a store whose allowed keys have changed listens anew
within milliseconds, and gRPC connects again after 100."""

WAIT_MARGIN_S: Final = 5.0  # tolerated delay of the answer to a wait

A = TypeVar("A", bound=JsonMessage)


class StoreClient(ProcessBound):
    """A store's bulk service.  Thread-safe; connects on first use.

    Every call raises StoreUnreachableError if the store does not answer in time, ClosedError after
    ``close``, and InvalidRequestError for an argument that the store would refuse.

    Args:
        location: the store's.  Its socket is used on its machine, else TCP.
        keys: with them it uses TLS, and trusts only stores with one of the keys.

    Raises:
        ConfigError: none of the location's URIs, or a key, can be used.
    """

    def __init__(self, location: StoreLocation, keys: KeyFiles = NO_KEYS) -> None:
        self.location, self._store = location, location.store
        self._origin = location, keys
        self._keys, self._trusted = _keys_of(keys), b""
        uris = location.locations
        self._tcp = next((each for each in uris if host_of(each)), None)
        self._unix = next((each for each in uris if path_of(each)), None) if location.here else None
        if self._tcp is None and self._unix is None:
            raise ConfigError("locations", uris, "must have one like grpc://HOST:PORT")
        self._lock = threading.Lock()
        self._watchdog = Watchdog()
        self._client: flight.FlightClient | None = None
        self._closed = False
        self.uri = ""  # the URI of its connection

    def describe(self, *, timeout_s: float) -> StoreLocation:
        """Return the store's location, complete."""
        return self.ask(timeout_s, requests.DescribeRequest())[0]

    def stores(self, *, timeout_s: float) -> list[StoreLocation]:
        """Return the stores that it knows, itself included."""
        return self.ask(timeout_s, requests.StoresRequest())

    def heads(self, topics: Collection[str] | None, *, timeout_s: float) -> list[PartitionInfo]:
        """Return its offsets of these topics, or of all (None)."""
        parts = [None] if topics is None else limits.parts(list(topics), limits.MAX_NAMES)
        answers = self.ask(timeout_s, *map(requests.HeadsRequest, parts))
        return [head for answer in answers for head in answer.heads]

    def facts(self, topic: str | None, *, timeout_s: float) -> list[PartitionStatistics]:
        """Return size and times of the partitions of a topic, or of all."""
        with self._asking(timeout_s) as (client, options):
            found = client.list_flights(requests.Criteria(topic).packed(), options)
            return [PartitionStatistics.parse(each.app_metadata) for each in found]

    def watch(
        self, topics: Collection[str] | None, cursor: str, *, wait_s: float, timeout_s: float
    ) -> requests.HeadsSince:
        """Return changes of these topics, at most 10,000, or of all, since an answer's cursor.

        Without a cursor it returns all of the store's partitions of them.  The store waits up to
        ``wait_s`` seconds for a change; the answer may be up to ``timeout_s`` later.
        """
        request = requests.WatchRequest(wait_s, None if topics is None else tuple(topics), cursor)
        answers = self.ask(wait_s + timeout_s, request)
        heads = tuple(head for answer in answers for head in answer.heads)
        return replace(answers[-1], heads=heads)

    def offset_for_times(
        self, times: Sequence[tuple[str, str, int]], *, timeout_s: float, after_all: bool = False
    ) -> list[int | None]:
        """Return the first offsets with a time or a later one; None if there are none.

        ``times`` are triples of topic, partition and microseconds since the epoch UTC.  With
        ``after_all``, all records from each returned offset on have its time or a later one; None
        if even the last one is earlier.
        """
        parts = limits.parts(times, limits.MAX_TIMES)
        wanted = [requests.OffsetsRequest(part, after_all) for part in parts]
        answers = self.ask(timeout_s, *wanted)
        return self._complete([each for answer in answers for each in answer.offsets], times)

    def record_sizes(
        self, ranges: Sequence[requests.RecordRange], *, timeout_s: float
    ) -> requests.RecordSizes:
        """Return approximate sizes of the records of up to 1,000 ranges, in their order."""
        return self.ask(timeout_s, requests.SizesRequest(tuple(ranges)))[0]

    def clock_us(self, *, timeout_s: float) -> int:
        """Return the store's clock, in microseconds since the epoch UTC."""
        return self.ask(timeout_s, requests.OffsetsRequest(()))[0].now_us

    def wait(
        self,
        tp: TopicPartition,
        end: int,
        *,
        transaction: Transaction | None = None,
        timeout_s: float,
    ) -> int:
        """Wait until the store has the partition's records up to ``end`` on disk.

        With a ``transaction``, which ends there or before, the store then also has it, or a newer
        one, as the partition's last.  Returns the partition's end, which is less than ``end`` after
        ``timeout_s`` seconds.
        """
        request = requests.WaitRequest(*tp, end, timeout_s, transaction)
        return self.ask(timeout_s + WAIT_MARGIN_S, request)[0].end

    def lease(self, request: requests.LeaseRequest, *, timeout_s: float) -> requests.LeaseGranted:
        """Lease blocks of ranges in the store's file, or end a lease; see ``LocalLog``."""
        return self.ask(timeout_s, request)[0]

    def space(self, *, timeout_s: float) -> Space:
        """Return the size of its file, and the readers' leases."""
        return self.ask(timeout_s, requests.SpaceRequest())[0]

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        life: EpochId | None = None,
        after: EpochId | None = None,
        times: bool = False,
        max_records: int = MAX_BATCH_RECORDS,
        max_bytes: int = MAX_BATCH_BYTES,
        timeout_s: float,
    ) -> Generator[RecordBatch]:
        """Yield the records from ``start`` to ``end`` (exclusive); lives as in ``RecordRange``."""
        ranges = (requests.RecordRange(*tp, start, end, life, after),)
        request = requests.GetRequest(
            ranges, times=times, max_records=max_records, max_bytes=max_bytes
        )
        return self.records(request, timeout_s=timeout_s)

    def records(self, request: requests.GetRequest, *, timeout_s: float) -> Generator[Any]:
        """Yield the records of a get in order and complete, with ``where`` as MatchedRecords.

        Each batch has at most ``max_records``, and at most ``max_bytes`` of values unless it is one
        record.  The store and the columns are this method's.  Closing the generator ends the call.

        Raises:
            InvalidRequestError: an argument is invalid; at once.
            DataLossError: the store does not hold all of a range.
            HistoryChangedError: a newer producer has replaced a range's ``life`` or ``after``.
            StoreUnreachableError: the connection is lost, or nothing arrived for ``timeout_s``
                seconds; yielded records are valid.
        """
        columns = (VALUE,) if request.where is None else (VALUE, OFFSET)
        wanted = replace(request, columns=columns, store=self._store).fitted()
        return self.get(wanted.packed(), partial(records_of, wanted), timeout_s)

    def transaction_states(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float
    ) -> list[TransactionState]:
        """Return the progress of these partitions and their transactions; zeros if unknown."""
        parts = limits.parts(partitions, limits.MAX_TRANSACTIONS)
        answers = self.ask(timeout_s, *map(requests.TransactionsRequest, parts))
        return self._complete([x for answer in answers for x in answer.transactions], partitions)

    def commit(self, transactions: Sequence[StagedTransaction], *, timeout_s: float) -> None:
        """Make staged transactions visible, at most 10,000, all or none.

        They are on disk when this returns.  Without an answer it may be repeated: a repeated commit
        succeeds.

        Raises:
            FencedError: an attempt's staged records are gone, or others.
            OffsetConflictError: a transaction does not begin at its partition's end.
        """
        self.ask(timeout_s, requests.CommitRequest(tuple(transactions)))

    def digests(
        self, ranges: Sequence[tuple[str, str, str, int, int]], *, timeout_s: float
    ) -> list[RowDigest]:
        """Return the digest of each range: topic, partition, attempt, start, end (exclusive).

        Rows that the attempt has staged count; an empty attempt means visible ones.

        Raises:
            DataLossError: the store does not hold all of a range, or not any more.
            FencedError: another attempt has replaced the named one.
        """
        parts = limits.parts(ranges, limits.MAX_TRANSACTIONS)
        wanted = [
            requests.DigestsRequest(tuple(starmap(requests.DigestRange, part))) for part in parts
        ]
        answers = self.ask(timeout_s, *wanted)
        found = [RowDigest.parse(text) for answer in answers for text in answer.digests]
        return self._complete(found, ranges)

    def forget(self, store: str, *, timeout_s: float) -> None:
        """Forget another store, until that one appears again."""
        self.ask(timeout_s, requests.ForgetRequest(store))

    def staged(self, *, timeout_s: float) -> list[StagedPartition]:
        """Return the store's staged records of every partition with some."""
        answers = self.ask(timeout_s, requests.StagedRequest())
        return [each for answer in answers for each in answer.staged]

    def discard(self, discards: Sequence[Discard], *, timeout_s: float) -> None:
        """Discard attempts' staged records; not those of others."""
        rows = tuple((*each.tp, each.attempt) for each in discards)
        self.ask(timeout_s, requests.DiscardRequest(rows))

    def put(
        self,
        tp: TopicPartition,
        start: int,
        *,
        attempt: str = "",
        version: int = NO_VERSION,
        waited_s: float = 0.0,
        client_name: str = "",
        timeout_s: float,
    ) -> PutStream:
        """Open a put at ``start``, the partition's end; see ``PutStream``.

        With an ``attempt`` (32 upper-case hexadecimal digits, its own) records are staged, for the
        transaction of that ``version`` if it has one: invisible until ``commit``.  ``start`` is
        then the partition's end, or that of the same attempt's staged records.

        ``timeout_s`` is the longest wait of a write without progress, and ``waited_s`` the time
        waited for a turn before (``StoreBusyError``).  Lists of partitions show ``client_name``.
        """
        waited_s = min(waited_s, limits.MAX_WAIT_S)
        request = requests.PutRequest(
            *tp, start, attempt, version, waited_s, client_name, store=self._store
        ).checked()
        call = self._deadline(timeout_s, self._break)
        client, options = self._connected(), self._keys.call_options()
        return PutStream(client, request, call, options, self._origin)

    def close(self) -> None:
        """Disconnect; running calls end with an error.  Idempotent."""
        with self._lock:
            # Arrow's own close would free a connection that a call in another thread is using.  The
            # connection ends when the last call has dropped the client.
            self._closed, self._client = True, None
        self._watchdog.close()

    def get(
        self, ticket: bytes, parse: Callable[[Chunks], Iterator[T]], timeout_s: float
    ) -> Generator[T]:
        """Yield the parsed batches of a get."""
        client = self._connected()
        stream: Any = None

        def give_up() -> None:
            self._break() if stream is None else stream.cancel()

        with self._deadline(timeout_s, give_up).start() as call:
            try:
                call.wait()
                stream = client.do_get(flight.Ticket(ticket), self._keys.call_options())
                yield from parse(chunks(stream, call))
            except (*FLIGHT_ERRORS, ValueError) as error:
                if self._closed:
                    raise ClosedError("store's client") from error
                raise call.translated(error, self._store) from error
            finally:
                if stream is not None:
                    stream.cancel()

    def ask(self, timeout_s: float, *sent: requests.ActionRequest[A]) -> list[A]:
        """Return the store's answers to requests in sequence; at least one answer for each."""
        answers: list[A] = []
        for request in sent:
            kind: Any = request.answer
            body = replace(request, store=self._store).checked().packed()
            action = flight.Action(request.action, body)
            with self._asking(timeout_s) as (client, options):
                found = self._results(client, action, options, timeout_s)
                answers += [kind.parse(each.body.to_pybytes()) for each in found]
        if len(answers) < len(sent):
            raise StoreUnreachableError(self._store, "it sent no answer")
        return answers

    def _results(
        self, client: flight.FlightClient, action: flight.Action, options: Any, timeout_s: float
    ) -> list[Any]:
        """Return an action's answers; repeat it once if a takeover of keys cut its connection.

        An action that was executed already has the same effect again; a lease expires by itself.
        """
        begun_s = time.monotonic()
        try:
            return list(client.do_action(action, options))
        except (flight.FlightCancelledError, flight.FlightUnavailableError) as error:
            is_cancelled = isinstance(error, flight.FlightCancelledError)
            is_refused = is_cancelled or "failed to connect" in str(error)
            if self._closed or not self.uri.startswith(f"{TLS_SCHEME}:") or not is_refused:
                raise
            time.sleep(RETRY_PAUSE_S)
            left_s = timeout_s - (time.monotonic() - begun_s)
            return list(client.do_action(action, self._keys.call_options(left_s)))

    @contextlib.contextmanager
    def _asking(self, timeout_s: float) -> Iterator[tuple[flight.FlightClient, Any]]:
        """Watch an action with gRPC's timeout; a long one also ends with its host."""
        client = self._connected()
        with self._deadline(math.inf, self._break) as call:
            if timeout_s * 1000 > LOST_MS:
                call.start().wait()
            try:
                yield client, self._keys.call_options(timeout_s)
            except flight.FlightTimedOutError as error:
                why = f"no answer within {timeout_s:g} s"
                raise StoreUnreachableError(self._store, why) from error
            except FLIGHT_ERRORS as error:
                raise translated(error, self._store) from error
            except ValueError as error:
                why = f"its answer cannot be read: {error}"
                raise StoreUnreachableError(self._store, why) from error

    def _complete(self, found: list[T], requested: Sequence[object]) -> list[T]:
        if len(found) != len(requested):
            raise StoreUnreachableError(self._store, "its answer does not match the request")
        return found

    def _connected(self) -> flight.FlightClient:
        self.check_process()
        with self._lock:
            if self._closed:
                raise ClosedError("store's client")
            trusted = self._keys.trusted
            if self._client is None or trusted != self._trusted:
                if (why := grpc_workarounds.use()) is not None:
                    raise StoreUnreachableError(self._store, why)
                self.uri, self._trusted = self._nearest(), trusted
                try:  # streams of an earlier client, if any, continue
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
        return CallDeadline(
            self._watchdog, timeout_s, give_up, lambda: grpc_workarounds.find_lost_host(self.uri)
        )

    def _break(self) -> None:
        """End all calls to the store: gRPC cannot cancel one that has not begun, nor a put."""
        addresses = grpc_workarounds.addresses_of(self.uri)
        grpc_workarounds.break_connections(addresses, socket.socket.getpeername)

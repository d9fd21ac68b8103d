"""One store, asked over Arrow Flight."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any, Final

from pyarrow import flight

from dafka_core.closing import Closing
from dafka_core.errors import ClosedError, ConfigError, DafkaError, StoreUnreachableError
from dafka_core.flight import grpc_fork, server_actions
from dafka_core.flight.call_deadline import CallDeadline, Watchdog
from dafka_core.flight.client_put import PutStream
from dafka_core.flight.columns import parse_metadata
from dafka_core.flight.flight_errors import FLIGHT_ERRORS, translated
from dafka_core.flight.grpc_sockets import accepts, addresses_of, break_opened
from dafka_core.flight.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_NAMES,
    MAX_TIMES,
    MAX_TRANSACTIONS,
)
from dafka_core.flight.request_members import (
    VALUE,
    check_names,
    check_range,
    checked_size,
    checked_topic,
)
from dafka_core.flight.requests import (
    COMMIT_ACTION,
    DESCRIBE_ACTION,
    DISCARD_ACTION,
    HEADS_ACTION,
    OFFSETS_ACTION,
    STORES_ACTION,
    TRANSACTIONS_ACTION,
    WAIT_ACTION,
    CommitRequest,
    DiscardRequest,
    GetRequest,
    HeadsRequest,
    OffsetsRequest,
    PlainRequest,
    PutRequest,
    StagedAttempt,
    TransactionsRequest,
    WaitRequest,
    checked_moment,
)
from dafka_core.flight.store_location import StoreLocation, host_of, path_of
from dafka_core.log_entries import Discard
from dafka_core.records import (
    NO_VERSION,
    PartitionInfo,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.values import Values

CONNECT_TIMEOUT_MS: Final = 5_000
"""How long one attempt to connect may take; a store that is there answers at once."""

GRPC_OPTIONS: Final = [
    # Whole blocks in few frames, and room for two of them: measured best on one machine.
    ("grpc.http2.max_frame_size", 16_777_215),
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]

MIN_TIMEOUT_S: Final = 0.001

WAIT_MARGIN_S: Final = 5.0
"""How much later than asked for the answer to a wait may come."""


class StoreClient(Closing):
    """A store's bulk service.  Thread-safe; connects when it is first used.

    Everything asked raises StoreUnreachableError when the store is not there, does not answer in
    time or cannot answer, and ClosedError after ``close``.

    Args:
        place: where it is.  Its socket is used when it is on this machine, else TCP.

    Raises:
        ConfigError: the place has no location that can be used.
    """

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self._tcp = next((each for each in location.locations if host_of(each)), None)
        self._unix = next((each for each in location.locations if path_of(each)), None)
        if self._tcp is None and not (self._unix and location.here):
            raise ConfigError(
                "locations", location.locations, "must have one like grpc://HOST:PORT"
            )
        self._lock = threading.Lock()
        self._watchdog = Watchdog()
        self._client: flight.FlightClient | None = None
        self._location = ""
        self._closed = False

    def describe(self, *, timeout_s: float) -> StoreLocation:
        """The store's place, with everything that it alone knows."""
        return self._parse_locations(self._act(DESCRIBE_ACTION, self._plain(), timeout_s))[0]

    def stores(self, *, timeout_s: float) -> list[StoreLocation]:
        """The stores that it knows of, itself included."""
        return self._parse_locations(self._act(STORES_ACTION, self._plain(), timeout_s))

    def heads(self, topics: Collection[str] | None, *, timeout_s: float) -> list[PartitionInfo]:
        """What it holds, of these topics or of all (None).

        Raises:
            ConfigError: a name cannot be a topic's.
        """
        if topics is None:
            return self._heads(None, timeout_s)
        names = [checked_topic("topics", each) for each in topics]
        return [
            head
            for start in range(0, len(names), MAX_NAMES)
            for head in self._heads(tuple(names[start : start + MAX_NAMES]), timeout_s)
        ]

    def offset_for_times(
        self, moments: Sequence[tuple[str, str, int]], *, timeout_s: float
    ) -> list[int | None]:
        """The first offsets stored at a time or later; None where there is none.

        ``moments`` are triples of topic, partition and microseconds since the epoch UTC.

        Raises:
            ConfigError: a name or a time cannot be one.
        """
        found: list[int | None] = []
        for start in range(0, len(moments), MAX_TIMES):
            some = tuple(checked_moment("times", m) for m in moments[start : start + MAX_TIMES])
            request = OffsetsRequest(some, self.location.store)
            results = self._act(OFFSETS_ACTION, request.packed(), timeout_s)
            with self._answers():
                found += server_actions.parse_offsets(results)
        if len(found) != len(moments):
            raise StoreUnreachableError(self.location.store, "it answered other than it was asked")
        return found

    def wait(
        self,
        tp: TopicPartition,
        end: int,
        *,
        transaction: Transaction | None = None,
        timeout_s: float,
    ) -> int:
        """Waits until the store has the partition's records up to ``end`` on disk.

        With a ``transaction``, which ends there or before, the store also has its marker then, or that
        of a newer one.  Returns how far it has them, which is less than ``end`` when
        ``timeout_s`` seconds have passed.

        Raises:
            ConfigError: a name or a number cannot be one.
        """
        request = WaitRequest(*tp, end, timeout_s, transaction, self.location.store).checked()
        results = self._act(WAIT_ACTION, request.packed(), timeout_s + WAIT_MARGIN_S)
        with self._answers():
            return server_actions.parse_end(results[0])

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        times: bool,
        max_records: int,
        max_bytes: int,
        timeout_s: float,
    ) -> Generator[RecordBatch]:
        """The records from ``start`` up to ``end`` (exclusive), in order and complete.

        Each batch has at most ``max_records``, and at most ``max_bytes`` of values unless it is
        one record.  Closing the generator ends the call.

        Raises:
            ConfigError: an argument cannot be used; at once.
            DataLossError: the store does not hold all of the range.
            StoreUnreachableError: the connection is lost, or nothing came for ``timeout_s``
                seconds; what was handed out is good.
        """
        check_names(*tp)
        check_range(start, end)
        request = GetRequest(
            *tp,
            start,
            end,
            (VALUE,),
            times,
            checked_size("max_records", max_records, MAX_BATCH_RECORDS),
            checked_size("max_bytes", max_bytes, MAX_BATCH_BYTES),
            self.location.store,
        )
        return self._read(request, timeout_s)

    def transaction_states(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float
    ) -> list[TransactionState]:
        """How far these partitions (topic, partition) and their units are; zeros if unknown.

        Raises:
            ConfigError: a name cannot be one.
        """
        found: list[TransactionState] = []
        for start in range(0, len(partitions), MAX_TRANSACTIONS):
            some = tuple(partitions[start : start + MAX_TRANSACTIONS])
            request = TransactionsRequest(some, self.location.store).checked()
            results = self._act(TRANSACTIONS_ACTION, request.packed(), timeout_s)
            with self._answers():
                found += server_actions.parse_transactions(results[0])
        if len(found) != len(partitions):
            raise StoreUnreachableError(self.location.store, "it answered other than it was asked")
        return found

    def commit(self, transactions: Sequence[StagedTransaction], *, timeout_s: float) -> None:
        """Makes what was staged visible: all units, at most 10,000, at once, or nothing.

        They are on disk when this returns.  Where no answer came it may be repeated: what is
        committed already remains so.

        Raises:
            ConfigError: an argument cannot be used.
            FencedError: an attempt has not (any more) staged what is to be committed.
            OffsetConflictError: a unit does not begin at its partition's end.
        """
        request = CommitRequest(tuple(transactions), self.location.store).checked()
        self._finish(COMMIT_ACTION, request.packed(), timeout_s)

    def discard(self, discards: Sequence[Discard], *, timeout_s: float) -> None:
        """Gives up what attempts (topic, partition, attempt) have staged; not what others have.

        Raises:
            ConfigError: an argument cannot be used.
        """
        some = tuple(StagedAttempt(*each.tp, each.attempt) for each in discards)
        request = DiscardRequest(some, self.location.store).checked()
        self._finish(DISCARD_ACTION, request.packed(), timeout_s)

    def put(
        self,
        tp: TopicPartition,
        start: int,
        *,
        attempt: str = "",
        version: int = NO_VERSION,
        timeout_s: float,
    ) -> PutStream:
        """Records to be appended to a partition that ends at ``start``; see ``PutStream``.

        With an ``attempt`` (32 upper-case hexadecimal digits, its own) they are staged, for the
        unit of that number if it has one: nobody sees them until ``commit``.  ``start`` is then
        the partition's end, or that of what the same attempt has staged.

        ``timeout_s`` is how long a write may wait for the store without progress.

        Raises:
            ConfigError: an argument cannot be used.
        """
        store = self.location.store
        request = PutRequest(*tp, start, attempt, version, store).checked()
        client, location = self._connected()
        call = CallDeadline(self._watchdog, timeout_s, lambda: break_opened(addresses_of(location)))
        return PutStream(client, request, call)

    def close(self) -> None:
        """Disconnects; what goes on ends with an error.  May be repeated."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        self._watchdog.close()
        if client is not None:
            client.close()

    def _read(self, request: GetRequest, timeout_s: float) -> Generator[RecordBatch]:
        client, location = self._connected()
        stream: list[Any] = []

        def give_up() -> None:
            stream[0].cancel() if stream else break_opened(addresses_of(location))

        at = request.start
        with CallDeadline(self._watchdog, timeout_s, give_up) as call:
            try:
                call.wait()
                stream.append(client.do_get(flight.Ticket(request.packed())))
                read_chunk = stream[0].read_chunk
                while True:
                    call.wait()
                    try:
                        values_batch, metadata = read_chunk()
                    except StopIteration:
                        break
                    call.go_on()
                    values = values_batch.column(0)
                    # Bytes from the network must not lead outside of the buffers they came in.
                    values.validate(full=True)
                    offset, times = parse_metadata(metadata, len(values), times=request.times)
                    if offset != at:
                        raise ValueError(f"offset {offset} came where {at} was to come")
                    yield RecordBatch(request.tp, offset, Values.from_arrow(values), times=times)
                    at += len(values)
                if at != request.end:
                    raise ValueError(f"the records end at {at}, not at {request.end}")
            except (*FLIGHT_ERRORS, ValueError) as error:
                raise self._error(error, call, request.tp) from error
            finally:
                for each in stream:
                    each.cancel()

    def _heads(self, topics: tuple[str, ...] | None, timeout_s: float) -> list[PartitionInfo]:
        request = HeadsRequest(topics, self.location.store)
        results = self._act(HEADS_ACTION, request.packed(), timeout_s)
        with self._answers():
            return server_actions.parse_heads(results)

    def _finish(self, name: str, body: bytes, timeout_s: float) -> None:
        results = self._act(name, body, timeout_s)
        with self._answers():
            server_actions.parse_done(results[0])

    def _act(self, name: str, body: bytes, timeout_s: float) -> list[bytes]:
        client, _ = self._connected()
        # Zero and less would mean no limit.
        options = flight.FlightCallOptions(timeout=max(timeout_s, MIN_TIMEOUT_S))
        try:
            found = client.do_action(flight.Action(name, body), options)
            return [result.body.to_pybytes() for result in found]
        except flight.FlightTimedOutError as error:
            why = f"no answer within {timeout_s:g} s"
            raise StoreUnreachableError(self.location.store, why) from error
        except FLIGHT_ERRORS as error:
            raise translated(error, self.location.store) from error

    def _plain(self) -> bytes:
        return PlainRequest(self.location.store).packed()

    def _parse_locations(self, results: list[bytes]) -> list[StoreLocation]:
        with self._answers():
            return [StoreLocation.parse(result) for result in results or [b""]]

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except (LookupError, TypeError, ValueError) as error:
            why = f"its answer cannot be read: {error}"
            raise StoreUnreachableError(self.location.store, why) from error

    def _error(self, error: BaseException, call: CallDeadline, tp: TopicPartition) -> DafkaError:
        if self._closed:
            return ClosedError("store's client")
        if call.expired:
            why = f"no progress for {call.timeout_s:g} s"
            return StoreUnreachableError(self.location.store, why)
        return translated(error, self.location.store, *tp)

    def _connected(self) -> tuple[flight.FlightClient, str]:
        with self._lock:
            if self._closed:
                raise ClosedError("store's client")
            if self._client is None:
                why = grpc_fork.use()
                if why is not None:
                    raise StoreUnreachableError(self.location.store, why)
                self._location = self._nearest()
                try:
                    self._client = flight.FlightClient(self._location, generic_options=GRPC_OPTIONS)
                except FLIGHT_ERRORS as error:
                    raise translated(error, self.location.store) from error
            return self._client, self._location

    def _nearest(self) -> str:
        if self._unix is not None and self.location.here:
            path = path_of(self._unix)
            if path is not None and accepts(path):
                return self._unix
        if self._tcp is None:
            raise StoreUnreachableError(self.location.store, f"nobody listens at {self._unix}")
        return self._tcp

"""One store, asked over Arrow Flight."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pyarrow import flight

from dafka_core.columnar import actions, forking
from dafka_core.columnar.columns import RecordColumns, parse_metadata
from dafka_core.columnar.failures import FLIGHT_ERRORS, translated
from dafka_core.columnar.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, MAX_NAMES, MAX_TIMES
from dafka_core.columnar.members import VALUE, check_names, check_range, checked_size, checked_topic
from dafka_core.columnar.patience import Call, Watchdog
from dafka_core.columnar.places import Place, host_of, path_of
from dafka_core.columnar.putting import Put
from dafka_core.columnar.requests import (
    DESCRIBE_ACTION,
    HEADS_ACTION,
    OFFSETS_ACTION,
    STORES_ACTION,
    WAIT_ACTION,
    GetRequest,
    HeadsRequest,
    OffsetsRequest,
    PlainRequest,
    PutRequest,
    WaitRequest,
    checked_moment,
)
from dafka_core.columnar.sockets import addresses_of, break_opened
from dafka_core.errors import ClosedError, ConfigError, DafkaError, StoreUnreachableError
from dafka_core.records import PartitionInfo

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


class StoreClient:
    """A store's bulk service.  Thread-safe; connects when it is first used.

    Everything asked raises StoreUnreachableError when the store is not there, does not answer in
    time or cannot answer, and ClosedError after ``close``.

    Args:
        place: where it is.  Its socket is used when it is on this machine, else TCP.

    Raises:
        ConfigError: the place has no location that can be used.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._tcp = next((each for each in place.locations if host_of(each)), None)
        self._unix = next((each for each in place.locations if path_of(each)), None)
        if self._tcp is None and not (self._unix and place.here):
            raise ConfigError("locations", place.locations, "must have one like grpc://HOST:PORT")
        self._lock = threading.Lock()
        self._watchdog = Watchdog()
        self._client: flight.FlightClient | None = None
        self._location = ""
        self._closed = False

    def describe(self, *, timeout_s: float) -> Place:
        """The store's place, with everything that it alone knows."""
        return self._parse_places(self._act(DESCRIBE_ACTION, self._plain(), timeout_s))[0]

    def stores(self, *, timeout_s: float) -> list[Place]:
        """The stores that it knows of, itself included."""
        return self._parse_places(self._act(STORES_ACTION, self._plain(), timeout_s))

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
            some = tuple(map(checked_moment, moments[start : start + MAX_TIMES]))
            request = OffsetsRequest(some, self.place.store)
            results = self._act(OFFSETS_ACTION, request.packed(), timeout_s)
            with self._answers():
                found += actions.parse_offsets(results)
        if len(found) != len(moments):
            raise StoreUnreachableError(self.place.store, "it answered other than it was asked")
        return found

    def wait(self, topic: str, partition: str, end: int, *, timeout_s: float) -> int:
        """Waits until the store has the partition's records up to ``end`` on disk.

        Returns how far it has them, which is less than ``end`` when ``timeout_s`` seconds have
        passed.

        Raises:
            ConfigError: a name or a number cannot be one.
        """
        check_names(topic, partition)
        check_range(end, end)
        request = WaitRequest(topic, partition, end, timeout_s, self.place.store)
        results = self._act(WAIT_ACTION, request.packed(), timeout_s + WAIT_MARGIN_S)
        with self._answers():
            return actions.parse_end(results[0])

    def read(
        self,
        topic: str,
        partition: str,
        start: int,
        end: int,
        *,
        times: bool,
        max_records: int,
        max_bytes: int,
        timeout_s: float,
    ) -> Generator[RecordColumns]:
        """The records from ``start`` up to ``end`` (exclusive), in order and complete.

        Each batch has at most ``max_records``, and at most ``max_bytes`` of values unless it is
        one record.  Closing the generator ends the call.

        Raises:
            ConfigError: an argument cannot be used; at once.
            DataLossError: the store does not hold all of the range.
            StoreUnreachableError: the connection is lost, or nothing came for ``timeout_s``
                seconds; what was handed out is good.
        """
        check_names(topic, partition)
        check_range(start, end)
        request = GetRequest(
            topic,
            partition,
            start,
            end,
            (VALUE,),
            times,
            checked_size("max_records", max_records, MAX_BATCH_RECORDS),
            checked_size("max_bytes", max_bytes, MAX_BATCH_BYTES),
            self.place.store,
        )
        return self._read(request, timeout_s)

    def put(self, topic: str, partition: str, start: int, *, timeout_s: float) -> Put:
        """Records to be appended to a partition that ends at ``start``; see ``Put``.

        ``timeout_s`` is how long a write may wait for the store without progress.

        Raises:
            ConfigError: an argument cannot be used.
        """
        check_names(topic, partition)
        check_range(start, start)
        request = PutRequest(topic, partition, start, self.place.store)
        client, location = self._connected()
        call = Call(self._watchdog, timeout_s, lambda: _disconnect(location))
        return Put(client, request, call)

    def close(self) -> None:
        """Disconnects; what goes on ends with an error.  May be repeated."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        self._watchdog.close()
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, request: GetRequest, timeout_s: float) -> Generator[RecordColumns]:
        client, location = self._connected()
        stream: list[Any] = []

        def give_up() -> None:
            stream[0].cancel() if stream else _disconnect(location)

        at = request.start
        with Call(self._watchdog, timeout_s, give_up) as call:
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
                    offset, runs = parse_metadata(metadata, len(values), times=request.times)
                    if offset != at:
                        raise ValueError(f"offset {offset} came where {at} was to come")
                    yield RecordColumns(offset, values, runs)
                    at += len(values)
                if at != request.end:
                    raise ValueError(f"the records end at {at}, not at {request.end}")
            except (*FLIGHT_ERRORS, ValueError) as error:
                raise self._error(error, call, request.topic, request.partition) from error
            finally:
                for each in stream:
                    each.cancel()

    def _heads(self, topics: tuple[str, ...] | None, timeout_s: float) -> list[PartitionInfo]:
        request = HeadsRequest(topics, self.place.store)
        results = self._act(HEADS_ACTION, request.packed(), timeout_s)
        with self._answers():
            return actions.parse_heads(results)

    def _act(self, name: str, body: bytes, timeout_s: float) -> list[bytes]:
        client, _ = self._connected()
        # Zero and less would mean no limit.
        options = flight.FlightCallOptions(timeout=max(timeout_s, MIN_TIMEOUT_S))
        try:
            found = client.do_action(flight.Action(name, body), options)
            return [result.body.to_pybytes() for result in found]
        except flight.FlightTimedOutError as error:
            why = f"no answer within {timeout_s:g} s"
            raise StoreUnreachableError(self.place.store, why) from error
        except FLIGHT_ERRORS as error:
            raise translated(error, self.place.store) from error

    def _plain(self) -> bytes:
        return PlainRequest(self.place.store).packed()

    def _parse_places(self, results: list[bytes]) -> list[Place]:
        with self._answers():
            return [Place.parse(result) for result in results or [b""]]

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except (LookupError, TypeError, ValueError) as error:
            why = f"its answer cannot be read: {error}"
            raise StoreUnreachableError(self.place.store, why) from error

    def _error(self, error: BaseException, call: Call, topic: str, partition: str) -> DafkaError:
        if self._closed:
            return ClosedError("store's client")
        if call.expired:
            why = f"no progress for {call.timeout_s:g} s"
            return StoreUnreachableError(self.place.store, why)
        return translated(error, self.place.store, topic, partition)

    def _connected(self) -> tuple[flight.FlightClient, str]:
        with self._lock:
            if self._closed:
                raise ClosedError("store's client")
            if self._client is None:
                why = forking.use()
                if why is not None:
                    raise StoreUnreachableError(self.place.store, why)
                self._location = self._nearest()
                try:
                    self._client = flight.FlightClient(self._location, generic_options=GRPC_OPTIONS)
                except FLIGHT_ERRORS as error:
                    raise translated(error, self.place.store) from error
            return self._client, self._location

    def _nearest(self) -> str:
        if self._unix is not None and self.place.here:
            path = path_of(self._unix)
            if path is not None and Path(path).is_socket() and _accepts(path):
                return self._unix
        if self._tcp is None:
            raise StoreUnreachableError(self.place.store, f"nobody listens at {self._unix}")
        return self._tcp


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _disconnect(location: str) -> None:
    """Breaks every connection of this process to a store that has stopped to answer."""
    break_opened(addresses_of(location))

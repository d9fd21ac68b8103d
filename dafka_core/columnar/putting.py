"""Records on their way to a store, as one stream of batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from dafka_core.columnar import actions
from dafka_core.columnar.columns import TYPES, VALUES_SCHEMA, RecordColumns, cut
from dafka_core.columnar.failures import FLIGHT_ERRORS, translated
from dafka_core.columnar.limits import MAX_PUT_BATCH_BYTES, MAX_PUT_BATCH_RECORDS
from dafka_core.columnar.patience import Call
from dafka_core.columnar.requests import VALUE, PutRequest
from dafka_core.errors import ClosedError, ConfigError, DafkaError, StoreUnreachableError


class Put:
    """Appends values to one partition, in order; a context.  For one thread.

    Nothing is certain before ``finish`` has returned.  A context left without it ends the put:
    what was written may be stored, or not.

    Attributes:
        end: the offset of the next value to be written.

    Raises, from each call:
        OffsetConflictError: the partition does not end where the put begins.
        StoreUnreachableError: the store is not there, or nothing went on for the timeout.
    """

    def __init__(self, client: flight.FlightClient, request: PutRequest, call: Call) -> None:
        self.end = request.start
        self._client = client
        self._request = request
        self._call = call
        self._stream: tuple[Any, Any] | None = None
        self._failure: DafkaError | None = None
        self._finished = False

    def write(self, values: pa.BinaryArray) -> None:
        """Sends values, an Arrow array of binary without nulls; waits while the store has enough.

        Raises:
            ConfigError: they are something else.
            ClosedError: the put is finished.
        """
        if not isinstance(values, pa.Array) or values.type != TYPES[VALUE] or values.null_count:
            kind = getattr(values, "type", type(values).__name__)
            raise ConfigError("values", str(kind), "must be an array of binary without nulls")
        columns = RecordColumns(self.end, values, None)
        for part in cut(columns, MAX_PUT_BATCH_RECORDS, MAX_PUT_BATCH_BYTES):
            if not len(part.values):
                continue
            batch = pa.RecordBatch.from_arrays([part.values], schema=VALUES_SCHEMA)
            with self._step() as (writer, _):
                writer.write_batch(batch)
            self.end = part.end

    def finish(self, timeout_s: float) -> int:
        """Waits until all is on disk, but not longer than ``timeout_s`` seconds without progress.

        Returns the partition's end on disk.

        Raises:
            ClosedError: it was called before.
        """
        self._call.timeout_s = timeout_s
        with self._step() as (writer, _):
            writer.done_writing()
        end = self._request.start
        while True:
            with self._step() as (_, reader):
                told = reader.read()
            if told is None:
                break
            try:
                end = max(end, actions.parse_end(told.to_pybytes()))
            except (LookupError, TypeError, ValueError) as error:
                raise self._failed(error) from error
        with self._step() as (writer, _):
            writer.close()
        self._leave()
        if end < self.end:
            why = f"it has the records up to {end} (exclusive), not those up to {self.end}"
            raise StoreUnreachableError(self._request.store, why)
        return end

    def __enter__(self) -> Self:
        self._call.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stream = self._stream
        if stream is not None:
            # Closing waits for the store, so this wait must have an end, too.
            self._call.wait()
            with contextlib.suppress(*FLIGHT_ERRORS):
                stream[0].close()
        self._leave()

    def _leave(self) -> None:
        self._finished = True
        self._stream = None
        self._call.__exit__(None, None, None)

    @contextlib.contextmanager
    def _step(self) -> Iterator[tuple[Any, Any]]:
        """The stream, for one step, in which the store is waited for."""
        if self._failure is not None:
            raise self._failure
        if self._finished:
            raise ClosedError("put")
        self._call.wait()
        try:
            if self._stream is None:
                descriptor = flight.FlightDescriptor.for_command(self._request.packed())
                self._stream = self._client.do_put(descriptor, VALUES_SCHEMA)
            yield self._stream
        except FLIGHT_ERRORS as error:
            raise self._failed(error) from error
        finally:
            self._call.go_on()

    def _failed(self, error: BaseException) -> DafkaError:
        if self._call.expired:
            why = f"no progress for {self._call.timeout_s:g} s"
            self._failure = StoreUnreachableError(self._request.store, why)
        else:
            request = self._request
            self._failure = translated(error, request.store, request.topic, request.partition)
        return self._failure

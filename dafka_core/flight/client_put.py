"""Records on their way to a store, as one stream of batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from dafka_core.closing import Closing
from dafka_core.errors import ClosedError, ConfigError, DafkaError, StoreUnreachableError
from dafka_core.flight import server_actions
from dafka_core.flight.call_deadline import CallDeadline
from dafka_core.flight.columns import TYPES, VALUES_SCHEMA
from dafka_core.flight.flight_errors import FLIGHT_ERRORS, translated
from dafka_core.flight.limits import MAX_PUT_BATCH_BYTES, MAX_PUT_BATCH_RECORDS
from dafka_core.flight.request_members import VALUE
from dafka_core.flight.requests import PutRequest
from dafka_core.records import RecordBatch
from dafka_core.values import Values


class _PutAcks:
    """What the store tells of its disk, read in a thread of its own: a writer does not wait for it.

    ``ended`` says that it tells no more, ``failed`` that it takes no more; why, the stream's end
    says.
    """

    def __init__(self, durable: int) -> None:
        self.durable = durable
        self.ended = self.failed = False
        self.failure: Exception | None = None
        self._changed = threading.Condition()

    def follow(self, reader: Any) -> None:
        """Begins to listen."""
        threading.Thread(
            target=self._listen, args=(reader,), name="dafka-flight-told", daemon=True
        ).start()

    def wait(self, end: int, timeout_s: float) -> bool:
        """Waits until ``end`` is on disk, or cannot come there; False without progress."""
        with self._changed:
            while self.durable < end and not self._is_over():
                seen = self.durable
                self._changed.wait_for(self._is_past(seen), timeout_s)
                if self.durable == seen and not self._is_over():
                    return False
        return True

    def _is_over(self) -> bool:
        return self.ended or self.failed

    def _is_past(self, seen: int) -> Callable[[], bool]:
        return lambda: self._is_over() or self.durable != seen

    def wait_ended(self) -> None:
        """Waits until the store tells no more, which a broken connection ends, too."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended)

    def _listen(self, reader: Any) -> None:
        failure: Exception | None = None
        try:
            while (told := reader.read()) is not None:
                end, failed = server_actions.parse_told(told.to_pybytes())
                with self._changed:
                    self.durable, self.failed = max(self.durable, end), failed
                    self._changed.notify_all()
        except (*FLIGHT_ERRORS, LookupError, TypeError, ValueError) as error:
            failure = error
        with self._changed:
            self.ended, self.failure = True, failure
            self._changed.notify_all()


class PutStream(Closing):
    """Appends values to one partition, or stages them, in order; a context.  For one thread.

    Nothing is certain before ``finish`` has returned, or ``durable`` says so.  A context left
    without it ends the put: what was written may be stored, or not.

    Attributes:
        end: the offset of the next value to be written.

    Raises, from each call:
        OffsetConflictError: the partition does not end where the put begins.
        FencedError: another attempt has taken over what this one stages.
        TransactionExistsError: the unit that it stages is there already.
        StoreUnreachableError: the store is not there, or nothing went on for the timeout.
    """

    def __init__(
        self, client: flight.FlightClient, request: PutRequest, call: CallDeadline
    ) -> None:
        self.end = request.start
        self._client = client
        self._request = request
        self._call = call
        self._stream: tuple[Any, Any] | None = None
        self._failure: DafkaError | None = None
        self._finished = False
        self._told = _PutAcks(request.start)

    @property
    def durable(self) -> int:
        """The end of what is on the store's disk, as far as the store has said."""
        return self._told.durable

    def wait_durable(self, end: int, *, timeout_s: float) -> int:
        """Waits until the partition is on disk up to ``end``, which has been written.

        Returns the partition's end on disk.  ``timeout_s`` is the longest wait without progress.
        """
        if self._told.durable < end:
            if self._failure is not None:
                raise self._failure
            if not self._told.wait(end, timeout_s):
                why = f"nothing came to its disk for {timeout_s:g} s"
                self._failure = StoreUnreachableError(self._request.store, why)
                self._call.give_up()
                raise self._failure
            self._check_told(end)
        return self._told.durable

    def write(self, values: pa.BinaryArray) -> None:
        """Sends values, an Arrow array of binary without nulls; waits while the store has enough.

        Raises:
            ConfigError: they are something else.
            ClosedError: the put is finished.
        """
        if not isinstance(values, pa.Array) or values.type != TYPES[VALUE] or values.null_count:
            kind = getattr(values, "type", type(values).__name__)
            raise ConfigError("values", str(kind), "must be an array of binary without nulls")
        whole = RecordBatch(self._request.tp, self.end, Values.from_arrow(values))
        for part in whole.split(MAX_PUT_BATCH_RECORDS, MAX_PUT_BATCH_BYTES):
            batch = pa.RecordBatch.from_arrays([part.values.to_arrow()], schema=VALUES_SCHEMA)
            with self._step() as (writer, _):
                writer.write_batch(batch)
            self.end = part.end

    def finish(self, timeout_s: float) -> int:
        """Waits until all is on disk, but not longer than ``timeout_s`` seconds without progress.

        Returns the partition's end on disk.

        Raises:
            ClosedError: it was called before.
        """
        self._call.limit(timeout_s)
        with self._step() as (writer, _):
            writer.done_writing()
        self.wait_durable(self.end, timeout_s=timeout_s)
        with self._step() as (writer, _):
            writer.close()
        self._leave()
        return self._told.durable

    def close(self) -> None:
        """Ends the put, finished or not; may be repeated."""
        stream = self._stream
        if stream is not None:
            # Closing waits for the store, so this wait must have an end, too; and for whoever
            # reads from it, who only hears of the end when the store does.
            self._call.wait()
            with contextlib.suppress(*FLIGHT_ERRORS):
                stream[0].done_writing()
                self._told.wait_ended()
            with contextlib.suppress(*FLIGHT_ERRORS):
                stream[0].close()
        self._leave()

    def _check_told(self, end: int) -> None:
        """Raises what has ended the stream before ``end`` was on disk."""
        if self._told.durable >= end:
            return
        with self._step() as (writer, _):
            # The store must know that nothing more comes: only its last word ends what listens.
            writer.done_writing()
            self._told.wait_ended()
            if self._told.failure is not None:
                raise self._failed(self._told.failure)
            writer.close()
        why = f"it has the records up to {self._told.durable} (exclusive), not those up to {end}"
        self._failure = StoreUnreachableError(self._request.store, why)
        raise self._failure

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
        try:
            if self._stream is None:
                descriptor = flight.FlightDescriptor.for_command(self._request.packed())
                self._call.__enter__()
                self._call.wait()
                self._stream = self._client.do_put(descriptor, VALUES_SCHEMA)
                self._told.follow(self._stream[1])
            self._call.wait()
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

"""Records on their way to a store, as one stream of batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import ClosedError, ConfigError, DafkaError, StoreUnreachableError
from dafka_core.flight.client_keys import ClientKeys
from dafka_core.flight.columns import TYPES, VALUE, VALUES_SCHEMA
from dafka_core.flight.flight_errors import FLIGHT_ERRORS, translated
from dafka_core.flight.grpc_workarounds import CallDeadline
from dafka_core.flight.json_messages import DurableEnd
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.requests import DiscardRequest, PutRequest
from dafka_core.model.names import escape, quoted
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values
from dafka_core.system.closing import ProcessBound

DISCARD_S: Final = 5.0
"""How long the end of a put that was interrupted may take."""


class PutStream(ProcessBound):
    """Appends values to one partition, or stages them, in order; a context.  For one thread.

    Nothing is certain before ``finish`` has returned, or ``durable`` says so.  A context left
    without it ends the put: what was written may be stored, or not.  One that Ctrl-C ends, or
    another exception that is no ``Exception``, does not wait for the store, has what was staged
    discarded, and says in a note what has become of it.

    Args:
        uri: where the store is, for a connection of its own.
        keys: by which it and the store know each other.

    Attributes:
        end: the offset of the next value to be written.
        durable: the end of what is on the store's disk, as far as the store has said.

    Raises, from each call:
        OffsetConflictError: the partition does not end where the put begins.
        FencedError: another attempt has taken over what this one stages.
        TransactionExistsError: the transaction that it stages, or a newer one, is committed.
        StoreUnreachableError: the store is not there, or nothing went on for the timeout.
    """

    def __init__(
        self,
        client: flight.FlightClient,
        request: PutRequest,
        call: CallDeadline,
        uri: str,
        keys: ClientKeys,
    ) -> None:
        self.end = self.durable = request.start
        self._client = client
        self._request = request
        self._store = request.store
        self._call = call
        self._uri = uri
        self._keys = keys
        self._writer: Any = None
        self._failure: DafkaError | None = None
        self._finished = False
        # The thread that reads the store's acknowledgements sets these, and ``durable``; it has a
        # place in the queue when there is news.  A ``Condition`` would take Ctrl-C amiss.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._is_over = False  # the store takes no more, or says no more
        self._acks_failure: Exception | None = None
        self._acks = threading.Thread()  # started with the stream

    def wait_durable(self, end: int, *, timeout_s: float) -> int:
        """Waits until the partition is on disk up to ``end``, which has been written.

        Returns the partition's end on disk.  ``timeout_s`` is the longest wait without progress.
        """
        if self.durable >= end:
            return self.durable
        if self._failure is not None:
            raise self._failure
        if not self._has_progress(end, timeout_s):
            self._call.give_up()
            why = f"nothing came to its disk for {timeout_s:g} s"
            raise self._fail(StoreUnreachableError(self._store, why))
        if self.durable < end:
            self._raise_ended(end)
        return self.durable

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
        for part in whole.split(MAX_BATCH_RECORDS, MAX_BATCH_BYTES):
            batch = pa.RecordBatch.from_arrays([part.values.to_arrow()], schema=VALUES_SCHEMA)
            with self._step() as writer:
                writer.write_batch(batch)
            self.end = part.end

    def finish(self, timeout_s: float) -> int:
        """Waits until all is on disk, but not longer than ``timeout_s`` seconds without progress.

        Returns the partition's end on disk.

        Raises:
            ClosedError: it was called before.
        """
        self._call.timeout_s = timeout_s
        with self._step() as writer:
            writer.done_writing()
        self.wait_durable(self.end, timeout_s=timeout_s)
        with self._step() as writer:
            writer.close()
        self._leave()
        return self.durable

    def close(self) -> None:
        """Ends the put, finished or not; may be repeated."""
        if self._writer is not None:
            # Closing waits for the store, and for the thread that reads the acknowledgements,
            # which ends when the store does: the deadline ends both.
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
                f"{what}: the store has what was written up to offset {self.durable} (exclusive); "
                "what was written after it may be stored, or not"
            )
            return
        try:
            self._discard()
            error.add_note(f"{what}: what was staged is discarded")
        except DafkaError as failure:
            error.add_note(
                f"{what}: what was staged is not discarded yet ({failure}); the store does so "
                "after its staged_hours, or 'dafka staged --discard'"
            )

    def _discard(self) -> None:
        """By another connection: that of the client has ended with the put."""
        asked = self._request
        rows = ((asked.topic, asked.partition, asked.attempt),)
        request = DiscardRequest(rows, store=asked.store).checked()
        options = self._keys.call_options(DISCARD_S)
        try:
            with self._keys.connect(self._uri, self._keys.trusted) as client:
                list(client.do_action(flight.Action(request.action, request.packed()), options))
        except FLIGHT_ERRORS as error:
            raise translated(error, self._store) from error

    def _has_progress(self, end: int, timeout_s: float) -> bool:
        """Waits until ``end`` is on disk, or cannot come there; False without progress."""
        while self.durable < end and not self._is_over:
            try:
                self._news.get(timeout=timeout_s)
            except Empty:
                return False
        return True

    def _read_acks(self, reader: Any) -> None:
        try:
            while (metadata := reader.read()) is not None:
                ack = DurableEnd.parse(metadata.to_pybytes())
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

    def _raise_ended(self, end: int) -> NoReturn:
        with self._step() as writer:
            # The store must hear that nothing more comes: then it ends the acknowledgements.
            writer.done_writing()
            self._acks.join()
            if self._acks_failure is not None:
                raise self._fail(self._call.translated(self._acks_failure, self._store))
            writer.close()
        why = f"it has the records up to {self.durable} (exclusive), not those up to {end}"
        raise self._fail(StoreUnreachableError(self._store, why))

    def _begin(self) -> None:
        descriptor = flight.FlightDescriptor.for_command(self._request.packed())
        self._call.start().wait()
        self._writer, reader = self._client.do_put(
            descriptor, VALUES_SCHEMA, self._keys.call_options()
        )
        # A thread of its own, as a writer does not wait for acknowledgements.
        self._acks = threading.Thread(
            target=self._read_acks, args=(reader,), name="dafka-flight-acks-read", daemon=True
        )
        self._acks.start()

    def _leave(self) -> None:
        self._finished = True
        self._writer = None
        self._call.close()

    @contextlib.contextmanager
    def _step(self) -> Iterator[Any]:
        if self._failure is not None:
            raise self._failure
        if self._finished:
            raise ClosedError("put")
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

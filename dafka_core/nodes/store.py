"""The store: a log on disk that takes part in the mesh."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

from dafka_core.errors import ClosedError, NodeFailedError, StoreError
from dafka_core.node_config import StoreConfig
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.appending import Appender
from dafka_core.nodes.bulk import serve_bulk
from dafka_core.nodes.merging import Merger
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.puts import Puts
from dafka_core.protocol.messages import ConsumerHello, Fetch, GetHeads, HeadsQuery, TimesQuery
from dafka_core.protocol.role import Outgoing, RunMessage
from dafka_core.protocol.storing import (
    Announce,
    StoreRole,
    Work,
    announcement,
    goes_on,
    head_messages,
    heads_reply,
    times_reply,
)
from dafka_core.records import PartitionInfo, Run
from dafka_core.storage import Log

ADDRESS_FILE: Final = "address"

MAX_PENDING_BYTES: Final = 32 << 20
"""Records waiting for the disk; no more are received beyond it."""

SERVE_COUNT: Final = 8_192
SERVE_BYTES: Final = 4 << 20
"""Records read and sent per turn: between turns records are stored and others are served."""

_log = logging.getLogger("dafka.store")


class Store:
    """Keeps every partition there is in ``directory``, from construction until ``stop``.

    A record is acknowledged when it is on disk, synced.

    Args:
        directory: made if it does not exist; one store at a time may have it open.
        tower: see ``NodeConfig.tower``.
        options: see ``StoreConfig``.

    Raises:
        ConfigError: an option cannot be used.
        StoreError: the directory cannot be used.
        TowerNotFoundError: no tower answered.
    """

    def __init__(self, directory: str | Path, *, tower: Any = None, **options: Any) -> None:
        if tower is not None:
            options["tower"] = tower
        config = StoreConfig.build(options)
        with contextlib.ExitStack() as undo:
            self.log = Log(directory)
            undo.callback(self.log.close)
            self._role = StoreRole(
                _kept_address(self.log.directory),
                self.log.end,
                sync_interval_s=config.sync_interval_ms / 1000,
            )
            self._appender = Appender(self.log, self._on_appended)
            undo.callback(self._appender.close)
            self._merger = Merger(self.log)
            undo.callback(self._merger.close)
            self._mesh = Mesh("store", self._role, config, on_round=self._on_round)
            undo.callback(self._mesh.close)
            self._puts = Puts(self._mesh, self._role, self.log)
            self._bulk = serve_bulk(self.log, self._puts, self._role, config)
            undo.callback(self._bulk.close)
            self._mesh.start()
            undo.pop_all()

    @property
    def address(self) -> str:
        """The store's UUID.  It lasts as long as the directory."""
        return self._role.address

    @property
    def locations(self) -> tuple[str, ...]:
        """Where its records can be had in bulk, as URIs of Arrow Flight; none if that is off."""
        return self._bulk.locations

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the store has stopped; True if it has.

        Raises:
            StoreError: its disk failed.  Nothing is acknowledged that is not stored.
            NodeFailedError: it ended with another error.
        """
        stopped = self._mesh.join(timeout_s)
        failure = self._mesh.failure
        if isinstance(failure, StoreError):
            raise failure
        if failure is not None:
            raise NodeFailedError("store", str(failure)) from failure
        return stopped

    def stop(self) -> None:
        """Stops; what was received and is not on disk was not acknowledged.  May be repeated."""
        self._mesh.close()
        self._appender.close()
        self._puts.fail()
        self._bulk.close()
        self._merger.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        if self._role.pending_bytes and not self._appender.busy:
            self._appender.append(self._role.take_pending())
        self._mesh.receive(self._role.pending_bytes < MAX_PENDING_BYTES)
        request = self._role.take_request()
        if request is not None:
            try:
                self._mesh.send(self._answer(request))
            except StoreError as error:
                # Damage concerns one partition; the others go on. Nothing wrong is ever sent.
                _log.error("%s", error)
        return self._role.has_requests()

    def _on_appended(self, runs: list[Run], error: BaseException | None) -> None:
        """In the appender's thread."""
        if error is not None:
            self._puts.fail(error)

        def acknowledge(now: float) -> list[Outgoing]:
            if error is not None:
                raise error
            messages = self._role.on_stored(runs)
            self._puts.stored(runs)
            return messages

        # A loop that has ended acknowledges nothing; the records are stored all the same.
        with contextlib.suppress(ClosedError, NodeFailedError):
            self._mesh.call(acknowledge)

    def _answer(self, request: Work) -> list[Outgoing]:
        match request:
            case Fetch():
                return self._records(request)
            case GetHeads():
                return head_messages(request.requestor, self.log.partitions(request.topic or None))
            case ConsumerHello():
                return head_messages(request.consumer, self._held(request.topics))
            case HeadsQuery():
                infos = self._held(request.topics) if request.topics else self.log.partitions()
                return heads_reply(request, self.address, infos)
            case TimesQuery():
                times = self.log.times(
                    request.topic, request.partition, request.sequence, request.end
                )
                return times_reply(request, self.address, times)
            case Announce():
                return announcement(self.log.partitions())

    def _held(self, topics: tuple[str, ...]) -> list[PartitionInfo]:
        return [info for topic in topics for info in self.log.partitions(topic)]

    def _records(self, fetch: Fetch) -> list[Outgoing]:
        chunks = self.log.read(
            fetch.topic,
            fetch.partition,
            fetch.sequence,
            fetch.end,
            max_records=SERVE_COUNT,
            max_bytes=SERVE_BYTES,
        )
        # Not before what was asked for: a requestor can do nothing with what follows a gap.
        if not chunks or chunks[0].offset != fetch.sequence:
            return []
        end = chunks[-1].end
        if end < fetch.end:
            rest = Fetch(fetch.partition, fetch.requestor, fetch.topic, end, fetch.end - end)
            self._role.put_back(rest)
        records: list[Outgoing] = [
            RunMessage(
                Run(fetch.topic, fetch.partition, chunk.offset, chunk.run_values()),
                fetch.requestor,
            )
            for chunk in chunks
        ]
        if end == fetch.end:
            records.extend(goes_on(fetch, self.log.end(fetch.topic, fetch.partition)))
        return records


def _kept_address(directory: Path) -> str:
    """The store's UUID, which lies beside its records.

    A producer that waits for the acknowledgements of two stores must not count one twice because
    it has been started again.
    """
    path = directory / ADDRESS_FILE
    try:
        if path.exists():
            return UUID(path.read_text("ascii").strip()).hex.upper()
        address = new_address()
        written = path.with_suffix(".new")
        with written.open("w") as file:
            file.write(f"{address}\n")
            file.flush()
            os.fsync(file.fileno())
        written.rename(path)
    except (OSError, ValueError) as error:
        raise StoreError(directory, f"file {ADDRESS_FILE}: {error}") from error
    return address

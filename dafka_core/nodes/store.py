"""The store: a log on disk that takes part in the mesh."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from pathlib import Path
from typing import Any, Final

from dafka_core.config.node_options import FLIGHT_OFF, StoreOptions
from dafka_core.errors import ClosedError, DafkaError, DiskFullError, NodeFailedError, StoreError
from dafka_core.flight.server import FlightService
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import ServerKeys
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation, socket_path
from dafka_core.model.epochs import LIFE_ID_BITS, number_at
from dafka_core.model.log_entries import LogEntry, RestartPartition, SetAside
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import RecordBatch
from dafka_core.model.timestamps import machine_us
from dafka_core.nodes.addresses import check_trusted
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.nodes.maintenance import (
    Deletions,
    HealThread,
    LogArchiver,
    MergeThread,
    ProtectedQueries,
    RetentionThread,
    UsageScan,
    usage_at_start,
)
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import Node, weakly
from dafka_core.nodes.store_identity import check_directory, copied, kept_address
from dafka_core.nodes.store_loop import LogWriter, Outcomes, StoreLoop
from dafka_core.protocol.beacons import endpoint_of
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.store_limits import StoreLimits
from dafka_core.protocol.store_role import StoreRole
from dafka_core.storage import Log
from dafka_core.storage.retention import Retention
from dafka_core.system.distribution import this_version

_SET_ASIDE: Final[dict[type, str]] = {
    SetAside: "%(partition)s: other stores have a newer producer's records from offset %(start)d "
    "on; those of this store are set aside ('dafka store aside')",
    RestartPartition: "%(partition)s: other stores have no records before offset %(start)d any "
    "more; this store continues there, and its own records are set aside ('dafka store aside')",
}
"""Log messages about records removed from their partition."""

CLOCK_S: Final = 2.0  # timeout for another store's clock: retention waits for it

_log = logging.getLogger("dafka.store")


class Store(Node):
    """Replicates every partition into ``directory``, from construction until ``close``.

    The store acknowledges a record when it is on disk, synced.  While the disk is full, it accepts
    no records, and serves those that it has.

    Args:
        directory: created if missing; only one store at a time may have it open.
        announce: announce the store at once. With False ``announce`` does so later, so that a
            failure in between, as of its gateway, leaves no missing store behind.
        options: see ``StoreOptions``.

    Attributes:
        address: the store's UUID.  It lasts as long as the directory.
        options: the options that it was started with; ``keys`` are its keys.
        known: the other stores: ``names`` are the addresses of all, ``here`` those of the present
            ones, and ``endpoints`` their Flight URIs by address.
        log: the records, for reading.
        append_queue: for writers in this process.
        retention_control: applies and changes retention rules.
        deletions: deletes topics here and at the other stores.

    Raises:
        ConfigError: an option is invalid.
        StoreError: the directory cannot be used.
        TowerNotFoundError: no tower answered.
    """

    def __init__(self, directory: str | Path, *, announce: Any = True, **options: Any) -> None:
        config = self.options = StoreOptions.build(options)
        check_directory(directory)
        with contextlib.ExitStack() as undo:
            max_ahead_us = int(config.max_timestamp_ahead_s * 1_000_000)
            log = self.log = undo.enter_context(Log(directory, max_ahead_us=max_ahead_us))
            if not log.clock.doubt():
                with contextlib.suppress(DiskFullError):  # it serves its records nevertheless
                    log.discard_stale(config.staged_hours * 3600)
            self.address = kept_address(log.directory, config)
            limits = StoreLimits(config.store_limits, by_key=bool(config.secret_key_file))
            self.role = role = StoreRole(
                self.address,
                log.lives,
                sync_interval_s=config.sync_interval_ms / 1000,
                limit_bytes=max_taken_bytes(config.max_record_bytes),
                hosting_id=secrets.randbits(LIFE_ID_BITS),
                least_number=number_at(time.time()),
                known=log.met(),
                wall_us=machine_us,
                limits=limits,
            )
            role.on_scan(usage_at_start(log, limits))
            self.known = role.known
            mesh = self.mesh = undo.enter_context(Mesh("store", role, config))
            mesh.peers.towers.is_announced = announce
            self.append_queue = AppendQueue(mesh, role, log, config.max_record_bytes)
            self._log_writer = undo.enter_context(
                LogWriter(log, weakly(self._on_written, None), weakly(self._on_room, None))
            )
            self.disk_watch = self._log_writer.watch
            self.archiver = LogArchiver(log, config.archive) if config.archive else None
            queries, until_read = None, config.retain_until_read
            if until_read:
                names = [name.strip() for name in config.protected_queries.split(",")]
                queries = ProtectedQueries(log, names)
            archive = self.archiver.archive if self.archiver else None
            self.retention = Retention(log, config.retain, archive, until_read, queries)
            self.deletions = Deletions(log, self.address, self.append_queue)
            self.compressor = log.compressor(config.compress, config.compress_after_s)
            steps = [self.compressor.step]
            if config.tamper_evidence:
                steps.append(log.linker.step)
            self.merge_thread = undo.enter_context(MergeThread(log, config.staged_hours, *steps))
            self.heal_thread = undo.enter_context(
                HealThread(log, weakly(self._others, []), config.keys)
            )
            scan = UsageScan(log, role, self.compressor, mesh.call_soon)
            self.retention_control = undo.enter_context(
                RetentionThread(
                    log, self.retention, self.deletions, scan, weakly(self._clocks_us, {})
                )
            )
            if self.archiver is not None and not self.retention.rules:
                text = "nothing is archived in %(archive)s until there is a rule of retention"
                _log.warning(text, {"archive": config.archive}, extra={"event": "archive_idle"})
            self._flight = undo.enter_context(contextlib.ExitStack())
            self.flight = self._serve_flight() if config.flight_port != FLIGHT_OFF else None
            self._reported_twin = ""  # endpoint of the last reported store with its address
            self.loop = StoreLoop(role, log, self._log_writer, mesh)
            mesh.start(self._on_round)
            undo.pop_all()
        self.is_open = True
        facts = {"address": self.address, "directory": str(directory), "version": this_version()}
        facts["endpoint"] = endpoint_of(mesh.beacon, "")
        text = "store %(address)s in %(directory)s is started: version %(version)s, at %(endpoint)s"
        _log.info(text, facts, extra={"event": "store_started"})

    @property
    def locations(self) -> tuple[str, ...]:
        """The Flight URIs of its records; empty without Flight."""
        return self.role.known.locations

    def announce(self) -> None:
        """Announce this store to the other nodes from now on."""
        self.mesh.call_soon(self.mesh.peers.announce)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the store has stopped; return True if it has.

        Raises:
            StoreError: its disk failed.  It acknowledges no record that is not stored.
            NodeFailedError: it ended with another error.
        """
        stopped = self.mesh.join(timeout_s)
        failure = self.mesh.failure
        if isinstance(failure, StoreError):
            raise failure
        if failure is not None:
            raise NodeFailedError("store", str(failure)) from failure
        return stopped

    def close(self) -> None:
        """Stop; received records that are not on disk were not acknowledged.  Idempotent."""
        was_open, self.is_open = self.is_open, False
        self.mesh.close()
        self._log_writer.close()
        self.append_queue.close()
        self._flight.close()
        if self.archiver is not None:
            self.archiver.stop()
        self.retention_control.close()
        self.heal_thread.close()
        self.merge_thread.close()
        self.log.close()
        if was_open:
            facts, extra = {"address": self.address}, {"event": "store_stopped"}
            _log.info("store %(address)s has stopped", facts, extra=extra)

    def _serve_flight(self) -> ServerContext:
        """Serve the log over Arrow Flight until closed."""
        config, host = self.options, self.mesh.beacon.host.strip("[]")
        if not config.secret_key_file:
            cure = f"set it to {FLIGHT_OFF}, or set secret_key_file and allowed_keys"
            check_trusted(host, "flight_port", config.flight_port, config, cure)
        role, mesh = self.role, self.mesh  # not the store, which its threads must not keep alive
        served = ServerContext(
            self.log,
            self.append_queue,
            role.address,
            lambda: role.known.endpoints,
            lambda: mesh.call(lambda now: mesh.peers.inbound.neighbours()),
            keys=ServerKeys(config.keys) if config.secret_key_file else None,
        )
        served.retention = self.retention_control
        served.delete_topic = self.deletions.delete
        port, path = int(config.flight_port), socket_path(self.log.directory)
        flight = self._flight.enter_context(
            FlightService(served, bind_host=host, port=port, socket_path=path)
        )
        role.known.locations = flight.location.locations
        return served

    def _clocks_us(self) -> dict[str, int]:
        """Return the clocks of the other present stores, as far as they answer over Flight."""
        found = {}
        for other in self._others():
            with contextlib.suppress(DafkaError), StoreClient(other, self.options.keys) as client:
                found[other.store] = client.clock_us(timeout_s=CLOCK_S)
        return found

    def _others(self) -> list[StoreLocation]:
        """Return the other present stores with Flight."""
        return [StoreLocation(store, at) for store, at in self.known.endpoints.items()]

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        twin, self.mesh.peers.table.twin = self.mesh.peers.table.twin, None
        if twin is not None and twin.older:
            why = f"store {self.address} is running at {twin.endpoint}, and {copied(self.address)}"
            raise StoreError(self.log.directory, why)
        if twin is not None and twin.endpoint != self._reported_twin:
            self._reported_twin = twin.endpoint
            text = "store %s: another store has its address, at %s"
            _log.warning(text, self.address, twin.endpoint)
        return self.loop.on_round(now)

    def _on_written(self, entries: list[LogEntry], outcomes: Outcomes | BaseException) -> None:
        """Run in the log writer's thread."""
        if isinstance(outcomes, BaseException):
            self.append_queue.close(outcomes)
        else:
            for entry in entries:
                if isinstance(entry, SetAside | RestartPartition):
                    facts = {"partition": str(entry.tp), "start": entry.start}
                    extra = {"event": "records_set_aside"}
                    _log.warning(_SET_ASIDE[type(entry)], facts, extra=extra)
                elif isinstance(entry, RecordBatch) and entry.tp.topic == DELETIONS_TOPIC:
                    self.retention_control.wake()
            self.append_queue.on_synced(entries, outcomes)

        def acknowledge(now: float) -> None:
            if isinstance(outcomes, BaseException):
                raise outcomes
            messages = self.role.on_stored(entries, outcomes)
            self.append_queue.on_written(entries, outcomes)
            self.mesh.send(messages)

        # A loop that has ended acknowledges nothing; the records are stored nevertheless.
        with contextlib.suppress(ClosedError, NodeFailedError):
            self.mesh.call_soon(acknowledge)

    def _on_room(self, error: DiskFullError | None) -> None:
        """Run in the log writer's thread."""
        self.append_queue.refuse(error)
        with contextlib.suppress(ClosedError, NodeFailedError):
            self.mesh.call_soon(lambda _: self.role.on_room(is_full=error is not None))

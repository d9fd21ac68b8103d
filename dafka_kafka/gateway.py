"""The gateway, which serves Kafka's clients from a store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from dafka_core.errors import ConfigError, DafkaError
from dafka_core.nodes.addresses import check_trusted
from dafka_core.nodes.store import Store
from dafka_core.ops.findings import Finding
from dafka_core.ops.store_extension import ExtensionNode
from dafka_core.system.hosts import HostPort, host_port, is_any, listen_for
from dafka_kafka import gateway_metrics
from dafka_kafka.acls import Acls
from dafka_kafka.api import Feature, NotInUse
from dafka_kafka.configs import Configs
from dafka_kafka.fetch import Fetch
from dafka_kafka.gateway_node import MAX_THREADS, GatewayNode
from dafka_kafka.gateways import Gateways
from dafka_kafka.groups.group_requests import Groups
from dafka_kafka.list_offsets import ListOffsets
from dafka_kafka.log_dirs import LogDirs
from dafka_kafka.metadata import Metadata
from dafka_kafka.options import DEFAULT_PORT, KafkaOptions
from dafka_kafka.partition_registry import PartitionRegistry
from dafka_kafka.produce import Produce
from dafka_kafka.sasl import Sasl
from dafka_kafka.server import BACKLOG, Server, tls_of
from dafka_kafka.topics import Topics
from dafka_kafka.users import Users


class Gateway(ExtensionNode):
    """Serves Kafka's clients from the cluster of ``store``, until ``close``.

    It closes before the store does.

    Args:
        store: a store that runs in this process.
        options: see ``KafkaOptions``.

    Raises:
        ConfigError: an option is invalid, or extra ``kafka`` is not installed.
    """

    metrics = gateway_metrics.TABLE

    def __init__(self, store: Store, **options: Any) -> None:
        config = KafkaOptions.build(options)
        with contextlib.ExitStack() as undo:
            where = host_port(config.listen, DEFAULT_PORT)
            tls = tls_of(config)
            users = Users(config.kafka_users) if config.kafka_users else None
            if users is not None:
                undo.callback(users.close)
            else:
                cure = "set kafka_users, or take 127.0.0.1"
                check_trusted(where.host, "listen", config.listen, store.options, cure)
            listener = undo.enter_context(listen_for("listen", where, BACKLOG))
            self.listens = HostPort(where.host, listener.getsockname()[1])
            """The address on which it listens."""
            self.advertised = _advertised(config, self.listens)
            """The address that clients are told to connect to."""
            threads = ThreadPoolExecutor(MAX_THREADS, "dafka-kafka")
            undo.callback(threads.shutdown, wait=False, cancel_futures=True)
            # Arrow imports pandas, if installed, at its first use: do that before a client waits
            # for it.
            threads.submit(pa.array, [0])
            gateways = Gateways(store, *self.advertised)
            registry = PartitionRegistry(store, gateways)
            undo.callback(registry.close)
            node = GatewayNode(store, config, registry, gateways, threads)
            undo.callback(node.replication.close)
            registry.start()
            self._server = Server(
                listener,
                _features(node, users),
                room=node.room,
                users=users,
                tls=tls,
                complaints=node.complaints,
            )
            undo.callback(self._server.close)
            self._server.start()
            gateways.announce()
            undo.callback(_retract, gateways)
            undo.callback(node.leaders.close)
            self._leaders = node.leaders
            self._leaders.start()
            self._undo = undo.pop_all()
        self.is_open = True

    @property
    def name(self) -> str:
        """The address that clients connect to."""
        return str(self.advertised)

    @property
    def facts(self) -> Mapping[str, str]:
        """The address that clients connect to."""
        return {"kafka": self.name}

    @property
    def notice(self) -> str:
        """One sentence with that address."""
        return f"Kafka's clients connect to {self.advertised}"

    def findings(self) -> Iterator[Finding]:
        """Yield whether it serves, and which gateway writes its partitions."""
        yield from gateway_metrics.findings(self._server, self.listens)
        yield from self._leaders.findings()

    @property
    def invalid_count(self) -> int:
        """The number of connections and requests refused because of invalid input."""
        return self._server.complaints.counts.total()

    @property
    def server(self) -> Server:
        """The server of client connections, for metrics and tests."""
        return self._server

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return self._server.connection_count

    def close(self) -> None:
        """Close all connections; may be repeated."""
        self.is_open = False
        self._undo.close()

    def on_forked(self) -> None:
        """Close a forked child's copies of the sockets."""
        if "_server" in vars(self):
            self._server.on_forked()


FEATURES: Final = (
    *(Acls, Configs, Fetch, Groups, ListOffsets, LogDirs, Metadata, NotInUse, Produce, Topics),
    Sasl,
)
"""All features; each declares its APIs.  ``Sasl`` has an object for each connection."""

APIS: Final = {api: each for feature in FEATURES for api, each in feature.declared.items()}
"""All APIs but ApiVersions, with unbound handlers."""


def _features(node: GatewayNode, users: Users | None) -> list[Feature]:
    groups, produce = Groups(node), Produce(node)
    return [
        Acls(users),
        Configs(node),
        Fetch(node),
        groups,
        ListOffsets(node),
        LogDirs(node),
        Metadata(node),
        NotInUse(),
        produce,
        Topics(node, settle=produce.settle, forget=groups.coordinator.forget_topic),
    ]


def _retract(gateways: Gateways) -> None:
    with contextlib.suppress(DafkaError):  # the store has ended: it isn't announced any more
        gateways.retract()


def _advertised(config: KafkaOptions, listens: HostPort) -> HostPort:
    if config.advertised is not None:
        host, port = host_port(config.advertised, DEFAULT_PORT)
        return HostPort(host, port or listens.port)
    if is_any(listens.host):
        why = "is all addresses of this machine: clients need one of them, as 'advertised'"
        raise ConfigError("listen", str(listens), why)
    return listens

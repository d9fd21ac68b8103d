"""Options of each kind of node, and of its metrics."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from dafka_core.config.options import (
    DEFAULT_PUB_PORT,
    DEFAULT_SUB_PORT,
    DEFAULT_TOWER,
    Options,
    option,
    parse_bool,
    parse_str,
)
from dafka_core.config.topic_rules import (
    COMPRESSION,
    RULES,
    CompressionRule,
    RetentionRule,
    parse_compression,
    parse_rules,
)
from dafka_core.errors import ConfigError, PartitionError
from dafka_core.model.envelope import AUTO, ENVELOPE, ENVELOPE_MEANING
from dafka_core.model.name_limits import MAX_CLIENT_BYTES, is_client_name
from dafka_core.model.names import printable
from dafka_core.model.timestamps import MAX_AHEAD_US
from dafka_core.system.hosts import ANY, HOST, bracketed, host_port, is_host

MAX_VALUE_BYTES: Final = 256 << 20
"""Default of ``max_record_bytes``, the largest record that a node accepts."""

MAX_RECORD_BYTES: Final = 2**31 - 1
"""Maximum of ``max_record_bytes``: Arrow's type for records has signed 32-bit offsets."""

STAGED_HOURS: Final = 24.0
"""Default age of staged records at which they are discarded; Spark retries tasks sooner."""

LIVE_BATCH_BYTES: Final = 32 << 10
"""Maximum that a producer packs into one message, unless one record is larger.  PUB sockets count
messages: this times the high-water mark is how much waits for a peer that does not read."""


@dataclass(eq=False)
class StoreLimitError(PartitionError):
    """Records that a store refuses by one of its limits; ``owner`` owns their partition."""

    sentence = (
        "the store accepts no records of it, by its option {option} = {limit} (owner {owner}): "
        "free space there with retention or a deletion, or raise the option"
    )
    owner: str
    option: str
    limit: int


@dataclass(frozen=True)
class StoreLimitOptions(Options):
    """Limits on what a store keeps."""

    max_partitions: int = option(
        1_000_000, "accepted partitions of all topics; each takes about 1 KB of memory", minimum=1
    )
    max_topics: int = option(100_000, "accepted topics. 0: no limit", minimum=0)
    max_partitions_per_topic: int = option(
        0,
        "accepted partitions of one topic; each start of a producer without address adds one. 0: "
        "no limit",
        unit="partitions",
        minimum=0,
    )
    max_partitions_per_key: int = option(
        50_000,
        "accepted partitions of one key's owner (without keys, of one address). 0: no limit",
        unit="partitions",
        minimum=0,
    )
    max_key_bytes: int = option(
        0,
        "disk space for the records of one key's owner (without keys, of one address). 0: no limit",
        minimum=0,
    )

    @property
    def store_limits(self) -> Mapping[str, int]:
        """Return the limits by their names."""
        return {each.name: getattr(self, each.name) for each in fields(StoreLimitOptions)}


INSECURE_ENVIRONMENT: Final = "DAFKA_INSECURE"
_ENVIRONMENT: Final = "environment variable"


class KeyFiles(NamedTuple):
    """The file of a node's secret key and the directory of its allowed keys, or both empty."""

    secret_key_file: str = ""
    allowed_keys: str = ""


NO_KEYS: Final = KeyFiles()


def keys_in(options: Mapping[str, Any]) -> KeyFiles:
    """Return the key files among unchecked options."""
    return KeyFiles(*(str(options.get(name) or "") for name in KeyFiles._fields))


def keys_of_environment() -> dict[str, str]:
    """Return the key options that commands and Spark's driver find in the environment."""
    names = {name: os.environ.get(f"DAFKA_{name.upper()}") for name in KeyFiles._fields}
    return {name: value for name, value in names.items() if value}


@dataclass(frozen=True)
class SecurityOptions(Options):
    """Options of every node that binds or connects."""

    secret_key_file: str = option(
        "",
        "secret key of this node, of `dafka keys new`, or env:NAME, a variable that contains it: "
        "connections are encrypted, and only owners of allowed keys are admitted "
        "(docs/security.md). Needs allowed_keys",
        kind="FILE",
    )
    allowed_keys: str = option(
        "", "directory of admitted public keys, NAME.key; reread when it changes", kind="DIR"
    )
    insecure: bool = option(
        False,
        "without keys, bind to addresses of other machines, all of which can read and write "
        "everything then; also DAFKA_INSECURE=true",
    )

    def __post_init__(self) -> None:
        if bool(self.secret_key_file) != bool(self.allowed_keys):
            why = "needs this node's own key as well: set option secret_key_file"
            if self.secret_key_file:
                why = "must name the directory of allowed keys, since secret_key_file is set"
            raise ConfigError("allowed_keys", self.allowed_keys, why)

    @property
    def keys(self) -> KeyFiles:
        """Return both options."""
        return KeyFiles(self.secret_key_file, self.allowed_keys)

    @property
    def may_be_open(self) -> bool:
        """Return True if ports without keys may be reachable from other machines."""
        value = os.environ.get(INSECURE_ENVIRONMENT) or "false"
        try:
            return parse_bool(value) or self.insecure
        except ValueError as error:
            raise ConfigError(INSECURE_ENVIRONMENT, value, str(error), _ENVIRONMENT) from None


TOWER_ENVIRONMENT: Final = "DAFKA_TOWER"

LOOPBACK: Final = "127.0.0.1"
AUTO_HOST: Final = "auto"  # for `host`: the address from which this machine reaches the towers
FLIGHT_OFF: Final = "off"  # for `flight_port`: the store is reached over the mesh only
C_LAYOUT: Final = "c"
RFC46: Final = "rfc46"
LAYOUTS: Final = (C_LAYOUT, RFC46)  # for `wire`
NEEDED_NODES: Final = "needed"
ALL_NODES: Final = "all"  # for `connect_to`
FAIL: Final = "fail"
SKIP: Final = "skip"
WAIT: Final = "wait"
IGNORE: Final = "ignore"  # for `on_data_loss` and `resume_missing`
TOWERS: Final = "HOST[:SUB_PORT:PUB_PORT]"
PORTS: Final = "0|PORT|FIRST-LAST"  # syntax of towers, and of ports, for users
_PROCESS: Final = os.getpid()

_TOWER = re.compile(rf"(?a)(?P<host>{HOST})(?::(?P<sub>\d{{1,5}}):(?P<pub>\d{{1,5}}))?")
_PORTS = re.compile(r"(?a)(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class TowerAddress:
    """One tower: a host, the SUB port that nodes send to, and the PUB port they receive from."""

    host: str
    sub_port: int
    pub_port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.sub_port}:{self.pub_port}"

    @property
    def sub_endpoint(self) -> str:
        """Return the endpoint that nodes send beacons to."""
        return f"tcp://{self.host}:{self.sub_port}"

    @property
    def pub_endpoint(self) -> str:
        """Return the endpoint that nodes receive beacons from."""
        return f"tcp://{self.host}:{self.pub_port}"


def parse_towers(value: Any) -> tuple[TowerAddress, ...]:
    """Parse ``HOST[:SUB_PORT:PUB_PORT]``, several with commas or in a list; drop duplicates.

    None means ``towers_of_environment``.  Raises ValueError if a tower is invalid.
    """
    if value is None:
        return towers_of_environment()
    words = str(value).split(",") if isinstance(value, str | TowerAddress) else value
    if not words or not isinstance(words, list | tuple):
        raise ValueError(f"must name at least one tower, as {TOWERS}")
    return tuple(dict.fromkeys(_tower(str(word).strip()) for word in words))


def _tower(word: str) -> TowerAddress:
    match = _TOWER.fullmatch(word)
    if match is None or not is_host(match["host"]):
        raise ValueError(f"must be {TOWERS}, as {DEFAULT_TOWER}; got {word!r}")
    ports = int(match["sub"] or DEFAULT_SUB_PORT), int(match["pub"] or DEFAULT_PUB_PORT)
    if not all(0 < port < 65_536 for port in ports):
        raise ValueError("must have ports in 1 to 65535")
    return TowerAddress(match["host"], *ports)


def towers_of_environment() -> tuple[TowerAddress, ...]:
    """Return the towers that ``DAFKA_TOWER`` names, or the default.

    Raises ConfigError if one is invalid, or a Spark session in this process has other ones.
    """
    value = os.environ.get(TOWER_ENVIRONMENT) or DEFAULT_TOWER
    why = ""
    if (spark := _tower_in_spark(value)) != value:
        why = (
            f"the Spark session has {spark!r}, with which its JVM started. Set it before the "
            "session starts, or name the tower with option 'tower'"
        )
    try:
        towers = parse_towers(value)
    except ValueError as error:
        why = str(error)
    if why:
        raise ConfigError(TOWER_ENVIRONMENT, value, why, _ENVIRONMENT)
    return towers


def _tower_in_spark(value: str) -> str:
    """Return the tower that format ``dafka`` uses in this process; ``value`` without a session."""
    context: Any = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    # A forked child must not use its parent's connection to the JVM.
    if context and context._active_spark_context and os.getpid() == _PROCESS:  # noqa: SLF001
        with contextlib.suppress(Exception):  # the JVM has ended, and with it the session
            found = context._jvm.java.lang.System.getenv(TOWER_ENVIRONMENT)  # noqa: SLF001
            return found or DEFAULT_TOWER
    return value


def parse_host(value: Any) -> str:
    """Parse a host name, an address (IPv6 in brackets), ``auto``, or ``*``, which nodes refuse."""
    host = bracketed(value.strip()) if isinstance(value, str) else ""
    if host != ANY and not is_host(host):
        raise ValueError(f"must be a host name, an address or {AUTO_HOST}")
    return host


def parse_ports(value: Any) -> str:
    """Parse a port, or the first and the last of several; return the text."""
    word = str(value).strip()
    match = _PORTS.fullmatch(word)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if word != "0" and not 0 < first <= last < 65_536:
        raise ValueError("must be a port (0 lets the system choose) or FIRST-LAST, as 20000-20099")
    return word


def parse_flight_port(value: Any) -> str:
    """Parse a port, or ``off``; return the text."""
    word = str(value).strip().lower()
    with contextlib.suppress(ValueError):
        if word == FLIGHT_OFF or ("-" not in word and parse_ports(word)):
            return word
    raise ValueError(f"must be a port (0 lets the system choose) or {FLIGHT_OFF}")


def parse_client_name(value: Any) -> str:
    """Parse the name of a client."""
    if not isinstance(value, str) or not is_client_name(value):
        raise ValueError(f"must have up to {MAX_CLIENT_BYTES} bytes of visible characters")
    return value


def _rules(meaning: str) -> tuple[RetentionRule, ...]:
    return option((), meaning, kind=RULES, parse=parse_rules)


def _parse_names(value: Any) -> str:
    """Parse names, separated by commas; return the text."""
    if not all(name.strip() for name in parse_str(value).split(",")):
        raise ValueError("must be names or patterns, separated by commas")
    return str(value)


@dataclass(frozen=True)
class NodeOptions(SecurityOptions):
    """Options of every node."""

    tower: tuple[TowerAddress, ...] = option(
        (),
        "towers, separated by commas. Default: DAFKA_TOWER, or else 127.0.0.1:5556:5557",
        kind=TOWERS,
        parse=parse_towers,
    )
    host: str = option(
        LOOPBACK,
        "address to bind to and to announce; `auto`: that from which this machine reaches the "
        "towers",
        parse=parse_host,
    )
    port: str = option(
        "0",
        "port that nodes connect to; of FIRST-LAST the first free one; 0 lets the system choose",
        kind=PORTS,
        parse=parse_ports,
    )
    tower_timeout_s: float = option(10.0, "how long to search for a tower", minimum=0.01)
    wait_for_tower: bool = option(
        False,
        "without a tower retry for ever, also while the network is down and names do not resolve",
    )
    beacon_interval_ms: int = option(1_000, "interval of beacons to the towers", minimum=10)
    peer_expiry_ms: int = option(4_000, "silence after which a peer counts as gone", minimum=100)
    high_water_mark: int = option(
        50_000,
        f"messages, each of up to {LIVE_BATCH_BYTES >> 10} KiB or one record, queued per peer "
        "before some are dropped (and fetched again later)",
        unit="messages",
        minimum=1_000,
    )
    max_subscribed_bytes: int = option(
        1 << 20,
        "size of one peer's subscriptions, about 10,000 topics; each byte takes 100 of memory. A "
        "peer with more is disconnected",
        minimum=65_536,
    )
    max_record_bytes: int = option(
        MAX_VALUE_BYTES,
        "larger records are not published, and peers send none to this node; up to 5,299,996 "
        "bytes are always accepted",
        minimum=4_096,
        maximum=MAX_RECORD_BYTES,
    )
    connect_to: str = option(
        NEEDED_NODES,
        "nodes to connect to: `needed`, those whose messages this one needs; `all`, every "
        "discovered node, as in RFC 46 (docs/wire.md)",
        choices=(NEEDED_NODES, ALL_NODES),
    )
    wire: str = option(C_LAYOUT, "layout of sent frames; nodes understand both", choices=LAYOUTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.secret_key_file and self.wire != C_LAYOUT:
            why = f"must be {C_LAYOUT} where secret_key_file is set: only our nodes have keys"
            raise ConfigError("wire", self.wire, why)
        if not self.tower:
            object.__setattr__(self, "tower", parse_towers(None))

    @property
    def ports(self) -> range:
        """Return the ports of option ``port``."""
        first, _, last = self.port.partition("-")
        return range(int(first), int(last or first) + 1)


@dataclass(frozen=True)
class ProducerOptions(NodeOptions):
    """Options of a producer."""

    acks: int = option(1, "stores that sync a record before it is acknowledged", minimum=1)
    allow_control_characters: bool = option(
        False,
        "publish to topics with control characters or bytes that are not UTF-8 (reading never "
        "needs it)",
    )
    envelope: str = option(AUTO, ENVELOPE_MEANING, choices=ENVELOPE)
    max_unacked_records: int = option(500_000, "limit at which publish waits", minimum=1)
    max_unacked_bytes: int = option(256 << 20, "limit at which publish waits", minimum=1)
    publish_timeout_s: float = option(60.0, "how long publish waits for room", minimum=0)
    close_timeout_s: float = option(30.0, "how long close waits for acknowledgements", minimum=0)
    resume_timeout_s: float = option(
        10.0, "how long a producer with an address waits for its last offset", minimum=0.01
    )
    resume_missing: str = option(
        FAIL,
        "for a producer with an address, if stores that may have its records do not respond: "
        "`fail` raises MissingStoresError, `ignore` continues; records that only they have are "
        "set aside later",
        choices=(FAIL, IGNORE),
    )
    head_interval_ms: int = option(1_000, "interval of announcing the last offset", minimum=10)
    client_name: str = option(
        "",
        "name in lists of partitions. Default: host name and process id, as `host-7:4711`",
        parse=parse_client_name,
    )

    @property
    def client(self) -> str:
        """Return the name of this producer, which stores keep with its partition."""
        return self.client_name or f"{printable(socket.gethostname())[:64]}:{os.getpid()}"


@dataclass(frozen=True)
class ConsumerOptions(NodeOptions):
    """Options of a consumer."""

    envelope: str = option(AUTO, ENVELOPE_MEANING, choices=ENVELOPE)
    max_queued_records: int = option(200_000, "queue at which receiving pauses", minimum=1)
    max_queued_bytes: int = option(64 << 20, "queue at which receiving pauses", minimum=1)
    on_data_loss: str = option(
        FAIL,
        "if no node has the next records: `fail` raises DataLossError, `skip` continues at the "
        "earliest available record, and counts and logs the missing ones, `wait` waits for a "
        "node that has them",
        choices=(FAIL, SKIP, WAIT),
    )


@dataclass(frozen=True)
class ReaderOptions(NodeOptions):
    """Options of a reader."""

    max_queued_bytes: int = option(64 << 20, "queue of a range's records", minimum=1)


@dataclass(frozen=True)
class StoreOptions(StoreLimitOptions, NodeOptions):
    """Options of a store."""

    sync_interval_ms: int = option(
        10_000, "interval of requests for the offsets of other stores", minimum=50
    )
    flight_port: str = option(
        "0",
        "port of Arrow Flight, for records in bulk; 0 lets the system choose, `off` disables it",
        kind="0|PORT|off",
        parse=parse_flight_port,
    )
    staged_hours: float = option(
        STAGED_HOURS, "staged records without additions for longer are discarded", minimum=0.001
    )
    max_timestamp_ahead_s: float = option(
        MAX_AHEAD_US / 1e6,
        "records stamped further ahead of this store's clock get the store's time; the gateway "
        "refuses them",
        minimum=0,
    )
    retain: tuple[RetentionRule, ...] = _rules(
        "maximum age or size of topics' records, as `flights*=7d,10GiB`; the first matching "
        "pattern applies. Without one they are kept for ever. Several by spaces"
    )
    retain_until_read: tuple[RetentionRule, ...] = _rules(
        "limits, as `flights*=30d,100GiB`, up to which `retain` spares records that protected "
        "queries have not read. Several by spaces"
    )
    protected_queries: str = option(
        "*",
        "queries that `retain_until_read` waits for: names (Spark's option `queryName`) or shell "
        "patterns, separated by commas",
        kind="NAME[,NAME...]",
        parse=_parse_names,
    )
    archive: str = option(
        "",
        "directory of Parquet files for records that `retain` would delete (docs/retention.md); "
        "stores may share it",
        kind="DIR",
    )
    compress: tuple[CompressionRule, ...] = option(
        (),
        "compression of topics' cold blocks, as `flights*=zstd`; the first matching pattern "
        "applies. Several by spaces",
        kind=COMPRESSION,
        parse=parse_compression,
    )
    compress_after_s: float = option(
        600.0, "age of a block's newest record at which the block is compressed", minimum=0
    )
    tamper_evidence: bool = option(False, "keep digests that reveal records changed on disk")


@dataclass(frozen=True)
class TowerOptions(SecurityOptions):
    """Options of a tower."""

    sub_address: str = option(
        "tcp://127.0.0.1:5556", "where nodes send their beacons; port 0 lets the system choose"
    )
    pub_address: str = option(
        "tcp://127.0.0.1:5557", "where nodes receive beacons; port 0 lets the system choose"
    )


def _parse_metrics(value: Any) -> str:
    """Parse ``[HOST:]PORT``; the default host is loopback."""
    text = str(value).strip()
    return str(host_port(f"{LOOPBACK}:{text}" if text.isdecimal() else text))


@dataclass(frozen=True)
class MetricsOptions(Options):
    """The options of a process that serves metrics of its nodes."""

    metrics: str | None = option(
        None,
        "serve `/metrics` for Prometheus, `/healthz` and `/readyz` at a port of loopback, or at "
        "HOST:PORT, with `*` for all addresses; port 0 lets the system choose (needs extra "
        "`metrics`)",
        kind="[HOST:]PORT",
        parse=_parse_metrics,
    )
    metrics_token_file: str = option(
        "",
        "a file with the token for requests, by `dafka keys token FILE`; required if other "
        "machines have access, unless `insecure` is set",
        kind="FILE",
    )
    metrics_topics: int = option(
        100,
        "maximum number of topics with their own metrics; all others are summed as topic `other`",
        unit="topics",
        minimum=0,
        maximum=10_000,
    )

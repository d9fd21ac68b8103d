"""The options of each kind of node, with its limits, its security and its addresses."""

from __future__ import annotations

import contextlib
import os
import re
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
)
from dafka_core.config.topic_rules import (
    COMPRESSION,
    RULES,
    CompressionRule,
    RetentionRule,
    checked_compression,
    checked_rules,
)
from dafka_core.errors import ConfigError, PartitionError
from dafka_core.model.envelope import AUTO, ENVELOPE, ENVELOPE_MEANING
from dafka_core.model.log_entries import STAGED_HOURS
from dafka_core.system.hosts import ANY, HOST, bracketed, is_host

MAX_VALUE_BYTES: Final = 256 << 20
"""The default for the largest record that a node takes (``max_record_bytes``)."""

MAX_RECORD_BYTES: Final = 2**31 - 1
"""The most that ``max_record_bytes`` may be: Arrow's type for records has signed 32-bit offsets."""

LIVE_BATCH_BYTES: Final = 32 << 10
"""The most that a producer packs into one message (or one record, if that is larger).  PUB sockets
count messages: this times the high-water mark is how much waits for a peer that does not read."""


@dataclass(eq=False)
class StoreLimitError(PartitionError):
    """Records that a store refuses by a limit of its own; ``owner`` owns their partition."""

    sentence = (
        "the store takes no records of it, by its option {option} = {limit} (owner {owner}): have "
        "retention or a deletion make room there, or raise the option"
    )
    owner: str
    option: str
    limit: int


@dataclass(frozen=True)
class PeerLimitOptions(Options):
    """Limits on the bytes that a node receives from each peer."""

    max_peer_rate_bytes: int = option(
        0,
        "what is received of one peer per second, on the average of some seconds: one that sends "
        "more waits, and the others do not. 0: no limit",
        unit="bytes/s",
        minimum=0,
    )


@dataclass(frozen=True)
class StoreLimitOptions(Options):
    """Limits on what a store keeps: partitions, topics and bytes; 0, where valid: no limit."""

    max_partitions: int = option(
        1_000_000,
        "partitions that the store takes, of all topics; some 1 KB of memory each",
        unit="partitions",
        minimum=1,
    )
    max_topics: int = option(
        100_000,
        "topics that the store takes; more are mostly a program that makes up names. 0: no limit",
        unit="topics",
        minimum=0,
    )
    max_partitions_per_topic: int = option(
        0,
        "partitions of one topic that the store takes: each producer that was started without an "
        "address has made one. 0: no limit but the others",
        unit="partitions",
        minimum=0,
    )
    max_partitions_per_key: int = option(
        50_000,
        "partitions of one key's owner that the store takes, so that nobody uses up "
        "max_partitions and max_topics; without keys, of one address. 0: no limit",
        unit="partitions",
        minimum=0,
    )
    max_key_bytes: int = option(
        0,
        "what the records of one key's owner may take on the store's disk, so that nobody fills "
        "it; without keys, those of one address, which is one partition of each topic. 0: no limit",
        unit="bytes",
        minimum=0,
    )

    @property
    def store_limits(self) -> Mapping[str, int]:
        """These limits by their names."""
        return {each.name: getattr(self, each.name) for each in fields(StoreLimitOptions)}


KEY_ENVIRONMENT: Final = "DAFKA_"
"""Before the name of an option, in capitals: where commands and Spark's driver find their key."""

INSECURE_ENVIRONMENT: Final = "DAFKA_INSECURE"


class KeyFiles(NamedTuple):
    """The file of a node's secret key and the directory of its trusted keys, or both empty."""

    secret_key_file: str = ""
    allowed_keys: str = ""


NO_KEYS: Final = KeyFiles()


def keys_in(options: Mapping[str, Any]) -> KeyFiles:
    """Return the key files among options that may not have been checked yet."""
    return KeyFiles(*(str(options.get(name) or "") for name in KeyFiles._fields))


def keys_of_environment() -> dict[str, str]:
    """The options that the environment has of them."""
    names = {name: os.environ.get(KEY_ENVIRONMENT + name.upper()) for name in KeyFiles._fields}
    return {name: value for name, value in names.items() if value}


@dataclass(frozen=True)
class SecurityOptions(Options):
    """Options of every node that binds or connects."""

    secret_key_file: str = option(
        "",
        "this node's secret key, as `dafka keys new` makes it: with it nodes talk encrypted, "
        "and to owners of allowed keys only (docs/security.md). Or env:NAME, an environment "
        "variable that holds the key itself. Needs allowed_keys",
        kind="FILE",
    )
    allowed_keys: str = option(
        "",
        "a directory with the public keys, NAME.key, of the towers and nodes that are let in; it "
        "is looked at each second",
        kind="DIR",
    )

    insecure: bool = option(
        False,
        "bind to addresses that other machines reach where no keys are asked for: whoever reaches "
        "them reads and writes everything. The same as DAFKA_INSECURE=true in the environment",
    )

    def __post_init__(self) -> None:
        if self.secret_key_file and not self.allowed_keys:
            why = "must name the directory of keys that are let in, since secret_key_file is set"
            raise ConfigError("allowed_keys", self.allowed_keys, why)
        if self.allowed_keys and not self.secret_key_file:
            why = "needs this node's own key as well: set option secret_key_file"
            raise ConfigError("allowed_keys", self.allowed_keys, why)

    @property
    def keys(self) -> KeyFiles:
        """The two files together."""
        return KeyFiles(self.secret_key_file, self.allowed_keys)

    @property
    def may_be_open(self) -> bool:
        """Return True if ports without keys may be reachable from other machines.

        Raises:
            ConfigError: the environment variable is neither true nor false.
        """
        said = os.environ.get(INSECURE_ENVIRONMENT) or "false"
        try:
            return parse_bool(said) or self.insecure
        except ValueError as error:
            name, what = INSECURE_ENVIRONMENT, "environment variable"
            raise ConfigError(name, said, str(error), what) from None


TOWER_ENVIRONMENT = "DAFKA_TOWER"
_ONE_CLUSTER: Final = "Set it before the session starts, or name the tower with option 'tower'"
_PROCESS: Final = os.getpid()

AUTO_HOST = "auto"
"""For ``host``: the address from which this machine reaches the towers."""

FLIGHT_OFF = "off"
"""For ``flight_port``: the store is reached over the mesh only."""

C_LAYOUT: Final = "c"
RFC46: Final = "rfc46"
LAYOUTS: Final = (C_LAYOUT, RFC46)
"""For ``wire``."""

NEEDED_NODES: Final = "needed"
ALL_NODES: Final = "all"
"""For ``connect_to``."""

FAIL: Final = "fail"
SKIP: Final = "skip"
WAIT: Final = "wait"
ON_DATA_LOSS: Final = (FAIL, SKIP, WAIT)
"""For ``on_data_loss``: a consumer's reaction to missing records that no node has."""

IGNORE: Final = "ignore"
"""For ``resume_missing`` and ``resume_deleted``: to begin all the same."""

TOWERS: Final = "HOST[:SUB_PORT:PUB_PORT]"
PORTS: Final = "0|PORT|FIRST-LAST"
"""Syntax of towers, and of ports, for users."""

_TOWER = re.compile(rf"(?a)(?P<host>{HOST})(?::(?P<sub>\d{{1,5}}):(?P<pub>\d{{1,5}}))?")
_PORT = re.compile(r"(?a)\d{1,5}")
_PORTS = re.compile(r"(?a)(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class TowerAddress:
    """One tower: a host, its SUB port (nodes send to it) and its PUB port (nodes hear it)."""

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
    """Towers from ``HOST[:SUB_PORT:PUB_PORT]``, several by commas or in a list.

    None means the environment's ``DAFKA_TOWER``, or else the default.  A tower that is named twice
    is one.

    Raises:
        ValueError: a word names no tower; ConfigError if it is the environment's.
    """
    if value is None:
        return towers_of_environment()
    words = str(value).split(",") if isinstance(value, str | TowerAddress) else value
    if not words or not isinstance(words, list | tuple):
        raise ValueError("must name at least one tower, as HOST[:SUB_PORT:PUB_PORT]")
    return tuple(dict.fromkeys(_tower(str(word).strip()) for word in words))


def towers_of_environment() -> tuple[TowerAddress, ...]:
    """The towers that ``DAFKA_TOWER`` names, or the default.

    Raises:
        ConfigError: it names none, or a Spark session in this process has another value.
    """
    value = os.environ.get(TOWER_ENVIRONMENT) or DEFAULT_TOWER
    try:
        towers = parse_towers(value)
    except ValueError as error:
        raise ConfigError(TOWER_ENVIRONMENT, value, str(error), "environment variable") from None
    if (spark := _tower_in_spark(value)) != value:
        why = f"the Spark session has {spark!r}, with which its JVM started. {_ONE_CLUSTER}"
        raise ConfigError(TOWER_ENVIRONMENT, value, why, "environment variable")
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


def _tower(word: str) -> TowerAddress:
    match = _TOWER.fullmatch(word)
    if match is None or not is_host(match["host"]):
        raise ValueError(f"must be HOST[:SUB_PORT:PUB_PORT], as {DEFAULT_TOWER}; got {word!r}")
    ports = int(match["sub"] or DEFAULT_SUB_PORT), int(match["pub"] or DEFAULT_PUB_PORT)
    if not all(0 < port < 65_536 for port in ports):
        raise ValueError("must have ports in 1 to 65535")
    return TowerAddress(match["host"], *ports)


def parse_host(value: Any) -> str:
    """Return a host's name or address (IPv6 in brackets), ``auto``, or ``*``, which nodes refuse.

    Raises:
        ValueError: the value is none of these.
    """
    host = bracketed(value.strip()) if isinstance(value, str) else ""
    if host != ANY and not is_host(host):
        raise ValueError(f"must be a host name, an address or {AUTO_HOST}")
    return host


def parse_flight_port(value: Any) -> str:
    """A port as text, or ``off``.

    Raises:
        ValueError: it is neither.
    """
    word = str(value).strip().lower()
    if word != FLIGHT_OFF and not (_PORT.fullmatch(word) and int(word) < 65_536):
        raise ValueError(f"must be a port (0 lets the system choose) or {FLIGHT_OFF}")
    return word


def parse_ports(value: Any) -> str:
    """A port, or the first and the last of some, as text.

    Raises:
        ValueError: it is neither.
    """
    word = str(value).strip()
    match = _PORTS.fullmatch(word)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if word != "0" and not 0 < first <= last < 65_536:
        raise ValueError("must be a port (0 lets the system choose) or FIRST-LAST, as 20000-20099")
    return word


@dataclass(frozen=True)
class NodeOptions(PeerLimitOptions, SecurityOptions):
    """Options of every node."""

    tower: tuple[TowerAddress, ...] = option(
        (),
        "towers to join through; several by commas. Without it DAFKA_TOWER from the environment, "
        "else 127.0.0.1:5556:5557",
        kind=TOWERS,
        parse=parse_towers,
    )
    host: str = option(
        "127.0.0.1",
        "address to bind to and to announce to other nodes; `auto` takes the one from which this "
        "machine reaches the towers",
        parse=parse_host,
    )
    port: str = option(
        "0",
        "where other nodes connect to this one: a port, or FIRST-LAST for the first of these that "
        "is free; 0 lets the system choose",
        kind=PORTS,
        parse=parse_ports,
    )
    tower_timeout_s: float = option(
        10.0, "how long to look for a tower before failing", unit="s", minimum=0.01
    )
    wait_for_tower: bool = option(
        False,
        "keep looking for a tower for ever instead of failing, also while the network is not up "
        "and names do not resolve",
    )
    beacon_interval_ms: int = option(
        1_000, "how often a node tells the towers that it is there", unit="ms", minimum=10
    )
    peer_expiry_ms: int = option(4_000, "a peer silent for longer is gone", unit="ms", minimum=100)
    high_water_mark: int = option(
        50_000,
        f"messages, each of up to {LIVE_BATCH_BYTES >> 10} KiB or one record, queued per peer "
        "before some are dropped (they are fetched again later)",
        unit="messages",
        minimum=1_000,
    )
    max_subscribed_bytes: int = option(
        1 << 20,
        "the subscriptions of one peer at this node: some 10,000 topics; each byte takes about "
        "100 bytes of memory here, and a peer with more is disconnected",
        unit="bytes",
        minimum=65_536,
    )
    max_record_bytes: int = option(
        MAX_VALUE_BYTES,
        "larger records are not published, and peers send none to this node, but those of up to "
        "5,299,996 bytes pass always",
        unit="bytes",
        minimum=4_096,
        maximum=MAX_RECORD_BYTES,
    )
    connect_to: str = option(
        NEEDED_NODES,
        "which nodes this one connects to: those whose messages it needs, so that producers do not "
        "connect to each other, or `all` that it discovers, as RFC 46 has it; these connect to it "
        "as well then (docs/wire.md)",
        choices=(NEEDED_NODES, ALL_NODES),
    )
    wire: str = option(
        C_LAYOUT, "layout of the frames sent; both are understood always", choices=LAYOUTS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.secret_key_file and self.wire != C_LAYOUT:
            why = f"must be {C_LAYOUT} where secret_key_file is set: only our nodes have keys"
            raise ConfigError("wire", self.wire, why)
        if not self.tower:
            object.__setattr__(self, "tower", parse_towers(None))

    @property
    def ports(self) -> range:
        """The ports of option ``port``."""
        first, _, last = self.port.partition("-")
        return range(int(first), int(last or first) + 1)


@dataclass(frozen=True)
class ProducerOptions(NodeOptions):
    """Options of a producer."""

    acks: int = option(
        1, "stores that must have a record on disk before it counts as acknowledged", minimum=1
    )
    allow_control_characters: bool = option(
        False,
        "publish to a topic whose name has control characters, or bytes that are not UTF-8 "
        "(reading never needs it)",
    )
    envelope: str = option(AUTO, ENVELOPE_MEANING, choices=ENVELOPE)
    max_unacked_records: int = option(
        500_000, "publish waits while this many are not acknowledged", unit="records", minimum=1
    )
    max_unacked_bytes: int = option(
        256 << 20, "publish waits while this much is not acknowledged", unit="bytes", minimum=1
    )
    publish_timeout_s: float = option(
        60.0, "how long publish waits for room before failing", unit="s", minimum=0
    )
    close_timeout_s: float = option(
        30.0, "how long close waits for acknowledgements before failing", unit="s", minimum=0
    )
    resume_timeout_s: float = option(
        10.0,
        "how long a producer given an address waits for the stores to say how far it had come",
        unit="s",
        minimum=0.01,
    )
    resume_missing: str = option(
        FAIL,
        "when a producer is given an address, and stores that may have acknowledged records of its "
        "partition do not answer: `fail` raises MissingStoresError, `ignore` goes on without them; "
        "what only they have is set aside when they come back",
        choices=(FAIL, IGNORE),
    )
    resume_deleted: str = option(
        FAIL,
        "when a producer is given an address, and its topic was deleted since it published last: "
        "`fail` raises TopicDeletedError, `ignore` goes on behind what was deleted",
        choices=(FAIL, IGNORE),
    )
    head_interval_ms: int = option(
        1_000, "how often the last offset is announced", unit="ms", minimum=10
    )


@dataclass(frozen=True)
class ConsumerOptions(NodeOptions):
    """Options of a consumer."""

    envelope: str = option(AUTO, ENVELOPE_MEANING, choices=ENVELOPE)
    max_queued_records: int = option(
        200_000,
        "records waiting for the application; no more are taken beyond it",
        unit="records",
        minimum=1,
    )
    max_queued_bytes: int = option(
        64 << 20,
        "bytes waiting for the application; no more are taken beyond it",
        unit="bytes",
        minimum=1,
    )
    on_data_loss: str = option(
        FAIL,
        "when nobody has a partition's next records any more: `fail` raises DataLossError, `skip` "
        "goes on with the earliest there are, and counts and logs what is missing, `wait` logs it "
        "and waits until somebody has them",
        choices=ON_DATA_LOSS,
    )


@dataclass(frozen=True)
class ReaderOptions(NodeOptions):
    """Options of a reader."""

    max_queued_bytes: int = option(
        64 << 20, "bytes of a range waiting for the application", unit="bytes", minimum=1
    )


@dataclass(frozen=True)
class StoreOptions(StoreLimitOptions, NodeOptions):
    """Options of a store."""

    sync_interval_ms: int = option(
        10_000, "how often other stores are asked what they have", unit="ms", minimum=50
    )
    flight_port: str = option(
        "0",
        "where Arrow Flight serves the records in bulk: a port, 0 lets the system choose, `off` "
        "serves none",
        kind="0|PORT|off",
        parse=parse_flight_port,
    )
    staged_hours: float = option(
        STAGED_HOURS,
        "staged records to which nothing was added for so long are discarded: those of writers "
        "that died",
        unit="h",
        minimum=0.001,
    )
    retain: tuple[RetentionRule, ...] = option(
        (),
        "which topics' records are kept for how long, or how much of them, as `flights*=7d,10GiB`; "
        "the first pattern that fits counts, what none fits is kept for ever. Several by spaces",
        kind=RULES,
        parse=checked_rules,
    )
    retain_until_read: tuple[RetentionRule, ...] = option(
        (),
        "which topics' records are kept beyond the rules of `retain` until protected queries have "
        "read them, and up to which limits, as `flights*=30d,100GiB`. Several by spaces",
        kind=RULES,
        parse=checked_rules,
    )
    protected_queries: str = option(
        "*",
        "the queries that `retain_until_read` waits for: names (option `queryName` of Spark's "
        "source) or patterns of a shell; several by commas",
        kind="NAME[,NAME...]",
    )
    archive: str = option(
        "",
        "a directory in which records are archived, as Parquet files, before they are given up by "
        "the rules of `retain` (docs/archive.md); stores may share it",
        kind="DIR",
    )
    compress: tuple[CompressionRule, ...] = option(
        (),
        "which topics' cold blocks are compressed, as `flights*=zstd`; the first pattern that fits "
        "counts, what none fits is not compressed. Several by spaces",
        kind=COMPRESSION,
        parse=checked_compression,
    )
    compress_after_s: float = option(
        600.0,
        "a block is cold, and compressed, when its newest record is so old",
        unit="s",
        minimum=0,
    )
    tamper_evidence: bool = option(False, "keep digests that tell of a record changed on the disk")


@dataclass(frozen=True)
class TowerOptions(SecurityOptions):
    """Options of a tower."""

    sub_address: str = option(
        "tcp://127.0.0.1:5556", "where nodes send their beacons; port 0 lets the system choose"
    )
    pub_address: str = option(
        "tcp://127.0.0.1:5557", "where nodes hear of each other; port 0 lets the system choose"
    )
    join: tuple[TowerAddress, ...] = option(
        (),
        "other towers, with commas between: their nodes are told of this tower, and this one's of "
        "them, and join through all of them from then on",
        kind=TOWERS,
        parse=parse_towers,
    )

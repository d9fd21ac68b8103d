"""Parsers of input from the network, from disks or from users, each as a function of bytes.

A target takes any bytes.  It raises the promised error, or the parsed value is equal after it is
packed and parsed again.  Everything else is a defect.
"""

import base64
import json
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from crc32c import crc32c

from dafka_core.archive.manifest import Commit
from dafka_core.config.node_options import LAYOUTS
from dafka_core.config.topic_rules import parse_compression, parse_rules
from dafka_core.errors import ConfigError, InvalidRequestError, ProtocolError
from dafka_core.flight.backup_requests import BackupRequest
from dafka_core.flight.requests import Criteria, GetRequest, InfoRequest, PutRequest, Request
from dafka_core.flight.server_requests import ACTIONS
from dafka_core.model import log_entries
from dafka_core.model.envelope_columns import HEADERS, KEY, VALUE, close_columns, opened_columns
from dafka_core.model.values import Values
from dafka_core.model.where import Where
from dafka_core.protocol import beacons, codec
from dafka_core.protocol.authorization import granted, refusal
from dafka_core.protocol.codec import BulkDecoder
from dafka_core.protocol.messages import (
    AnyRecord,
    ConsumerHello,
    DirectRecord,
    Fetch,
    FetchBatch,
    GetHeads,
    Head,
    HeadsQuery,
    HistoryQuery,
    RecordMessage,
    TimesQuery,
)
from dafka_core.queries import source_offset
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.security.key_files import PUBLIC, read_public
from dafka_core.security.permissions import CONSUME, NOBODY, PREFIX_DIGITS, ROLES, Permissions
from dafka_kafka import schemas
from dafka_kafka.api import Api, Client
from dafka_kafka.errors import RefusedError
from dafka_kafka.gateway import APIS
from dafka_kafka.partition_writer import joined as joined_records
from dafka_kafka.partition_writer import produced_records
from dafka_kafka.records.formats import decode_batches
from dafka_kafka.sasl import Sasl
from dafka_kafka.server import is_served, parse_head
from dafka_kafka.users import SCRAM, Rights, UserFile, Users, new_user
from dafka_spark.option_types import (
    parse_duration_ms,
    parse_offset_range_limit,
    parse_offsets_by_timestamp,
    parse_timestamp,
)

Target = Callable[[bytes], None]

READER: Final = Permissions("reader", frozenset({CONSUME}), consume=("t",), prefix="AB" * 6)
SECRETS: Final = [
    codec.encode(message)[0]
    for topic, address in (("tt", "ABAB"), ("s", "CD" * 16))
    for message in (
        RecordMessage(topic, address, 0, b""),
        DirectRecord(address, topic, address, 0, b""),
        Head(topic, address, 0),
        Fetch(address, topic, address, 0, 1),
        HeadsQuery(address, 0, ()),
    )
]
"""Frames that the reader must not receive, by the first of them."""

REQUESTS: Final = {Fetch, FetchBatch, GetHeads, ConsumerHello, HeadsQuery, TimesQuery, HistoryQuery}

_LENGTH: Final = struct.Struct(">H")


def joined(pieces: Sequence[bytes]) -> bytes:
    """The inverse of ``pieces``."""
    return b"".join(_LENGTH.pack(len(each)) + each for each in pieces)


def pieces(octets: bytes) -> list[bytes]:
    """Split bytes into pieces, each after its length; the last one may be shorter."""
    found = []
    while len(octets) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(octets)
        found.append(octets[_LENGTH.size : _LENGTH.size + length])
        octets = octets[_LENGTH.size + length :]
    return found


def frames(octets: bytes) -> None:
    """A message of the mesh, in both layouts."""
    received = pieces(octets)
    try:
        message = codec.decode(received)
    except ProtocolError:
        return
    for layout in LAYOUTS:
        assert codec.decode(codec.encode(message, layout)) == message


def permission(octets: bytes) -> None:
    """Messages and subscriptions of a key that may read one topic and own one prefix."""
    received = pieces(octets)
    with suppress(ProtocolError):
        message = codec.decode(received)
        assert refusal(NOBODY, message)
        if not refusal(READER, message):
            # It asks, for itself: it can say nothing that others take for records or for stores.
            assert type(message) in REQUESTS
    applied = granted(READER, b"\x01" + octets)
    assert applied is None or not any(each.startswith(applied[1:]) for each in SECRETS)


def key_file(octets: bytes) -> None:
    """The public file of a key."""
    with tempfile.NamedTemporaryFile(suffix=PUBLIC) as file:
        file.write(octets)
        file.flush()
        with suppress(ValueError):
            found = read_public(Path(file.name))
            assert found.roles <= {*ROLES}
            assert len(found.permissions.prefix) == PREFIX_DIGITS


def records(octets: bytes) -> None:
    """Messages with records, many at a time: the same as one by one."""
    received = pieces(octets)
    decoder, valid = BulkDecoder(), []
    for header, value in zip(received[::2], received[1::2], strict=False):
        decoder.add(header, value)
        if header[:1] in b"MD":
            with suppress(ProtocolError):
                message = codec.decode((header, value))
                assert isinstance(message, AnyRecord)
                valid.append((message.requestor, message.tp, message.sequence, message.value))
    taken = [
        (requestor, batch.tp, batch.offset + at, value)
        for requestor, batch in decoder.take()
        if batch.epoch is None and batch.transaction is None and batch.times is None
        for at, value in enumerate(batch.values)
    ]
    assert set(valid) <= set(taken)
    assert all(0 <= sequence < 2**63 for _, _, sequence, _ in taken)


def beacon(octets: bytes) -> None:
    """Messages between nodes and towers."""
    received = pieces(octets)
    with suppress(ProtocolError):
        node = beacons.decode_node_beacon(received)
        assert beacons.decode_node_beacon(beacons.encode_node_beacon(node)) == node
    with suppress(ProtocolError):
        tower = beacons.decode_tower_beacon(received)
        assert beacons.decode_tower_beacon(beacons.encode_tower_beacon(tower)) == tower


def envelope(octets: bytes) -> None:
    """Keys and headers of records: opened, closed and opened again they are the same."""
    columns = opened_columns(Values.of(pieces(octets)))
    if columns is None:
        return
    for column in columns.values():
        column.validate(full=True)
    closed = close_columns(columns[VALUE], columns[KEY], columns[HEADERS])
    again = opened_columns(Values.from_arrow(closed))
    if again is not None:
        assert all(again[name].equals(columns[name]) for name in columns)


_OTHERS: Final = (GetRequest, PutRequest, InfoRequest, Criteria, BackupRequest)
_ACTIONS: Final = tuple(each.request for each in ACTIONS.values())
_REQUESTS: Final[tuple[type[Request], ...]] = (*_OTHERS, *_ACTIONS)


def flight(octets: bytes) -> None:
    """A ticket, a descriptor, criteria or an action's body, by the first byte."""
    if not octets:
        return
    kind, packed = _REQUESTS[octets[0] % len(_REQUESTS)], octets[1:]
    with suppress(InvalidRequestError):
        request = kind.parse(packed)
        assert kind.parse(request.packed()) == request


def where(octets: bytes) -> None:
    """A condition on records."""
    with suppress(ValueError):
        Where.parse(octets.decode("utf-8", "surrogatepass"))


def kafka_request(octets: bytes) -> None:
    """A request of Kafka's, of any kind and version."""
    with suppress(ProtocolError):
        _request(octets)


def _request(octets: bytes) -> tuple[int, int, Any]:
    """Its kind, its version, and what is in it, if it is one that is taken."""
    request = memoryview(octets)
    head = parse_head(request, APIS)
    if not is_served(APIS, head.api_key, head.version):
        raise ProtocolError("of another version")
    found = schemas.decode_request(head.api_key, head.version, request, head.start)
    return head.api_key, head.version, found


def kafka_access(octets: bytes) -> None:
    """A request of a user without permissions, refused in a response that can be sent."""
    with suppress(ProtocolError):
        api_key, version, request = _request(octets)
        if api_key in APIS and APIS[api_key].need is not None:
            client = Client("fuzz", "here", version, rights=_NO_RIGHTS)
            handler: Any = APIS[api_key].handler
            try:
                handler(None, request, client).send(None)
            except StopIteration as done:
                schemas.encode_response(7, done.value, version)


_NO_RIGHTS: Final = Rights(NOBODY)


def kafka_records(octets: bytes) -> None:
    """A partition of a Produce request; the first byte is the request's version."""
    if not octets:
        return
    version, batch = octets[0] % 12, bytearray(octets[1:])
    _produced(batch, version)
    if len(batch) > _CRC_FROM:  # a forger can compute the checksum, too
        struct.pack_into(">I", batch, _CRC_AT, crc32c(bytes(batch[_CRC_FROM:])))
        _produced(batch, version)


_CRC_AT, _CRC_FROM = 17, 21
_MOST_BYTES: Final = 1 << 20


def _produced(octets: bytearray, version: int) -> None:
    with suppress(RefusedError):
        made = produced_records(memoryview(octets), version, _MOST_BYTES)
        contents, _ = joined_records([made])
        assert contents.largest_bytes <= _MOST_BYTES
        opened_columns(contents)
    with suppress(RefusedError):
        list(decode_batches(octets))


def sasl(octets: bytes) -> None:
    """Two messages of a Kafka client that authenticates; the file of users."""
    parts = [*pieces(octets)]
    said = [each.decode("utf-8", "replace") for each in parts]
    with tempfile.NamedTemporaryFile() as file:
        file.write(parts[2] if len(parts) > 2 else _USERS)
        file.flush()
        try:
            users = Users(file.name)
        except ConfigError:
            return
    connection = Sasl(users, is_private=True)
    asked: Any = SimpleNamespace(mechanism=SCRAM[0], version=1)
    handshake = connection.apis[Api.SASL_HANDSHAKE].handler
    with suppress(StopIteration):  # it waits for nothing
        handshake(asked, asked).send(None)  # type: ignore[attr-defined]
    with suppress(ValueError):
        for each in said[:2]:
            connection.challenge(each)
    assert connection.user is None


_USERS: Final = UserFile(b"key", {"alice": new_user("alice", "wonder land", ["produce"])}).packed()


def manifest(octets: bytes) -> None:
    """A file of an archive's manifest."""
    with suppress(ValueError):
        commit = Commit.parse(octets)
        assert Commit.parse(commit.packed()) == commit


def deletion(octets: bytes) -> None:
    """A record of the topic in which stores note deletions."""
    with suppress(ValueError):
        log_entries.parsed_deletions(octets)


def checkpoint_offset(octets: bytes) -> None:
    """An offset from a checkpoint: a tree of JSON, and what is packed in a text."""
    try:
        given = json.loads(octets)
    except (ValueError, RecursionError):
        given = None
    with suppress(ConfigError):
        SourceOffset.parse(given)
    packed = base64.b85encode(zlib.compress(octets)).decode()
    with suppress(ValueError):
        found = source_offset.unpack(packed)
        assert source_offset.unpack(source_offset.pack(*found)) == found


_OPTIONS: Final[tuple[Callable[[Any], object], ...]] = (
    *(parse_offset_range_limit, parse_offsets_by_timestamp, parse_timestamp, parse_duration_ms),
    *(parse_rules, parse_compression),
)


def option(octets: bytes) -> None:
    """The text of an option that is more than a word, by the first byte."""
    if octets:
        with suppress(ValueError):
            _OPTIONS[octets[0] % len(_OPTIONS)](octets[1:].decode("utf-8", "surrogatepass"))


TARGETS: Final[dict[str, Target]] = {
    each.__name__: each
    for each in (
        *(frames, records, beacon, envelope, flight, where, kafka_request, kafka_records, sasl),
        *(kafka_access, manifest, deletion, checkpoint_offset, option, permission, key_file),
    )
}

JSON_AT: Final = {"flight": 1, "manifest": 0, "deletion": 0, "checkpoint_offset": 0, "option": 1}
"""The targets of JSON, which begins at this byte."""

"""The same requests to a gateway and to Apache Kafka: every difference is named here.

Each script yields what a server answers, by name. ``DIFFERENCES`` has the reasons for those answers
that differ; docs/from_kafka.md has those that users meet.
"""

import random
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import crc32c
import pytest

from benchmarks import kafka_broker
from dafka_core import EmbeddedCluster
from dafka_core.config.node_options import StoreOptions
from dafka_kafka.configs import TOPIC_CONFIGS, Kind, settings
from dafka_kafka.options import KafkaOptions
from tests.integration.kafka import maven
from tests.integration.kafka.beside import Headers, Record, Server, batch_of, records_of
from tests.unit.kafka.records.batches import messages_of

NOW_MS: Final = int(time.time() * 1000)
HOUR_MS: Final = 3_600_000
FAR: Final = 10**15
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

TIMEOUT_S = 300

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(TIMEOUT_S)]

Found = Iterator[tuple[str, Any]]
Fields = dict[str, Any]

DIFFERENCES: Final = {
    "leader epochs are not used": r"list_offsets: v[5-9] .* leader_epoch",
    "Kafka's oldest version knows times of segments only; here it finds the record": (
        r"list_offsets: v0 (0|1|second|after second) of 0, 10? old_style_offsets"
    ),
    "without ZooKeeper Kafka has no commits of version 0": r"commits: v0 .*",
    "a gateway has no topics of Kafka's own": r"topics: (metadata of|create) __.*",
    "names that differ in '.' and '_' only are different topics": r"topics: create b_c",
    "the store gives the current time to records without one": r"times: -1 (v. read|listed [05]).*",
    "a time beyond microseconds of 64 bits is unknown": r"times: -9223372036854775808 .*",
    "negative times in message sets make Kafka fail": r"times: -(2|1000000000000) .*",
    "records far ahead of the clock are refused, as by Kafka 4": (
        r"times: (two hours ahead|9223372036854775807) .*"
    ),
    "a record has at most 8,191 headers": r"contents: too many headers.*",
    "message sets of several versions or codecs, which old clients send, are read": (
        r"message_sets: v[012] m(0 and m1|[01] two compressed|[01] plain, gzip).*"
    ),
    "no client sends record batches in old versions": r"message_sets: v. batch of version 2.*",
    "a request without a whole message is refused": r"message_sets: v. m. part of one message .*",
    "the error names what is wrong": (
        r"message_sets: v. m. (gzip of no gzip|zstd|codec 7|wrong CRC.*|size .*) error_code"
        r"|record_batches: v. codec 5 error_code"
    ),
    "a client's offsets are ignored": r"record_batches: v. base offset 7.*",
    "only a broker gives records an append time": r"record_batches: v. append time.*",
    "a negative limit is no limit": r"sizes: v\d+ (partition_)?max_bytes -5",
    "a small limit never stops a consumer": r"sizes: v0 partition_max_bytes (0|1|500|50000)",
    "a record may have max_record_bytes, and Kafka counts compressed bytes": (
        r"sizes: (1 MiB|5 MiB|70 MiB of zeros|70 records).*"
    ),
    "nothing is compacted, and records keep their producers' times": (
        r"configs: (cleanup.policy set to '(compact)?'|message.timestamp.type set to 'Log.*)"
    ),
    "retention.bytes has no other negative value than -1": r"configs: retention.bytes set to '-7'",
    "configs of a broker's files, which have no meaning here, are not shown": (
        rf"configs: topic ({'|'.join(n for n, each in TOPIC_CONFIGS.items() if not each.value)}) .*"
    ),
    "values are those of a store": (
        r"configs: topic (compression.type|flush.messages|max.message.bytes|retention.ms|"
        r"message.timestamp.after.max.ms) value"
    ),
    "values without effect are not checked in detail": (
        r"configs: (compression|delete|file|flush|follower|index|leader|local|max.compaction|"
        r"message.format|message.timestamp.(before|difference)|min.c|segment).* set to .*"
    ),
    "this broker has settings of its own": (
        r"configs: broker (group.initial.rebalance.delay.ms|num.partitions) config_source"
    ),
}


# -- offsets and groups ----------------------------------------------------------------------------


def filled(server: Server, topic: str) -> None:
    """Create a topic with ten records a second apart, in one batch."""
    assert server.create(topic) == "NONE"
    records: list[Record] = [
        (NOW_MS - 60_000 + 1000 * at, None, b"%d" % at, []) for at in range(10)
    ]
    assert server.produce(topic, batch_of(records))["base_offset"] == 0


def list_offsets(server: Server) -> Found:
    filled(server, "listed")
    second = NOW_MS - 58_000
    times: dict[Any, int] = {each: each for each in (*range(-7, 2), -100, 2**63 - 1)}
    times |= {"second": second, "after second": second + 1, "future": NOW_MS + HOUR_MS}
    for version in (0, 1, 2, 5, 6, 7, 8, 9):
        for name, stamp in times.items():
            for number, most in ((0, 10), (0, 1), (7, 1), (-1, 1))[version > 0 :]:
                part = {"partition_index": number, "timestamp": stamp, "max_num_offsets": most}
                topics = [{"name": "listed", "partitions": [{**part, "current_leader_epoch": -1}]}]
                asked = {"replica_id": -1, "isolation_level": 0, "topics": topics}
                answer = server.ask("ListOffsets", version, **asked)["topics"][0]["partitions"][0]
                yield f"v{version} {name} of {number}, {most}", answer


def committed(server: Server, group: str) -> Any:
    return server.ask("OffsetFetch", 5, group_id=group, topics=None)


def commit(server: Server, version: int = 7, **fields: Any) -> Any:
    part: Fields = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1}
    part["committed_metadata"] = "m"
    part |= {name: fields.pop(name) for name in part if name in fields}
    topics = [{"name": fields.pop("topic", "committed"), "partitions": [part]}]
    asked: Fields = {"group_id": "g", "member_id": "", "group_instance_id": None}
    asked |= {"retention_time_ms": -1}
    asked |= {"generation_id_or_member_epoch": -1, "topics": topics}
    answer = server.ask("OffsetCommit", version, **asked | fields)
    return answer["topics"][0]["partitions"][0]["error_code"]


def commits(server: Server) -> Found:
    filled(server, "committed")
    server.coordinate("g")
    for version in (0, 1, 2, 5, 7):
        for offset in (0, 10, -1, -2, -5, FAR, 2**63 - 1, -(2**63)):
            yield f"v{version} {offset}", commit(server, version, committed_offset=offset)
            yield f"v{version} {offset} fetched", committed(server, "g")["topics"]
        for topic in ("none", "", "a/b", "x" * 300):
            yield f"v{version} topic {topic}", commit(server, version, topic=topic)
        for number in (9, -1):
            yield f"v{version} partition {number}", commit(server, version, partition_index=number)
    cases: dict[str, Fields] = {
        "metadata null": {"committed_metadata": None},
        "metadata large": {"committed_metadata": "m" * 4096},
        "metadata too large": {"committed_metadata": "m" * 4097},
        "metadata of two bytes each": {"committed_metadata": "é" * 4096},
        "leader epoch": {"committed_leader_epoch": 5},
        "leader epoch -7": {"committed_leader_epoch": -7},
        "no group": {"group_id": ""},
        "generation 3": {"generation_id_or_member_epoch": 3},
        "generation -2": {"generation_id_or_member_epoch": -2},
        "member": {"member_id": "someone"},
        "member of generation 0": {"member_id": "someone", "generation_id_or_member_epoch": 0},
        "instance": {"group_instance_id": "i"},
    }
    for name, fields in cases.items():
        yield name, commit(server, **fields)
        yield f"{name} fetched", committed(server, "g")["topics"]
    for version in range(1, 6):
        for topic, number in ("committed", 0), ("committed", 9), ("committed", -1), ("none", 0):
            topics = [{"name": topic, "partition_indexes": [number]}]
            for group in "g", "none", "":
                answer = server.ask("OffsetFetch", version, group_id=group, topics=topics)
                yield f"fetched v{version} {topic} {number} of {group!r}", answer


def groups(server: Server) -> Found:
    filled(server, "grouped")
    server.coordinate("h")
    for group in "h", "":
        of_group: Fields = {"group_id": group}
        member = of_group | {"member_id": "someone", "group_instance_id": None}
        join: Fields = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
        join |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
        new = member | join | {"member_id": ""}
        for name, version, asked in (
            ("DescribeGroups", 4, {"groups": [group], "include_authorized_operations": False}),
            ("Heartbeat", 3, member | {"generation_id": 1}),
            ("Heartbeat", 3, member | {"generation_id": -5}),
            ("LeaveGroup", 2, {"group_id": group, "member_id": "someone"}),
            ("LeaveGroup", 3, of_group | {"members": [{"member_id": "x"}]}),
            ("SyncGroup", 3, member | {"generation_id": 1, "assignments": []}),
            ("OffsetDelete", 0, of_group | {"topics": []}),
            ("DeleteGroups", 1, {"groups_names": [group]}),
            ("JoinGroup", 5, member | join),
            ("JoinGroup", 5, new | {"session_timeout_ms": 1}),
            ("JoinGroup", 5, new | {"session_timeout_ms": -1}),
            ("JoinGroup", 5, new | {"protocols": []}),
            ("JoinGroup", 5, new | {"protocol_type": ""}),
            ("FindCoordinator", 2, {"key": group, "key_type": 7}),
        ):
            answer = server.ask(name, version, **asked)
            answer.pop("error_message", None)
            yield f"{name} of {asked}", answer
    commit(server, topic="grouped", group_id="k")
    for topic, number in ("grouped", 0), ("grouped", 7), ("none", 0):
        topics = [{"name": topic, "partitions": [{"partition_index": number}]}]
        yield f"{topic} {number}", server.ask("OffsetDelete", 0, group_id="k", topics=topics)
        yield f"{topic} {number} then", committed(server, "k")


def bounds(server: Server) -> Found:
    filled(server, "bounded")
    for version in (0, 3, 4, 11):
        for offset in (0, 10, 11, FAR, -1, -5, -(2**63)):
            for number in (0, 7, -1):
                answer = server.fetch("bounded", offset, version, partition=number)
                answer["records"] = len([*records_of(answer["records"])])
                yield f"v{version} {offset} of {number}", answer
    for offset in (11, FAR, -2, -(2**63), 4, 0, 3, -1, 0):
        for number in (0, 7):
            part = {"partition_index": number, "offset": offset}
            asked = [{"name": "bounded", "partitions": [part]}]
            answer = server.ask("DeleteRecords", 1, topics=asked, timeout_ms=5000)
            yield f"{offset} of {number} deleted", answer
            yield f"{offset} of {number} then", server.fetch("bounded", 4)["error_code"]
    yield "then written", server.produce("bounded", batch_of([(NOW_MS, None, b"v", [])]))


# -- records ---------------------------------------------------------------------------------------


def times(server: Server) -> Found:
    for name, stamp in {
        **{str(each): each for each in (-1, -2, -(10**12), -(2**63), 0, 1, 2**63 - 1)},
        "a year ago": NOW_MS - 365 * 24 * HOUR_MS,
        "half an hour ahead": NOW_MS + HOUR_MS // 2,
        "two hours ahead": NOW_MS + 2 * HOUR_MS,
    }.items():
        topic = f"times-{name}".replace(" ", "-")
        assert server.create(topic, **{"retention.ms": "-1"}) == "NONE"
        in_batch, in_set = (
            batch_of([(stamp, None, b"v", [])]),
            messages_of(1, [b"v"], timestamp=stamp),
        )
        for version, octets in (8, in_batch), (2, in_set):
            answer = server.produce(topic, octets, version)
            yield f"{name} v{version}", answer | {"error_message": None}
            for fetched in 11, 2:
                yield f"{name} v{version} read v{fetched}", server.records(topic, version=fetched)
        for asked in (-1, -2, 0, 5):
            part = {"partition_index": 0, "timestamp": asked, "current_leader_epoch": -1}
            topics = [{"name": topic, "partitions": [part]}]
            answer = server.ask("ListOffsets", 4, topics=topics, replica_id=-1, isolation_level=0)
            yield f"{name} listed {asked}", answer["topics"][0]["partitions"][0]["offset"]


def contents(server: Server) -> Found:
    many = [(f"h{at}", b"%d" % at) for at in range(3000)]
    cases: dict[str, tuple[bytes | None, bytes | None, Headers]] = {
        "null key": (None, b"v", []),
        "empty key": (b"", b"v", []),
        "null value": (b"k", None, []),
        "all null": (None, None, []),
        "empty value": (None, b"", []),
        "null header": (None, b"v", [("h", None)]),
        "empty header": (None, b"v", [("h", b""), ("", b"x"), ("", None)]),
        "same header": (b"k", b"v", [("h", b"1"), ("h", b"2"), ("i", b"3"), ("h", b"1")]),
        "unicode header": (b"k", b"v", [("héé\U0001f600\0", b"1")]),
        "many headers": (b"k", b"v", many),
        "too many headers": (b"k", b"v", many * 3),
        "an envelope's first bytes": (None, b"\xda\xfc", []),
    }
    for name, (key, value, headers) in cases.items():
        topic = re.sub(r"\W", "-", f"contents-{name}")
        assert server.create(topic) == "NONE"
        answer = server.produce(topic, batch_of([(NOW_MS, key, value, headers)]))
        yield name, answer | {"error_message": None}
        if name != "too many headers":
            yield f"{name} read", server.records(topic)
            yield f"{name} read v2", server.records(topic, version=2)


def damaged(octets: bytes, at: int = -1) -> bytes:
    made = bytearray(octets)
    made[at] ^= 0xFF
    return bytes(made)


def wrapped(magic: int, inner: bytes, codec: int) -> bytes:
    """Return a compressed message that contains these bytes."""
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", NOW_MS) if magic else b"")
    body += struct.pack(">ii", -1, len(inner)) + inner
    return struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body


def written(server: Server, topic: str, octets: bytes, version: int) -> tuple[Any, int]:
    """Write records; return the error, the distance of their offset, and the end before them."""
    end: int = server.fetch(topic, 0)["high_watermark"]
    answer = server.produce(topic, octets, version)
    offset = answer["base_offset"]
    fields = {"error_code": answer["error_code"], "offset": offset - end if offset >= 0 else offset}
    return fields, end


def message_sets(server: Server) -> Found:
    gzip = zlib.compressobj(wbits=31)
    nothing = gzip.compress(b"") + gzip.flush()
    values = [b"a", b"", None, b"d"]
    record_batch = batch_of([(NOW_MS, b"k", b"r", [])])
    sets = {"nothing": b"", "batch of version 2": record_batch}
    for magic in (0, 1):
        plain, zipped = messages_of(magic, values), messages_of(magic, values, GZIP)
        of_magic = {
            "plain": plain,
            "gzip": zipped,
            "snappy": messages_of(magic, values, SNAPPY),
            "two compressed": zipped * 2,
            "plain, gzip": plain + zipped,
            "wrong CRC": damaged(plain),
            "wrong CRC of the first": damaged(plain, 12),
            "wrong CRC in gzip": damaged(zipped),
            "part of a last message": plain + plain[:20],
            "part of a last head": plain + plain[:7],
            "part of one message": plain[:20],
            "gzip, part of a last message": zipped + plain[:20],
            "size 0": plain + bytes(12),
            "size -1": plain + struct.pack(">qi", 0, -1),
            "gzip of nothing": wrapped(magic, nothing, GZIP),
            "gzip of no gzip": wrapped(magic, b"abc", GZIP),
            "zstd": wrapped(magic, b"abc", ZSTD),
            "codec 7": wrapped(magic, b"abc", 7),
            "and record batch": plain + record_batch,
        }
        sets |= {f"m{magic} {name}": octets for name, octets in of_magic.items()}
    sets["m1 lz4"] = messages_of(1, values, LZ4)
    sets["m0 and m1"] = messages_of(0, values) + messages_of(1, values)
    sets["m5"] = damaged(messages_of(1, values), 16)
    assert server.create("sets") == "NONE"
    for version in (0, 1, 2, 3):
        for name, octets in sets.items():
            answer, end = written(server, "sets", octets, version)
            yield f"v{version} {name}", answer
            for fetched in (0, 2, 4):
                found = [each[2:] for each in server.records("sets", end, version=fetched)]
                yield f"v{version} {name} read v{fetched}", found


COVERED: Final = struct.Struct(">hiqqqhii")
FIELDS: Final = (
    *("attributes", "last", "base_ms", "max_ms"),
    *("producer_id", "epoch", "sequence", "count"),
)


def changed(batch: bytes, **fields: int) -> bytes:
    """Change fields of a record batch that its CRC covers."""
    found = dict(zip(FIELDS, COVERED.unpack_from(batch, 21), strict=True)) | fields
    covered = COVERED.pack(*found.values()) + batch[21 + COVERED.size :]
    return batch[:17] + struct.pack(">I", crc32c.crc32c(covered)) + covered


def record_batches(server: Server) -> Found:
    plain = batch_of([(NOW_MS, b"k", b"v", []), (NOW_MS, None, b"w", [])])
    one: list[Record] = [(NOW_MS, b"k", b"v" * 50, [])]
    batches = {f"codec {codec}": batch_of(one, codec) for codec in range(5)}
    batches |= {
        "plain": plain,
        "two": plain * 2,
        "wrong CRC": damaged(plain),
        "part of a last batch": plain + plain[:30],
        "part of a batch": plain[:-3],
        "base offset 7": struct.pack(">q", 7) + plain[8:],
        "leader epoch 5": plain[:12] + struct.pack(">i", 5) + plain[16:],
        "length -1": plain[:8] + struct.pack(">i", -1) + plain[12:],
        "nothing": b"",
        "no records": changed(plain, count=0),
        "fewer records": changed(plain, count=1),
        "more records": changed(plain, count=3),
        "last offset 5": changed(plain, last=5),
        "append time": changed(plain, attributes=8),
        "transactional": changed(plain, attributes=16),
        "control": changed(plain, attributes=32),
        "codec 5": changed(plain, attributes=5),
        "unknown attribute": changed(plain, attributes=1 << 9),
    }
    producers = {
        "without epoch": changed(plain, producer_id=5),
        "in the middle": changed(plain, producer_id=6, epoch=0, sequence=7),
        "at first": changed(plain, producer_id=7, epoch=0, sequence=0),
        "again": changed(plain, producer_id=7, epoch=0, sequence=0),
        "with a gap": changed(plain, producer_id=7, epoch=0, sequence=9),
        "of a newer epoch": changed(plain, producer_id=7, epoch=2, sequence=0),
        "of an older epoch": changed(plain, producer_id=7, epoch=1, sequence=2),
        "of a newer epoch in the middle": changed(plain, producer_id=7, epoch=3, sequence=4),
        "-2": changed(plain, producer_id=-2),
    }
    assert server.create("batches") == "NONE"
    for version in (3, 6, 7, 8):
        of_version = {f"producer {name}": each for name, each in producers.items() if version == 8}
        for name, octets in (batches | of_version).items():
            answer, end = written(server, "batches", octets, version)
            yield f"v{version} {name}", answer
            found = [each[2:] for each in server.records("batches", end)]
            yield f"v{version} {name} read", found
    for acks, timeout_ms in (2, 1000), (-2, 1000), (1, 0), (1, -1):
        answer = server.produce("batches", plain, acks=acks, timeout_ms=timeout_ms)
        yield f"acks {acks}, timeout {timeout_ms}", answer["error_code"]


def sizes(server: Server) -> Found:
    assert server.create("sizes") == "NONE"
    values: list[Record] = [(NOW_MS, b"k", b"x" * 1000, [])] * 100
    for _ in range(3):
        assert server.produce("sizes", batch_of(values))["error_code"] == "NONE"
    for version in (0, 3, 4, 11):
        for limit in (-5, 0, 1, 500, 50_000, 150_000, 2**31 - 1):
            for name in ("partition_max_bytes", "max_bytes")[: 1 + (version >= 3)]:
                answer = server.fetch("sizes", 150, version, **{name: limit})
                several = len([*records_of(answer["records"])]) > 1
                yield f"v{version} {name} {limit}", (answer["error_code"], several)
    for min_bytes, wait_ms in (0, 0), (2**31 - 1, 10), (2**31 - 1, -1):
        found = server.records("sizes", min_bytes=min_bytes, max_wait_ms=wait_ms)
        yield f"min_bytes {min_bytes}, {wait_ms} ms", len(found)
    assert server.create("large") == "NONE"
    mib: list[Record] = [(NOW_MS, None, bytes(1 << 20), [])]
    for name, records, codec in (
        ("less than 1 MiB", [(NOW_MS, None, random.Random(1).randbytes(1_048_000), [])], 0),
        ("1 MiB", [(NOW_MS, None, random.Random(1).randbytes(1 << 20), [])], 0),
        ("5 MiB", [(NOW_MS, None, random.Random(1).randbytes(5 << 20), [])], 0),
        ("5 MiB of zeros gzip", mib * 5, GZIP),
        ("70 MiB of zeros gzip", [(NOW_MS, None, bytes(70 << 20), [])], GZIP),
        ("70 MiB of zeros zstd", [(NOW_MS, None, bytes(70 << 20), [])], ZSTD),
        ("70 records gzip", mib * 70, GZIP),
        ("70 records zstd", mib * 70, ZSTD),
    ):
        yield name, server.produce("large", batch_of(records, codec))["error_code"]


# -- topics and configs ----------------------------------------------------------------------------


def topics(server: Server) -> Found:
    own = ("__consumer_offsets", "__transaction_state", "__share_group_state")
    for topic in ("", ".", "..", "a b", "a/b", "x" * 249, "x" * 250, "__mine", "é", *own):
        asked = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        answer = server.ask("Metadata", 8, **asked)["topics"]
        yield f"metadata of {topic}", answer[0]["error_code"]
        if topic != "__consumer_offsets":
            yield f"create {topic}", server.create(topic)
    for topic in ("b.c", "b_c", "b.c"):
        yield f"create {topic}", server.create(topic)
    cases: dict[str, Fields] = {
        "0 partitions": {"num_partitions": 0},
        "-2 partitions": {"num_partitions": -2},
        "no copy": {"replication_factor": 0},
        "five copies": {"replication_factor": 5},
        "default partitions": {"num_partitions": -1, "replication_factor": -1},
        "assignments and partitions": {"assignments": [{"partition_index": 0, "broker_ids": [1]}]},
        "assigned to nobody": {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [77]}],
        },
        "an assignment of partition 3": {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 3, "broker_ids": [int(server.node_id())]}],
        },
    }
    for name, fields in cases.items():
        made = {"name": "d", "num_partitions": 1, "replication_factor": 1, "assignments": []}
        asked = {"topics": [made | {"configs": []} | fields], "validate_only": True}
        answer = server.ask("CreateTopics", 4, timeout_ms=30_000, **asked)["topics"]
        yield f"create with {name}", answer[0]["error_code"]


def described(server: Server, kind: int, name: str) -> dict[str, Any]:
    """Return the configs of a resource by their names."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = server.ask("DescribeConfigs", 3, resources=[resource], include_synonyms=False)
    return {each["name"]: each for each in answer["results"][0]["configs"]}


def altered(server: Server, name: str, value: str | None, operation: int = 0) -> Any:
    """Change a config of topic ``configured``; return the error."""
    config = {"name": name, "value": value, "config_operation": operation}
    resource = {"resource_type": 2, "resource_name": "configured", "configs": [config]}
    asked = {"resources": [resource], "validate_only": False}
    return server.ask("IncrementalAlterConfigs", 0, **asked)["responses"][0]["error_code"]


OTHER: Final = {
    **dict.fromkeys(("leader", "follower"), "0:1"),
    "cleanup": "compact",
    "compression.type": "gzip",
    "message.timestamp.type": "LogAppendTime",
    "message.format.version": "2.8",
    "min.cleanable.dirty.ratio": "0.7",
    "min.insync.replicas": "1",
}
"""Values for the configs that begin so."""


def configs(server: Server) -> Found:
    assert server.create("configured") == "NONE"
    shown = described(server, 2, "configured")
    kinds = {name: each.kind for name, each in TOPIC_CONFIGS.items()}
    for name in sorted({*kinds, *shown}):
        found, kind = shown.get(name, {}), kinds.get(name)
        for field in ("config_type", "config_source", "is_sensitive", "value"):
            yield f"topic {name} {field}", found.get(field)
        other = "true" if kind == Kind.BOOLEAN else "900000"
        other = next((value for begin, value in OTHER.items() if name.startswith(begin)), other)
        yield f"{name} set to its value", altered(server, name, found.get("value", other))
        for value in (other, "-7", "so", ""):
            yield f"{name} set to {value!r}", altered(server, name, value)
        yield f"{name} reset", altered(server, name, None, 1)
    for name, value in {
        "retention.ms": str(2**63 - 1),
        "retention.bytes": str(2**63 - 1),
        "retention.bytes ": "1",
        "max.message.bytes": "1000",
        "message.timestamp.before.max.ms": "1000",
        "local.retention.ms": "-2",
        "remote.storage.enable": "false",
        "colour": "red",
    }.items():
        yield f"{name} set to {value!r}", altered(server, name, value)
        yield (
            f"created with {name} {value!r}",
            server.create(f"with-{name.strip()}", **{name: value}),
        )
    altered(server, "message.timestamp.before.max.ms", None, 1)
    records: list[Record] = [(NOW_MS, None, bytes(1000), [])]
    for value in ("1000", "2000"):
        yield f"limit {value}", altered(server, "max.message.bytes", value)
        yield f"limited to {value}", described(server, 2, "configured")["max.message.bytes"]
        yield f"batch of {value}", server.produce("configured", batch_of(records))["error_code"]
    own = described(server, 4, server.node_id())
    for name in settings(KafkaOptions(), StoreOptions()):
        for field in ("config_type", "config_source", "is_sensitive"):
            yield f"broker {name} {field}", own[name][field]


SCRIPTS: Final[list[Callable[[Server], Found]]] = [
    list_offsets,
    commits,
    groups,
    bounds,
    times,
    contents,
    message_sets,
    record_batches,
    sizes,
    topics,
    configs,
]


def leaves(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    """Flatten structures, so that each field is compared by its own name."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from leaves(f"{name} {key}", value)
    elif isinstance(found, list) and found and isinstance(found[0], dict):
        for at, value in enumerate(found):
            yield from leaves(f"{name} {at}" if at else name, value)
    else:
        yield name, found


def answers(address: str) -> dict[str, Any]:
    server = Server(address)
    return {
        leaf: value
        for script in SCRIPTS
        for name, found in script(server)
        for leaf, value in leaves(f"{script.__name__}: {name}", found)
    }


def test_a_gateway_answers_as_kafka_but_for_named_differences() -> None:
    maven.fetch()
    with EmbeddedCluster(kafka=True) as cluster, kafka_broker.broker(partitions=1) as broker:
        kafka, gateway = answers(broker), answers(cluster.bootstrap_servers)
    names = {name for name in kafka | gateway if kafka.get(name) != gateway.get(name)}
    unnamed = {
        name: (kafka.get(name), gateway.get(name))
        for name in sorted(names)
        if not any(re.fullmatch(each, name) for each in DIFFERENCES.values())
    }
    assert unnamed == {}
    for reason, pattern in DIFFERENCES.items():
        assert any(re.fullmatch(pattern, name) for name in names), reason

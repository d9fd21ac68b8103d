"""Stored state of groups, in a store without a mesh."""

import struct

from dafka_core.model.records import TopicPartition
from dafka_core.testing import StoreDouble
from dafka_kafka.groups.group import Generation, Joining, KeptMember
from dafka_kafka.groups.offsets import OFFSETS_TOPIC, Committed, GroupRecord
from dafka_kafka.registry_table import REGISTRY, RegistryRecord

GATEWAY = "A" * 32
FIRST, SECOND, THIRD = (TopicPartition("t", digit * 32) for digit in "123")


def part(*numbers: int) -> bytes:
    """Encode an assignment of topic t in the consumer protocol."""
    return struct.pack(f">hihci{len(numbers)}ii", 0, 1, 1, b"t", len(numbers), *numbers, -1)


JOINED = Joining("app-1", (), 6.0, 6.0, client_id="app", host="10.0.0.7")
MEMBER = KeptMember("app-1", JOINED, part(0, 2))


def keep(store: StoreDouble) -> None:
    """Topic t has three partitions of 10 records; group g has consumed from two of them."""
    rows = tuple((tp.partition, GATEWAY, True) for tp in (FIRST, SECOND, THIRD))
    numbers = [
        RegistryRecord(lease="T"),
        RegistryRecord(topic="t", first=0, partitions=rows),
        RegistryRecord(committed=2),
        RegistryRecord(topic="t", first=3, partitions=(("4" * 32, GATEWAY, True),)),
    ]
    store.append(REGISTRY, [each.packed() for each in numbers])
    for tp in (FIRST, SECOND, THIRD):
        store.append(tp, [bytes(100)] * 10)
    committed = (Committed("t", 0, 4), Committed("t", 1, 10), Committed("t", 7, 1))
    records = [
        GroupRecord("g", 1, (Committed("t", 0, 9),)),
        GroupRecord("g", 2, committed),
        GroupRecord("g", 3, generation=Generation(1, "consumer", "range", "app-1", (MEMBER,))),
        GroupRecord("idle", 4, (Committed("t", 2, 10),)),
        GroupRecord("gone", 5, (Committed("t", 2, 10),)),
        GroupRecord("gone", 6, deleted=True),
    ]
    values = [each.packed() for each in records]
    store.append(TopicPartition(OFFSETS_TOPIC, GATEWAY), [b"not a record", *values])

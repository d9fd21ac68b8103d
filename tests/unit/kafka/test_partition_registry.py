"""Changes proposed to the partition registry."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dafka_core.model.epochs import MAX_END
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_kafka import partition_registry
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.partition_registry import (
    FENCED,
    LEASE_TABLE,
    RETRY,
    LeaseState,
    PendingChanges,
    Proposal,
    RegistryLease,
)
from dafka_kafka.registry_table import RegistryLog, RegistryRecord, RegistryTable

KNOWN: Any = SimpleNamespace(names=(), here=frozenset())
FAIL: Any = None


def begun() -> RegistryTable:
    table = RegistryTable()
    table.apply(RegistryRecord(topic="t", partitions=(("A", "G1", True), ("B", "G1", False))))
    return table


def test_gateways_host_in_writer() -> None:
    draft = PendingChanges(begun())
    draft.host("t", 3, ["G1", "G2"])
    added = draft.table.partitions("t")[2:]
    assert [(each.number, each.gateway) for each in added] == [(2, "G1"), (3, "G2"), (4, "G1")]
    assert len({each.address for each in added}) == 3
    table = begun()
    for record in draft.records:
        table.apply(record)
    assert table.partitions("t") == draft.table.partitions("t")
    assert table.skipped == 0


def test_nothing_is_added_where_enough_is_there() -> None:
    draft = PendingChanges(begun())
    draft.host("t", 0, ["G1"])
    draft.host("t", -2, ["G1"])
    draft.adopt([TopicPartition("t", "B")], lambda key: ["G2"])
    assert draft.records == []


def test_producers_partitions_get_the_next_numbers_once() -> None:
    draft = PendingChanges(begun())
    found = [TopicPartition(*name) for name in ("tC", "uA", "tD", "tC", "tA")]
    draft.adopt(found, lambda key: ["G2"])
    draft.adopt(found, lambda key: ["G2"])
    draft.host("u", 1, ["G1"])
    assert [each[1:3] for each in draft.table.partitions("t")[2:]] == [(2, "C"), (3, "D")]
    assert not any(each.hosted for each in draft.table.partitions("t")[2:])
    assert [each.number for each in draft.table.partitions("u")] == [0, 1]


def test_who_hosts_some_of_a_topic_takes_what_is_written_to_its_producers_partitions() -> None:
    draft = PendingChanges(begun())
    draft.adopt([TopicPartition("t", "C"), TopicPartition("u", "C")], lambda key: ["G2", "G1"])
    assert [each.gateway for each in draft.table.partitions("t")] == ["G1", "G1", "G1"]
    # No gateway hosts it: the nearest one will, if clients write to it.
    assert [each.gateway for each in draft.table.partitions("u")] == ["G2"]


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_registry, "MAX_PARTITIONS", 4)
    draft = PendingChanges(begun())
    draft.host("t", 2, ["G1"])
    with pytest.raises(RefusedError) as refused:
        draft.host("u", 1, ["G1"])
    assert refused.value.code == KafkaError.POLICY_VIOLATION
    assert draft.table.partitions("u") == ()


def test_who_wishes_is_told_once() -> None:
    done, refused = Proposal(lambda draft: None, 9), Proposal(lambda draft: None, 9)
    done.complete()
    done.complete(ValueError("too late"))
    refused.complete(ValueError("no"))
    refused.complete()
    assert done.future.result(0) is None
    with pytest.raises(ValueError, match="no"):
        refused.future.result(0)
    gone = Proposal(lambda draft: None, 9)
    gone.future.cancel()
    gone.complete()


def test_a_topic_is_deleted_and_made_in_one_turn() -> None:
    table = begun()
    draft = PendingChanges(table)
    draft.host("t", 1, ["G1"])
    draft.configure("t", {"max.message.bytes": 5})
    draft.delete("t", [PartitionInfo("t", "B", 0, 9), PartitionInfo("t", "C", 0, 4)])
    assert draft.table.partitions("t") == ()
    draft.host("t", 2, ["G2"])
    draft.configure("t", {"min.insync.replicas": 2, "max.message.bytes": None})
    draft.configure("t", {"max.message.bytes": 7})
    for record in draft.records:
        table.apply(record)
    assert table.configs("t") == {"min.insync.replicas": 2, "max.message.bytes": 7}
    assert [each.gateway for each in table.partitions("t")] == ["G2", "G2"]
    assert [table.deleted_end(TopicPartition("t", each)) for each in "ABC"] == [MAX_END, 9, 4]


def test_a_topic_that_is_deleted_twice_in_one_turn_is_deleted() -> None:
    table = begun()
    changes = PendingChanges(table)
    changes.delete("t", [])
    changes.delete("t", [])
    changes.host("t", 1, ["G2"])
    for record in changes.records:
        table.apply(record)
    assert [each.gateway for each in table.partitions("t")] == ["G2"]
    assert table.skipped == 0


def test_a_lease_refuses_what_is_proposed_when_it_closes() -> None:
    lease = RegistryLease(cast("RegistryLog", None), lambda: KNOWN, lambda acks: FAIL)
    proposal = Proposal(lambda changes: None, 0.0)
    lease.propose(proposal)
    lease.close(RefusedError(KafkaError.NOT_CONTROLLER, "closing"))
    with pytest.raises(RefusedError, match="closing"):
        proposal.future.result(0)


def test_the_table_of_leases_is_complete() -> None:
    """Each state is reached, and a gateway that loses the lease follows."""
    reached = {state for row in LEASE_TABLE.values() for state, _ in row.values()}
    assert reached == set(LEASE_TABLE) == set(LeaseState)
    for state in set(LeaseState) - {LeaseState.FOLLOWING}:
        assert LEASE_TABLE[state][FENCED] == (LeaseState.FOLLOWING, RETRY)


def test_what_a_gateway_hosted_of_a_deleted_topic_is_not_adopted() -> None:
    table = begun()
    draft = PendingChanges(table)
    draft.delete("t", [])
    for record in draft.records:
        table.apply(record)
    after = PendingChanges(table)
    after.adopt([TopicPartition("t", each) for each in "AB"], lambda key: ["G2"])
    assert [each.address for each in after.table.partitions("t")] == ["B"]

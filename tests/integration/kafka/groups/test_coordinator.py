"""Groups that a gateway takes over, and gives up, and the log of their commits."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Store, Tower
from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.model.epochs import MAX_NUMBER, Epoch, digest
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.timestamps import StoreClock
from dafka_core.model.values import Values
from dafka_core.testing import wait_until
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.groups import coordinator
from dafka_kafka.groups.coordinator import Coordinator, OffsetLog, wait_for_others
from dafka_kafka.groups.group import Generation, Joining, KeptMember
from dafka_kafka.groups.offsets import OFFSETS_TOPIC, Committed, GroupRecord, Offsets
from dafka_kafka.replication import Replication
from tests.integration.kafka.fixed_node import ELSEWHERE, FixedGateways, fixed_node
from tests.integration.kafka.groups.asking import MEMBER, Asking


def coordinator_of(client: Asking) -> Coordinator:
    return client.groups.coordinator


def until_kept(client: Asking) -> Generation:
    """Wait until the members of group g are on disk."""
    offsets = coordinator_of(client).offsets
    client.until(lambda: offsets.generation("g"))
    found = offsets.generation("g")
    assert found is not None
    return found


def held_up(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Hold up all writes until an event."""
    disk_is_free, put = asyncio.Event(), OffsetLog._put

    async def put_later(log: OffsetLog, records: Sequence[GroupRecord]) -> int:
        await disk_is_free.wait()
        return await put(log, records)

    monkeypatch.setattr(OffsetLog, "_put", put_later)
    return disk_is_free


def test_a_silent_member_is_given_up_in_time(store: Store) -> None:
    with Asking(store) as client:
        client.join(client.join(session_timeout_ms=300).member_id, session_timeout_ms=300)
        assert client.states() != {"g": "Empty"}
        client.until(lambda: client.states() == {"g": "Empty"})


def test_who_has_left_is_not_there_before_that_is_on_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Asking(store) as client:
        name = client.member()
        until_kept(client)
        disk_is_free = held_up(monkeypatch)
        left = client.ask(Api.LEAVE_GROUP, group_id="g", members=[{"member_id": name}])
        assert left.members[0].error_code == 0
        assert until_kept(client).members  # on disk it still exists
        (found,) = client.ask(Api.DESCRIBE_GROUPS, groups=["g"]).groups
        assert (found.group_state, found.members) == ("Empty", [])
        assert client.states() == {"g": "Empty"}
        disk_is_free.set()
        client.until(lambda: not until_kept(client).members)
        assert client.states() == {"g": "Empty"}  # for some minutes
        (deleted,) = client.ask(Api.DELETE_GROUPS, groups_names=["g"]).results
        assert (deleted.error_code, client.states()) == (0, {})


def test_who_joins_while_its_group_is_deleted_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Asking(store, group_rebalance_delay_ms=300) as client:
        client.commit(5)
        disk_is_free = held_up(monkeypatch)
        deleted = client.begin(Api.DELETE_GROUPS, groups_names=["g"])
        joined = client.begin(Api.JOIN_GROUP, 0, **MEMBER)
        client.until(lambda: client.states() == {"g": "PreparingRebalance"})
        disk_is_free.set()
        client.until(deleted.done)
        client.until(joined.done)
        assert deleted.result().results[0].error_code == 0
        assert joined.result().error_code == 0
        assert client.beat(joined.result().member_id) == 0
        assert client.committed() == {}


def test_a_static_member_that_has_started_again_goes_on_at_another_gateway(store: Store) -> None:
    static: dict[str, Any] = {"group_instance_id": "one"}
    with Asking(store) as client:
        first = client.join(**static).member_id
        client.sync(first, 0)
        until_kept(client)
        second = client.join(**static)
        assert (second.error_code, second.generation_id) == (0, 1)
    with Asking(store) as client:
        beat = {"group_id": "g", "generation_id": 1, "member_id": second.member_id, **static}
        assert client.ask(Api.HEARTBEAT, **beat).error_code == 0
        fenced = client.ask(Api.HEARTBEAT, **beat | {"member_id": first})
        assert fenced.error_code == KafkaError.FENCED_INSTANCE_ID


def test_a_group_that_moves_away_has_its_clients_ask_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Asking(store) as client:
        name = client.member()
        waiting = client.begin(Api.JOIN_GROUP, 0, **MEMBER)
        assert client.beat(name) == KafkaError.REBALANCE_IN_PROGRESS
        monkeypatch.setattr(FixedGateways, "chosen", lambda self, key: ELSEWHERE)
        assert client.beat(name) == KafkaError.NOT_COORDINATOR
        client.until(waiting.done)
        assert waiting.result().error_code == KafkaError.NOT_COORDINATOR


def test_a_gateway_reads_before_it_answers_when_others_come_or_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    with Asking(store) as client:
        client.commit(5)
        name = client.member()
        monkeypatch.setattr(FixedGateways, "live", lambda self: [self.own])
        assert client.fetch([0]).error_code in (0, loading)
        assert client.join(group_id="new").error_code == loading
        assert client.beat(name) == 0  # a group of this gateway continues
        client.until(lambda: client.join(group_id="new").error_code != loading)
        assert client.committed() == {("t", 0): 5}


def test_members_are_served_while_a_gateway_reads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, is_read = KafkaError.COORDINATOR_LOAD_IN_PROGRESS, threading.Event()
    with Asking(store) as client:
        name = client.join(session_timeout_ms=300).member_id
        client.join(name, session_timeout_ms=300)
        monkeypatch.setattr(coordinator, "wait_for_others", lambda *_, **named: is_read.wait(60))
        monkeypatch.setattr(FixedGateways, "live", lambda self: [self.own])
        client.until(lambda: client.join(group_id="new").error_code == loading)
        # Clients that get LOADING here give their group up.
        assert client.beat("who", group_id="new") == 0
        told = client.sync("who", group_id="new")
        assert told.error_code == KafkaError.REBALANCE_IN_PROGRESS
        client.until(lambda: not client.ask(Api.DESCRIBE_GROUPS, groups=["g"]).groups[0].members)
        is_read.set()
        client.until(lambda: client.join(group_id="new").error_code != loading)


def test_a_gateway_that_was_cut_off_continues_with_what_another_one_has_kept(store: Store) -> None:
    static: dict[str, Any] = {"group_instance_id": "one"}
    with Asking(store) as client:
        client.sync(client.join(**static).member_id, 0)
        (member,) = until_kept(client).members
        # The member has started again, and found another gateway.
        again = KeptMember("one-again", member.joined, b"part")
        there = Generation(2, "consumer", "range", again.member_id, (again,))
        counter = coordinator_of(client).offsets.next_counter() + 7
        writer = TopicPartition(OFFSETS_TOPIC, ELSEWHERE.address)
        append(store, GroupRecord("g", counter, generation=there), tp=writer)
        beat = {"group_id": "g", "generation_id": 2, "member_id": again.member_id, **static}
        client.until(lambda: client.ask(Api.HEARTBEAT, **beat).error_code == 0)


def test_a_log_that_cannot_be_read_is_reported_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[OffsetLog] = []

    async def broken(self: OffsetLog) -> None:
        tries.append(self)
        raise DafkaError("damaged")

    with Asking(store) as client:
        monkeypatch.setattr(OffsetLog, "catch_up", broken)
        client.until(lambda: len(tries) > 2)
    assert caplog.text.count("committed offsets cannot be read: damaged") == 1


def test_there_are_so_many_groups_and_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "MAX_GROUPS", 2)
    full = KafkaError.GROUP_MAX_SIZE_REACHED
    with Asking(store) as client:
        assert client.commit(5, group_id="a") == [0]
        assert client.join(group_id="b", version=0).error_code == 0
        assert client.commit(5, group_id="c") == [full]
        assert client.join(group_id="d").error_code == full
        assert client.commit(6, group_id="a") == [0]


def test_unknown_groups_are_looked_up_without_counting_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may name 10,000 of them, and counting 10,000 others takes 5 ms each time."""
    names = [f"unheard of {number}" for number in range(100)]
    with Asking(store) as client:
        client.commit(5)
        monkeypatch.setattr(Offsets, "groups", lambda self: pytest.fail("all are counted"))
        described = client.ask(Api.DESCRIBE_GROUPS, groups=names).groups
        deleted = client.ask(Api.DELETE_GROUPS, groups_names=names).results
        missing = {KafkaError.GROUP_ID_NOT_FOUND}
        assert {each.error_code for each in (*described, *deleted)} == missing
        assert client.beat("who", group_id=names[0]) == KafkaError.UNKNOWN_MEMBER_ID


def test_a_group_that_is_not_used_for_long_is_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "EXPIRE_S", 0.02)
    with Asking(store, offsets_retention_minutes=60) as client:
        coordinating = coordinator_of(client)
        offsets, records = coordinating.offsets, []
        client.member()
        for group, hours_ago in {"g": 2.0, "new": 0.5, "old": 2.0, "gone elsewhere": 2.0}.items():
            time_ms = time.time_ns() // 1_000_000 - int(hours_ago * 3_600_000)
            commits = (Committed("t", 0, 5, time_ms=time_ms),)
            records.append(GroupRecord(group, offsets.next_counter(), commits))
        for group, minutes_ago in {"left": 11, "just left": 9}.items():
            time_ms = time.time_ns() // 1_000_000 - minutes_ago * 60_000
            left = Generation(4, time_ms=time_ms)
            records.append(GroupRecord(group, offsets.next_counter(), generation=left))
        client.run(coordinating.log.write(records))
        client.until(lambda: not (offsets.is_there("old") or offsets.is_there("left")))
        # One of them has members, and one belongs to another gateway.
        assert {*offsets.groups()} == {"g", "new", "just left", "gone elsewhere"}
        assert client.committed() == {("t", 0): 5}
    with Asking(store) as client:
        assert not coordinator_of(client).offsets.is_there("old")


@pytest.mark.parametrize("is_ahead", [False, True])
def test_no_group_is_deleted_by_a_wrong_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    """It is in 2000 at the commit, and right later; or 30 days ahead of the log at a start."""
    now_us = time.time_ns() // 1_000
    wall_us = [now_us + 30 * 86_400_000_000 if is_ahead else 946_684_800_000_000]
    with Asking(store) as client:
        if is_ahead:
            client.commit(5)
        clock = StoreClock(now_us, lambda: wall_us[0])
        for name, value in {"clock": clock, "now_us": clock.now_us}.items():
            monkeypatch.setattr(store.log, name, value)
        if not is_ahead:
            client.commit(5)
            wall_us[0] = now_us
        assert bool(clock.doubt()) is is_ahead
        client.run(coordinator_of(client)._expire())
        assert client.committed() == {("t", 0): 5}


OTHER = TopicPartition(OFFSETS_TOPIC, "B" * 32)


class Logs:
    """The commits at a gateway that has just started, and in its loop."""

    def __init__(self, node: GatewayNode) -> None:
        self.runner = asyncio.Runner()
        self._node = node
        self._logs: list[OffsetLog] = []
        self.log = self.opened()

    def opened(self) -> OffsetLog:
        log = OffsetLog(self._node)
        self._logs.append(log)
        self.runner.run(log.catch_up())
        return log

    def write(self, *records: GroupRecord) -> None:
        self.runner.run(self.log.write(records))

    def commit(self, *offsets: int) -> None:
        for each in offsets:
            self.write(commit(self.log, each))

    def close(self) -> None:
        for each in self._logs:
            self.runner.run(each.close())
        self.runner.close()


@pytest.fixture
def logs(store: Store) -> Iterator[Logs]:
    with fixed_node(store) as node, closing(Logs(node)) as made:
        yield made


@pytest.fixture
def repeats_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact the log after a few records; to be asked for before ``logs``."""
    monkeypatch.setattr(coordinator, "LEAST_REPEATED", 20)


def commit(log: OffsetLog, offset: int, number: int = 0, group: str = "g") -> GroupRecord:
    return GroupRecord(group, log.offsets.next_counter(), (Committed("t", number, offset),))


def positions(log: OffsetLog, group: str = "g") -> list[int]:
    return [each.offset for each in log.offsets.committed(group).values()]


def append(store: Store, *records: GroupRecord | bytes, tp: TopicPartition = OTHER) -> None:
    values = [each if isinstance(each, bytes) else each.packed() for each in records]
    batch = RecordBatch(tp, store.log.end(tp), Values.of(values))
    store.append_queue.put(batch).result(30)


def test_what_was_written_is_there_after_a_restart(logs: Logs) -> None:
    joined = Joining("m", (("range", bytes(range(256))),), 6.0, 6.0)
    member = KeptMember("m", joined, b"\xff\0")
    generation = Generation(7, "consumer", "range", "m", (member,))
    log = logs.log
    logs.write(commit(log, 5), GroupRecord("h", log.offsets.next_counter(), generation=generation))

    async def write() -> None:
        # Concurrent writes share an append, in order.
        await asyncio.gather(*(log.write([commit(log, each, 1)]) for each in range(3_000)))

    logs.runner.run(write())
    for each in (log, again := logs.opened()):
        assert positions(each) == [5, 2_999]
    assert again.offsets.next_counter() == 3_003
    assert again.offsets.generation("h") == generation


def test_another_gateways_records_are_followed(store: Store, logs: Logs) -> None:
    logs.commit(5)
    append(store, b"not a record", GroupRecord("g", 9, (Committed("t", 0, 3),)))
    assert positions(logs.log) == [5]
    logs.runner.run(logs.log.catch_up())
    assert positions(logs.log) == [3]
    logs.commit(4)
    assert positions(logs.log) == [4]
    assert logs.log.offsets.next_counter() == 11


def test_commits_of_a_gateway_whose_store_was_restored_are_read(store: Store, logs: Logs) -> None:
    """It continues before the offset up to which this gateway has read, with as many records."""
    append(store, *(GroupRecord("g", at, (Committed("t", 0, at),)) for at in (1, 2, 3)))
    logs.runner.run(logs.log.catch_up())
    later = [GroupRecord("g", 10 + at, (Committed("t", at, 7),)) for at in range(1, 4)]
    epoch = Epoch(MAX_NUMBER - 1, 7, 1, 1, digest(store.log.lives(OTHER).history))
    batch = RecordBatch(OTHER, 1, Values.of([each.packed() for each in later]), epoch=epoch)
    store.log.write([SetAside(OTHER, 1), batch])
    logs.runner.run(logs.log.catch_up())
    assert positions(logs.log) == [3, 7, 7, 7]


@pytest.mark.usefixtures("repeats_early")
def test_what_does_not_count_any_more_is_given_up(store: Store, logs: Logs) -> None:
    log = logs.log
    for each in range(450):
        logs.write(commit(log, each, each % 7))
    logs.write(commit(log, 1, group="gone"))
    logs.write(GroupRecord("gone", log.offsets.next_counter(), deleted=True))
    logs.runner.run(log.close())
    info = store.log.info(log.own)
    assert info is not None
    assert info.end - info.earliest < 150
    again = logs.opened()
    assert positions(again) == positions(log) == [448, 449, 443, 444, 445, 446, 447]
    assert [*again.offsets.groups()] == ["g"]


@pytest.mark.usefixtures("repeats_early")
def test_a_group_that_is_gone_is_forgotten_where_others_have_written_of_it(
    store: Store, logs: Logs
) -> None:
    append(store, GroupRecord("gone", 1, (Committed("t", 0, 1),)))
    log = logs.log
    logs.runner.run(log.catch_up())

    def until_repeated() -> int:
        logs.commit(*range(25))
        assert [*log.offsets.groups()] == ["g"]
        return len(log.offsets.repeated(log.own.partition))

    logs.write(GroupRecord("gone", log.offsets.next_counter(), deleted=True))
    assert until_repeated() == 2  # the other's exists
    append(store, GroupRecord(repeats=1))
    logs.runner.run(log.catch_up())
    assert until_repeated() == 1
    for each in (log, logs.opened()):
        assert [*each.offsets.groups()] == ["g"]


def test_other_stores_give_up_what_was_written_again(store: Store, logs: Logs) -> None:
    old, new = GroupRecord("g", 1, (Committed("t", 0, 1),)), GroupRecord("h", 2, deleted=True)
    append(store, old, new, old, GroupRecord(repeats=2))
    assert positions(logs.opened()) == [1]
    info = store.log.info(OTHER)
    assert info is not None
    assert (info.earliest, info.end) == (2, 4)
    append(store, GroupRecord(repeats=50))  # a future offset is invalid
    assert positions(logs.opened()) == [1]


def test_a_commit_that_is_too_large_fails_alone(
    store: Store, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.append_queue, "_max_record_bytes", 4_096)
    log = logs.log
    large = GroupRecord("g", 2, (Committed("t", 0, 1, metadata="x" * 5_000),))

    async def write() -> list[Any]:
        each = (commit(log, 1), large, commit(log, 3, 1))
        works = (log.write([record]) for record in each)
        return await asyncio.gather(*works, return_exceptions=True)

    found = logs.runner.run(write())
    assert [type(each) for each in found] == [type(None), InvalidRequestError, type(None)]
    assert positions(log) == [1, 3]


def test_a_commit_waits_for_the_other_stores(
    store: Store, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_answers(self: Replication, ends: object, timeout_s: float) -> bool:
        return False

    with Store(tmp_path / "other", tower=store.options.tower) as other:
        wait_until(lambda: other.address in store.known.endpoints)
        for each in range(20):
            logs.commit(each)
            assert other.log.end(logs.log.own) == each + 1
        # A reachable store that does not receive it.
        monkeypatch.setattr(Replication, "wait", nobody_answers)
        with pytest.raises(TimeoutError, match="before offset 21"):
            logs.commit(99)
    store.close()
    with pytest.raises(DafkaError):
        logs.commit(2)


def test_what_another_store_has_is_waited_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_others(store)  # no other store exists
    with Store(tmp_path / "other", tower=store.options.tower) as other:
        tp = TopicPartition(OFFSETS_TOPIC, other.address)
        append(other, b"a", b"b", tp=tp)
        wait_until(lambda: other.address in store.known.here, "the stores meet")
        wait_for_others(store)
        assert store.log.end(tp) == 2
        # The wait for missing records is bounded.
        monkeypatch.setattr(coordinator, "WAIT_S", 0.1)
        monkeypatch.setattr(coordinator, "ends_at_others", lambda store, **named: {tp: 3})
        wait_for_others(store)


def test_a_store_that_is_known_is_waited_for_at_the_start(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beacon may come later than the first client."""
    monkeypatch.setattr(coordinator, "MEET_S", 60.0)
    with Store(tmp_path / "other", tower=store.options.tower) as other:
        tp = TopicPartition(OFFSETS_TOPIC, other.address)
        wait_until(lambda: other.address in store.known.names, "the stores meet")
    wait_until(lambda: not store.known.here, "it is away")
    free = "tcp://127.0.0.1:0"
    with (
        Tower(sub_address=free, pub_address=free) as apart,
        Store(tmp_path / "other", tower=apart.tower) as other,
    ):
        append(other, b"a", b"b", tp=tp)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(wait_for_others, store, is_start=True)
        with Store(tmp_path / "other", tower=store.options.tower):
            reading.result(60)
            assert store.log.end(tp) == 2
